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
from moorage.controller.changes import follow
from moorage.controller.gateway_client import GatewayAway, GatewayRefused
from moorage.controller.gather import Gatherer
from moorage.controller.roll import Roll
from moorage.controller.signs import Signs, _covered
from moorage.core.run import actions as a
from moorage.core.run.attempts import FIRST_CONTACT_MS
from moorage.core.run.observed import Heartbeat, LeaseView, Observed
from moorage.core.run.plan import decide
from moorage.core.run.resolve import Defaults
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
        async def changes(self, after: int) -> AsyncIterator[Change | None]:
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
