"""F6: clocks that are an hour off, or step, take no run from its owner and leave none with an owner that is gone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, repeat

import pytest
from tests.property.run_world import START, World
from tests.run_plans import running

from moorage.api.wire import ResolvedTimeouts
from moorage.controller.signs import Signs
from moorage.core.run import actions as a
from moorage.core.run.attempts import FIRST_CONTACT_MS
from moorage.core.run.observed import Heartbeat, LeaseView, Observed
from moorage.core.run.plan import decide
from moorage.testing.clock import StepClock

HOUR = 3_600_000
PERIOD = 5_000
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
        if self.away:
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


def test_nothing_is_kept_of_a_run_that_has_ended_or_is_gone() -> None:
    scene = Scene(0)
    scene.look()
    assert vars(scene.signs)["_seen"].keys() == {scene.world.spec.uid}
    gone: Observed = replace(scene.world.observed(), gone=True)
    assert scene.signs.dated(gone) is gone
    assert not vars(scene.signs)["_seen"]


def test_a_sign_of_another_epoch_is_a_new_one() -> None:
    clock = StepClock(START, 0)
    signs, world = Signs(clock), running()
    signs.dated(world.observed())
    clock.advance(FIRST_CONTACT_MS)
    world.lease = LeaseView(2, "another", world.lease.renewed_at if world.lease else 0, LEASE)
    lease = signs.dated(world.observed()).lease
    assert lease is not None
    assert lease.renewed_at == clock.now_ms()
