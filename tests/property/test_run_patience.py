"""A run that waits is looked at now and then: a time that has passed with nothing to do is no reason to look again."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.run_world import T, World
from tests.run_plans import provisioning, running, started

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedApproval
from moorage.core.run.observed import Observed, SandboxPhase
from moorage.core.run.phases import RunPhase
from moorage.core.run.plan import decide

HOUR = 3_600_000
LOOKS = 20
LEAST_MS = 200  # that many looks in vain take at least this long: all deadlines of a run may be close together once
PUSH = ResolvedApproval(name="push", before="Delivery")


def waits_patiently(observed: Observed, now: int) -> bool:
    """Looked at again and again with nothing new, as its plans ask for it."""
    began = now
    for _ in range(LOOKS):
        plan = decide(observed, now)
        if plan.actions or plan.verdict is not None or plan.requeue_ms is None:
            return True
        now += plan.requeue_ms
    return now - began >= LEAST_MS


def ask(world: World, before: str = "ToolCall", patience: int | None = None) -> None:
    key = f"{before}:{world.state.offset}"
    until = None if patience is None else world.now + patience
    said = {"key": key, "name": "shell", "before": before, "subject": "bash", "reject_at": until}
    world.note(T.APPROVAL_REQUESTED, said)


def settle(world: World) -> World:
    for _ in range(30):
        if not world.step():
            return world
    raise AssertionError(world.plan())


def at_its_delivery() -> World:
    world = started(acceptance=(), approvals=(PUSH,), limits=ResolvedLimits(wall_clock_ms=HOUR))
    world.work()
    assert settle(world).state.phase is RunPhase.AWAITING_APPROVAL
    return world


def being_cancelled() -> World:
    world = running()
    ask(world)
    world.cancel = True
    world.step()
    return world


def cancelled_past_its_deadline() -> World:
    world = running()
    world.spec = world.spec.model_copy(
        update={"timeouts": world.spec.timeouts.model_copy(update={"deadline_ms": HOUR})}
    )
    world.cancel = True
    world.step()
    return world


def without_its_sandbox() -> World:
    """Its attempt is lost, and the next one waits for its time."""
    world = running()
    ask(world)
    world.now += 30_000
    runner = world.sandbox("runner")
    assert runner is not None
    world.set_pod(runner, phase=SandboxPhase.ENDED)
    world.step()
    return world


@pytest.mark.parametrize("make", [at_its_delivery, being_cancelled, cancelled_past_its_deadline, without_its_sandbox])
@pytest.mark.parametrize("later", [0, 31_000, 61_000, 2 * HOUR])
def test_a_run_that_waits_is_not_looked_at_all_the_time(make: Callable[[], World], later: int) -> None:
    world = make()
    assert waits_patiently(world.observed(), world.now + later)


def sandboxes_run(world: World) -> None:
    for view in list(world.pods.values()):
        if view.phase is SandboxPhase.WAITING:
            world.run_pod(view)


def sandboxes_end(world: World) -> None:
    for view in list(world.pods.values()):
        world.set_pod(view, phase=SandboxPhase.ENDED)


MOVES: tuple[Callable[[World, int], object], ...] = (
    lambda world, _: world.step(),
    lambda world, _: world.step(),
    lambda world, ms: setattr(world, "now", world.now + ms),
    lambda world, ms: ask(world, "Egress", ms),
    lambda world, ms: ask(world, "ToolCall", ms),
    lambda world, _: ask(world, "Cost"),
    lambda world, _: world.work(),
    lambda world, _: world.finish("failed"),
    lambda world, _: world.ask_to_pause(),
    lambda world, _: world.ask_to_go_on(),
    lambda world, ms: setattr(world, "suspend", ms % 2 == 0),
    lambda world, ms: setattr(world, "cancel", world.cancel or ms % 5 == 0),
    lambda world, _: sandboxes_run(world),
    lambda world, _: sandboxes_end(world),
)


@given(
    clock=st.none() | st.integers(1, HOUR),
    moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(1, 2 * HOUR)), max_size=30),
)
@settings(max_examples=300, deadline=None)
def test_no_history_makes_a_run_that_is_looked_at_all_the_time(
    clock: int | None, moves: list[tuple[Callable[[World, int], object], int]]
) -> None:
    world = provisioning(acceptance=(), approvals=(PUSH,), limits=ResolvedLimits(wall_clock_ms=clock))
    for move, ms in moves:
        if world.state.end is None:
            move(world, ms)
        assert waits_patiently(world.observed(), world.now)
