"""F6: clocks that are an hour off, or step, take no run from its owner and leave none with an owner that is gone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, repeat
from random import Random
from typing import Any

import pytest
import structlog
from tests.property.run_world import START, World
from tests.run_plans import running

from moorage.api.wire import Change, ResolvedTimeouts
from moorage.controller.changes import ASK_AGAIN_S, QUIET_MS, RETRY_S, ask, follow
from moorage.controller.gateway_client import FEED_SILENCE_S, READY_TIMEOUT_S, GatewayAway, GatewayRefused
from moorage.controller.gather import Gatherer
from moorage.controller.roll import Roll
from moorage.controller.signs import UNHEARD_MS, Signs, _covered
from moorage.core.run import actions as a
from moorage.core.run.attempts import FIRST_CONTACT_MS
from moorage.core.run.observed import Heartbeat, LeaseView, Observed
from moorage.core.run.plan import decide
from moorage.core.run.resolve import Defaults
from moorage.gateway.settings import GatewaySettings
from moorage.sandbox.port import Children, RunKey
from moorage.testing.clock import StepClock

HOUR = 3_600_000
PERIOD = 5_000
FEED = 10_000
LEASE = 40_000
NO_PROGRESS = 600_000
SKEWS = pytest.mark.parametrize("skew", [-HOUR, 0, HOUR], ids=["behind", "right", "ahead"])


def untimed() -> World:
    """An agent at work, without the times of F5 that are meant to be told by a wall clock."""
    return running(timeouts=ResolvedTimeouts(attempt_ms=100 * HOUR))


@dataclass
class Scene:
    """An operator that looks at one run every five seconds, through its own clock; everybody else's is `skew` off it.

    The model's own time is the others'.
    """

    skew: int
    world: World = field(default_factory=untimed)
    seq: int = 0
    clock: StepClock = field(default_factory=StepClock)
    away: bool = False  # no gateway answers
    starts: Iterator[int] = field(default_factory=lambda: repeat(START))  # of the gateways that it asks, one by one
    signs: Signs = field(init=False)

    def __post_init__(self) -> None:
        self.clock.wall = self.world.now - self.skew
        self.signs = Signs(self.clock)

    def beat(self, *, progress: bool = True) -> None:
        self.seq += progress
        progress_at = self.world.now if progress or self.world.beat is None else self.world.beat.progress_at
        self.world.beat = Heartbeat(1, self.seq, self.world.now, progress_at)
        assert self.world.lease
        self.world.lease = replace(self.world.lease, renewed_at=self.world.now)

    def look(self) -> list[str]:
        """Reasons of the losses that the operator would report."""
        seen = replace(self.world.observed(), gateway_up_since=next(self.starts))
        if not self.away:
            self.signs.heard()
        else:
            seen = replace(seen, journal=None, gateway_up_since=None, heartbeat=None, gateway_trouble="away")
        plan = decide(self.signs.dated(seen), self.clock.now_ms())
        return [str(r.payload["reason"]) for r in plan.actions if isinstance(r, a.Report)]

    def passes(self, ms: int, each: Callable[[], None] = lambda: None) -> list[str]:
        lost: list[str] = []
        for _ in range(0, ms, PERIOD):
            self.clock.advance(PERIOD)
            self.world.now += PERIOD
            each()
            lost += self.look()
        return lost


@pytest.mark.rule("F6", "F4")
@SKEWS
def test_an_owner_that_is_heard_keeps_its_run_whatever_the_clocks_say(skew: int) -> None:
    scene = Scene(skew)
    assert scene.passes(2 * HOUR, scene.beat) == []


@pytest.mark.rule("F6", "F4")
@SKEWS
def test_an_owner_that_falls_silent_loses_its_run_after_its_lease_whatever_the_clocks_say(skew: int) -> None:
    scene = Scene(skew)
    assert scene.passes(HOUR, scene.beat) == []
    assert scene.passes(LEASE - PERIOD) == []
    assert scene.passes(PERIOD) == ["OwnerLost"]


@pytest.mark.rule("F6")
@pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "forth"])
def test_a_clock_that_steps_while_an_owner_is_silent_changes_nothing(step: int) -> None:
    scene = Scene(0)
    scene.passes(HOUR, scene.beat)
    assert scene.passes(LEASE // 2) == []
    scene.clock.wall += step
    assert scene.passes(LEASE // 2 - PERIOD) == []
    assert scene.passes(PERIOD) == ["OwnerLost"]


@pytest.mark.rule("F6", "F5")
@SKEWS
def test_progress_is_measured_by_the_observers_clock(skew: int) -> None:
    scene = Scene(skew)
    scene.passes(HOUR, scene.beat)
    assert scene.passes(NO_PROGRESS - PERIOD, lambda: scene.beat(progress=False)) == []
    assert scene.passes(PERIOD, lambda: scene.beat(progress=False)) == ["NoProgress"]


@SKEWS
def test_an_operator_that_starts_anew_gives_every_owner_a_full_period(skew: int) -> None:
    scene = Scene(skew)
    scene.passes(HOUR, scene.beat)
    scene.passes(LEASE - PERIOD)
    scene.signs = Signs(scene.clock)
    assert scene.passes(LEASE) == []
    assert scene.passes(PERIOD) == ["OwnerLost"]


@pytest.mark.rule("F4", "F6")
@SKEWS
def test_gateways_that_answer_in_turns_are_new_once_each(skew: int) -> None:
    """Each tells its own start. An owner that is gone is given up all the same; a start that is new gives a period."""
    scene = Scene(skew, starts=cycle([START, START - HOUR]))
    scene.passes(HOUR, scene.beat)
    assert scene.passes(LEASE - PERIOD) == []
    scene.starts = cycle([START + HOUR, START])
    assert scene.passes(LEASE) == []
    assert scene.passes(PERIOD) == ["OwnerLost"]


@pytest.mark.rule("F4", "F6")
@SKEWS
def test_an_owner_that_no_gateway_could_hear_gets_a_full_period_from_the_first_answer_on(skew: int) -> None:
    """The gateway went on all the while, so that it tells the same start and the heartbeat that it heard last."""
    scene = Scene(skew)
    scene.passes(HOUR, scene.beat)
    for away in (LEASE * 3, LEASE // 2):
        scene.away = True
        assert scene.passes(away) == []
        scene.away = False
        assert scene.passes(LEASE) == []
        assert scene.passes(HOUR, scene.beat) == []
    scene.away = True
    assert scene.passes(LEASE * 3) == []
    scene.away = False
    assert scene.passes(LEASE) == []
    assert scene.passes(PERIOD) == ["OwnerLost"]


def quiet(scene: Scene, ms: int, *, feed: bool) -> list[str]:
    """Nobody looks at the run for so long; with `feed`, the gateway says something now and then. Then one look."""
    for _ in range(0, ms, FEED):
        scene.clock.advance(FEED)
        scene.world.now += FEED
        if feed:
            scene.signs.heard()
    return scene.look()


@pytest.mark.rule("F4", "F6")
@SKEWS
def test_an_outage_between_two_looks_at_a_quiet_run_counts_against_nobody(skew: int) -> None:
    """The gateway went on, or came back before anybody asked for that run: it tells what it told before."""
    scene = Scene(skew)
    scene.passes(HOUR, scene.beat)
    assert quiet(scene, LEASE, feed=False) == []
    assert scene.passes(LEASE - PERIOD) == [], "a full period, in which the owner comes back"
    assert scene.passes(PERIOD) == ["OwnerLost"]


@pytest.mark.rule("F4", "F6")
@SKEWS
def test_an_owner_that_is_silent_while_the_gateway_is_heard_loses_its_run_however_rarely_it_is_looked_at(
    skew: int,
) -> None:
    scene = Scene(skew)
    scene.passes(HOUR, scene.beat)
    assert quiet(scene, LEASE, feed=True) == ["OwnerLost"]


@pytest.mark.rule("F4", "F5")
@SKEWS
@pytest.mark.parametrize("seen", [True, False], ids=["looked at", "between two looks"])
def test_time_in_which_nobody_could_be_heard_is_no_time_without_progress(skew: int, seen: bool) -> None:
    scene = Scene(skew)
    scene.passes(HOUR, scene.beat)

    def stuck() -> None:
        scene.beat(progress=False)

    assert scene.passes(NO_PROGRESS // 2, stuck) == []
    if seen:
        scene.away = True
        assert scene.passes(NO_PROGRESS) == []
        scene.away = False
    else:
        scene.clock.advance(NO_PROGRESS)
        scene.world.now += NO_PROGRESS
    assert scene.passes(NO_PROGRESS // 2, stuck) == []
    assert scene.passes(PERIOD, stuck) == ["NoProgress"]


@pytest.mark.rule("F4", "F5")
def test_what_a_gateway_could_not_hear_before_it_said_so_is_no_time_without_progress() -> None:
    """Its database was away between two looks: the feed went on."""
    scene = Scene(0)
    scene.passes(HOUR, scene.beat)
    assert scene.passes(NO_PROGRESS - LEASE, lambda: scene.beat(progress=False)) == []
    scene.starts = repeat(START + HOUR)
    assert quiet(scene, LEASE, feed=True) == []
    assert scene.passes(LEASE - PERIOD, lambda: scene.beat(progress=False)) == []
    assert scene.passes(PERIOD, lambda: scene.beat(progress=False)) == ["NoProgress"]


async def test_every_word_of_the_feed_is_heard_also_that_nothing_has_changed() -> None:
    told, over = [], asyncio.Event()

    class Feed:
        async def changes(self, after: int, _: Callable[[], None]) -> AsyncIterator[Change | None]:
            if told:
                over.set()
                await asyncio.Event().wait()
            yield None
            yield Change(cursor=after + 1, run_uid="u", tenant="t", name="n")
            raise GatewayAway("gone")

    class Woken:
        def journal_changed(self, key: RunKey) -> None:
            told.append(key.uid)

    ports: Any = (Feed(), Woken(), structlog.get_logger())
    following = asyncio.create_task(follow(*ports, Random(0), heard=lambda: told.append("heard")))
    await over.wait()
    following.cancel()
    assert told == ["heard", "heard", "u"]


@pytest.mark.parametrize(
    ("opens", "end", "words"),
    [
        (True, GatewayAway("broken off"), 1),
        (False, GatewayRefused(403, "Forbidden", "no"), 1),
        (False, GatewayAway("no answer"), 0),
    ],
    ids=["opened", "refused", "away"],
)
async def test_a_feed_that_is_granted_or_refused_is_a_word_also_where_it_tells_nothing(
    opens: bool, end: Exception, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no line: the next try waits longer each time."""
    told: list[str] = []
    pauses: list[float] = []

    class Feed:
        async def changes(self, _: int, opened: Callable[[], None]) -> AsyncIterator[Change | None]:
            if opens:
                opened()
            raise end
            yield

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(RETRY_S):
            raise Over

    class Always:
        def uniform(self, *_: float) -> float:
            return 1.0

    monkeypatch.setattr("moorage.controller.changes.asyncio.sleep", sleep)
    ports: Any = (Feed(), None, structlog.get_logger(), Always())
    with pytest.raises(Over):
        await follow(*ports, heard=lambda: told.append("heard"))
    assert (tuple(pauses), len(told)) == (RETRY_S, words * len(RETRY_S))


