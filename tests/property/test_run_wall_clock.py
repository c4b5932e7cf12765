"""C2, F5: whatever hangs, a run is stopped the moment its wall clock is used up, on a clock that only the test moves.

The operator of this world looks at its run when its last plan asked for that, or when the sandbox has gone: nothing
wakes it by chance. The agent is alive all the time: heartbeats come, and its Lease is renewed.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.run_world import T, World
from tests.run_plans import provisioning, running, started

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedTimeouts
from moorage.core.constraints.context import lived_ms
from moorage.core.run import actions as a
from moorage.core.run.observed import Heartbeat
from moorage.core.run.phases import RunPhase
from moorage.core.run.waiting import SETTLE_RETRY_MS

HOUR, MINUTE = 3_600_000, 60_000
PASSES_MS = 10  # a pass that did something is followed by the next one a millisecond later
LONG = ResolvedTimeouts(attempt_ms=99 * HOUR, no_progress_ms=99 * HOUR, schedule_to_start_ms=99 * HOUR)
"""Nothing but the wall clock ends what hangs."""


def _call(world: World) -> None:
    world.report("call", T.TOOL_REQUEST, {"tool": "bash", "tool_call_id": "c-1"})


def _model(world: World) -> None:
    world.note(T.MODEL_REQUEST, {"request_id": "m-1", "attempt": 1})


def _question(world: World) -> None:
    """At a door, where its agent stands and waits: one about a call lets go of the sandbox, and the clock stands."""
    asked = {"key": "q", "name": "shop", "before": "Egress", "subject": "shop.example", "reject_at": None}
    world.note(T.APPROVAL_REQUESTED, asked)


def _effect(world: World) -> None:
    """Nobody says what became of it."""
    world.remote.away = True
    world.note(T.EFFECT_INTENT, {"effect_id": "e", "kind": "http", "key": "e", "target": "shop", "level": "queryable"})
    world.note(T.EFFECT_DISPATCHED, {"effect_id": "e"})


def _nothing(_: World) -> None:
    pass


HANGS: dict[str, tuple[Callable[..., World], Callable[[World], None]]] = {
    "a tool call": (running, _call),
    "a model request": (running, _model),
    "a question that nobody answers": (running, _question),
    "an effect": (running, _effect),
    "an agent that says nothing": (running, _nothing),
    "a runner that says nothing": (started, _nothing),
    "a sandbox that never starts": (provisioning, _nothing),
}


class Watch:
    """Lets time pass over a world, and keeps what its operator did: (ms since admission, action)."""

    def __init__(self, world: World, goes_ms: int) -> None:
        """`goes_ms`: what a sandbox takes to go once it is told to."""
        self.world, self._goes_ms = world, goes_ms
        self.did: list[tuple[int, a.Action]] = []
        self._going: tuple[int, a.StopSandbox] | None = None

    @property
    def at(self) -> int:
        return self.world.now - (self.world.state.admitted_at or 0)

    def until(self, end_ms: int) -> None:
        """Go on to that time. The operator looks now, when it has asked to, and as the sandbox goes."""
        look: int | None = self.at
        while self.at < end_ms:
            if self._going is not None and self._going[0] == self.at:
                self.world.apply(self._going[1])
                self._going, look = None, self.at
            if look == self.at:
                look = self._pass()
            times = (look, end_ms, None if self._going is None else self._going[0])
            self.world.now += min(at for at in times if at is not None) - self.at

    def _pass(self) -> int | None:
        """One look, and when the next one is asked for."""
        world = self.world
        if world.lease is not None:
            world.lease = replace(world.lease, renewed_at=world.now)
            world.beat = Heartbeat(world.state.epoch, 1, world.now, world.now)
        plan = world.plan()
        for action in plan.actions:
            self.did.append((self.at, action))
            if not isinstance(action, a.StopSandbox):
                world.apply(action)
            elif self._going is None:
                self._going = (self.at + self._goes_ms, action)
        return None if plan.requeue_ms is None else self.at + plan.requeue_ms

    def first(self, what: Callable[[a.Action], bool]) -> int:
        return next(at for at, action in self.did if what(action))


def tells(kind: T) -> Callable[[a.Action], bool]:
    return lambda action: isinstance(action, a.Report) and action.type == kind


def kills(action: a.Action) -> bool:
    return isinstance(action, a.StopSandbox) and action.grace_ms == 0


@pytest.mark.rule("C2", "F5")
@pytest.mark.parametrize("what", HANGS)
@given(
    limit=st.integers(MINUTE, 20 * MINUTE),
    hangs_after=st.integers(0, MINUTE - PASSES_MS),
    goes_ms=st.integers(0, 2 * MINUTE),
)
@settings(max_examples=10, deadline=None)
def test_it_is_stopped_at_its_limit_and_not_a_moment_later(
    what: str, limit: int, hangs_after: int, goes_ms: int
) -> None:
    at_work, hang = HANGS[what]
    watch = Watch(at_work(limits=ResolvedLimits(wall_clock_ms=limit), timeouts=LONG), goes_ms)
    watch.until(hangs_after)
    hang(watch.world)
    if watch.world.state.effects:  # asked about for a while, now and then
        goes_ms, late = max(goes_ms, LONG.settle_ms), SETTLE_RETRY_MS
    else:
        late = PASSES_MS
    watch.until(limit + goes_ms + MINUTE)
    assert watch.first(tells(T.PAUSE_REQUESTED)) == limit
    assert limit <= watch.first(kills) <= limit + PASSES_MS
    assert 0 <= watch.first(tells(T.PAUSED)) - limit - goes_ms <= late
    state = watch.world.state
    assert (state.phase, watch.world.pods) == (RunPhase.PAUSED, {})
    assert limit <= lived_ms(state, watch.world.now + HOUR) <= limit + goes_ms + late, "it stands from then on"


@pytest.mark.rule("C2", "F5")
@pytest.mark.parametrize("what", HANGS)
def test_its_deadline_ends_it_then_and_its_sandbox_a_moment_later(what: str) -> None:
    at_work, hang = HANGS[what]
    watch = Watch(at_work(timeouts=LONG.model_copy(update={"deadline_ms": MINUTE})), goes_ms=0)
    hang(watch.world)
    watch.until(2 * MINUTE)
    assert watch.first(tells(T.RUN_FAILED)) == MINUTE
    assert MINUTE <= watch.first(kills) <= MINUTE + PASSES_MS
    assert (watch.world.state.phase, watch.world.pods) == (RunPhase.FAILED, {})
