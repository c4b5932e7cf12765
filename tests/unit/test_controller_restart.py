"""Q1, C6: who has a slot: right after a start, and where a sandbox is refused."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.run_plans import provisioning, running
from tests.unit.test_controller_parts import body
from tests.unit.test_run_plan_pauses import paused

from moorage.api.runstatus import AgentRunStatus
from moorage.controller.engine import Engine, standing_of
from moorage.controller.gather import Gathered
from moorage.controller.roll import Roll
from moorage.controller.together import unless
from moorage.controller.told import Standing
from moorage.core.run.actions import Plan, RaiseEpoch, StartSandbox
from moorage.core.run.observed import Observed, SandboxPhase
from moorage.core.run.phases import RunPhase
from moorage.core.run.plan import decide
from moorage.core.run.view import RunBrief
from moorage.core.scheduling.explain import RECHECK_MS, Slots
from moorage.core.scheduling.rate import Rate
from moorage.sandbox.port import RunKey
from moorage.telemetry.metrics import OperatorMetrics
from moorage.testing.clock import StepClock


def key(name: str) -> RunKey:
    return RunKey(f"uid-{name}", "t", name)


def started() -> Roll:
    """One slot. By its status nobody knows that `late` has begun, and `early` waits."""
    roll = Roll(1, opened=False)
    roll.saw(body("early", created=1))
    roll.saw(body("late", created=2))
    roll.saw(body("on", created=3, status={"phase": "Paused", "reason": "Suspended", "epoch": 1}))
    return roll


@pytest.mark.rule("Q1")
def test_nobody_has_a_turn_before_it_is_known_who_is_live() -> None:
    roll = started()
    assert roll.next_waiting() == []
    assert "has just started" in roll.slots(key("early")).closed
    assert roll.open([key("late"), key("gone")])
    assert roll.next_waiting() == []
    assert not roll.slots(key("early")).free
    roll.note(key("late"), Standing.ENDED)
    assert roll.next_waiting() == [key("early")]


@pytest.mark.rule("Q1")
def test_a_run_that_goes_on_by_its_journal_and_is_told_as_paused_has_its_slot() -> None:
    roll = started()
    roll.open([key("on")])
    assert not roll.slots(key("early")).free


@pytest.mark.rule("Q1")
def test_only_the_first_word_tells_who_is_live() -> None:
    """Later ones are older than what passes have found meanwhile."""
    roll = started()
    assert roll.open([])
    roll.note(key("early"), Standing.BLOCKED)
    assert not roll.open([key("early")])
    assert roll.slots(key("late")).free


@pytest.mark.parametrize(
    ("phase", "epoch", "live"),
    [
        (RunPhase.RUNNING, 1, True),
        (RunPhase.RECOVERING, 2, True),
        (RunPhase.PAUSED, 1, False),
        (RunPhase.RUNNING, 0, False),
        (RunPhase.FAILED, 1, False),
    ],
)
def test_who_has_a_slot_is_told_by_a_line_of_the_gateways_list(phase: RunPhase, epoch: int, live: bool) -> None:
    assert RunBrief("u", "t", "n", "cluster", phase, epoch, released=False).live is live


async def test_what_is_asked_to_stop_while_it_starts_stops() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    assert not await unless(stop, asyncio.Event().wait())
    assert await unless(asyncio.Event(), asyncio.sleep(0))
    with pytest.raises(ValueError, match="fault"):
        await unless(asyncio.Event(), fails())


async def fails() -> None:
    raise ValueError("a fault")


# --- who was refused (C6) ---------------------------------------------------------------------------------------------


@pytest.mark.rule("C6")
def test_who_was_refused_a_sandbox_starts_none_before_its_turn() -> None:
    world = provisioning()
    o = replace(world.observed(), sandboxes=(), journal=replace(world.state, sandboxes=()))
    wanted = decide(o, world.now)
    assert [type(a).__name__ for a in wanted.actions if isinstance(a, StartSandbox | RaiseEpoch)]
    waits = decide(replace(o, slots=Slots(free=False, tenant="t", place=2)), world.now)
    assert not [a for a in waits.actions if isinstance(a, StartSandbox | RaiseEpoch)]
    assert (waits.reason, standing_of(o, waits)) == ("Queued", Standing.WAITING)


@pytest.mark.rule("C6")
@pytest.mark.parametrize(("live", "standing"), [(True, Standing.LIVE), (False, Standing.BLOCKED)])
def test_a_refusal_takes_the_slot_of_who_has_no_sandbox(live: bool, standing: Standing) -> None:
    world = provisioning()
    o = world.observed()
    assert o.live_sandboxes
    assert standing_of(o if live else replace(o, sandboxes=()), Plan(), refused=True) is standing


class Parts:
    """Of runs that all look the same."""

    def __init__(self, observed: Observed) -> None:
        self.observed, self.applied = observed, 0

    async def gather(self, *_: Any, **__: Any) -> Gathered:
        return Gathered(self.observed, AgentRunStatus(), None)

    async def apply(self, _: Any, actions: Any, known: Any) -> AsyncIterator[Any]:
        self.applied += any(isinstance(action, RaiseEpoch) for action in actions)
        yield known

    async def write_status(self, *_: Any) -> None:
        return None


def engine_of(parts: Any, clock: StepClock, roll: Roll) -> Engine:
    return Engine(
        gatherer=parts,
        applier=parts,
        objects=parts,
        roll=roll,
        clock=clock,
        telling=parts,
        metrics=OperatorMetrics(CollectorRegistry()),
        recoveries=Rate(1, 2),
    )


@pytest.mark.rule("C6")
async def test_a_paused_run_that_finds_no_room_looks_again_once_it_is_in_line() -> None:
    """What is kept for the first in line is kept for who is in it: its first look put it there."""
    world = paused()
    world.suspend = False
    closed = Slots(free=False, tenant="t", closed="quota q has 1 of 2 left")
    roll = Roll(limit=9)
    roll.saw(body("on", status={"phase": "Paused", "reason": "Suspended", "epoch": 1}))
    observed = replace(world.observed(), slots=closed, sandboxes=(), lease=None)
    engine = engine_of(Parts(observed), StepClock(world.now), roll)
    assert (await engine.run_pass(key("on"))).requeue_ms == 1
    assert roll.is_waiting(key("on"))
    assert (await engine.run_pass(key("on"))).requeue_ms == RECHECK_MS


# --- recoveries (Q3) --------------------------------------------------------------------------------------------------


@pytest.mark.rule("Q3")
async def test_of_many_recoveries_no_more_begin_at_once_than_the_rate_allows() -> None:
    world = running()
    view = world.sandbox("runner")
    assert view
    world.set_pod(view, phase=SandboxPhase.ENDED, reason="NodeLost")
    observed = world.observed()
    while not any(isinstance(action, RaiseEpoch) for action in decide(observed, world.now).actions):
        world.step()
        world.now += 1_000
        observed = world.observed()

    parts, clock = Parts(observed), StepClock(world.now)
    engine = engine_of(parts, clock, Roll(limit=9))
    waits = [(await engine.run_pass(key(f"run-{n}"))).requeue_ms for n in range(4)]
    assert parts.applied == 2
    assert waits[2:] == [1_000, 2_000]
    clock.advance(1_000)
    await engine.run_pass(key("run-2"))
    await engine.run_pass(key("run-3"))
    assert parts.applied == 3