class Over(Exception):
    """Enough was seen."""


@dataclass
class Mute:
    """A run that is looked at once in a Lease's time, while the feed never says a word. Time goes on where `ask`
    sleeps, and where no gateway answers it. `away`: from when to when none could be heard (ms). `frozen`: when this
    process is, and for how long.
    """

    scene: Scene
    ends: int
    away: tuple[int, int] = (0, 0)
    frozen: tuple[int, int] = (0, 0)
    beats: bool = False
    now: int = 0
    lost: list[tuple[int, str]] = field(default_factory=list)

    @property
    def out(self) -> bool:
        """Whether no gateway can be heard now."""
        return self.away[0] <= self.now < self.away[1]

    async def ready(self) -> None:
        if self.out:
            await self.sleep(READY_TIMEOUT_S)
            raise GatewayAway("no answer")

    async def sleep(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            if self.now == self.frozen[0]:
                self._goes_on(self.frozen[1])
            self._goes_on(1_000)
            self.scene.away = self.out
            if self.now % LEASE == 0:
                self.lost += [(self.now, reason) for reason in self.scene.look()]
            if self.beats and self.now % PERIOD == 0 and not self.out:
                self.scene.beat()
            if self.now >= self.ends or self.lost:
                raise Over

    def _goes_on(self, ms: int) -> None:
        self.now += ms
        self.scene.clock.advance(ms)
        self.scene.world.now += ms

    async def losses(self) -> list[tuple[int, str]]:
        """When an owner was given up, and why."""
        self.scene.passes(HOUR, self.scene.beat)
        gateway: Any = self
        with pytest.raises(Over):
            await ask(gateway, self.scene.signs, self.sleep)
        return self.lost


@pytest.mark.rule("F4", "F6")
@SKEWS
async def test_a_feed_that_says_nothing_hides_no_dead_owner(skew: int) -> None:
    """A proxy holds it back, or its other end is gone while another gateway answers."""
    assert await Mute(Scene(skew), ends=HOUR).losses() == [(LEASE, "OwnerLost")]


@pytest.mark.rule("F4", "F6")
@pytest.mark.parametrize(
    ("away", "frozen"),
    [((1_000, 39_000), (0, 0)), ((1_000, 119_000), (0, 0)), ((0, 0), (1_000, 38_000))],
    ids=["between two looks", "past two looks", "frozen"],
)
async def test_an_outage_counts_against_nobody_also_where_the_feed_says_nothing(
    away: tuple[int, int], frozen: tuple[int, int]
) -> None:
    assert not await Mute(Scene(0), ends=HOUR, away=away, frozen=frozen, beats=True).losses()
    [(at, reason)] = await Mute(Scene(0), ends=HOUR, away=away, frozen=frozen).losses()
    assert reason == "OwnerLost"
    assert at >= max(away[1], sum(frozen)) + LEASE, "a full period, in which the owner comes back"


def test_a_feed_that_broke_off_and_a_gateway_that_is_asked_are_heard_before_it_is_a_silence() -> None:
    feed, asked = GatewaySettings().keep_alive_ms, 2 * (READY_TIMEOUT_S + ASK_AGAIN_S) * 1000
    assert feed < QUIET_MS < QUIET_MS + asked < UNHEARD_MS
    assert feed < FEED_SILENCE_S * 1000 < (FEED_SILENCE_S + max(RETRY_S)) * 1000 < UNHEARD_MS
    assert UNHEARD_MS <= LEASE // 2


@pytest.mark.parametrize(
    ("answer", "heard"),
    [(None, True), (GatewayRefused(403, "Forbidden", "no"), True), (GatewayAway("no answer"), False)],
    ids=["an answer", "a refusal", "none"],
)
async def test_a_gateway_that_answers_is_heard_whatever_it_says(answer: Exception | None, heard: bool) -> None:
    clock = StepClock()
    signs = Signs(clock)
    signs.heard()
    clock.advance(HOUR)

    class Ports:
        async def view(self, _: str) -> None:
            if answer is not None:
                raise answer

        async def observe(self, _: RunKey, **__: bool) -> Children:
            return Children()

        async def run(self, *_: str) -> None:
            return None

    ports: Any = Ports()
    gatherer = Gatherer(
        objects=ports,
        substrate=ports,
        gateway=ports,
        roll=Roll(1),
        defaults=Defaults(),
        drivers=frozenset(),
        signs=signs,
    )
    await gatherer.gather(RunKey("u", "t", "n"))
    assert bool(vars(signs)["_silences"]) is heard


def test_silences_that_overlap_are_counted_once() -> None:
    spans = [(0, 10), (5, 20), (6, 7), (30, 40), (90, 120)]
    assert [_covered(*within, spans) for within in ((0, 100), (8, 35), (21, 29), (95, 99))] == [40, 17, 0, 4]


def test_nothing_is_kept_of_a_run_that_has_ended_or_is_gone() -> None:
    scene = Scene(0)
    scene.look()
    assert vars(scene.signs)["_runs"].keys() == {scene.world.spec.uid}
    gone: Observed = replace(scene.world.observed(), gone=True)
    assert scene.signs.dated(gone) is gone
    assert not vars(scene.signs)["_runs"]


def test_a_sign_of_another_epoch_is_a_new_one() -> None:
    clock = StepClock(START, 0)
    signs, world = Signs(clock), running()
    signs.dated(world.observed())
    clock.advance(FIRST_CONTACT_MS)
    world.lease = LeaseView(2, "another", world.lease.renewed_at if world.lease else 0, LEASE)
    lease = signs.dated(world.observed()).lease
    assert lease is not None
    assert lease.renewed_at == clock.now_ms()
