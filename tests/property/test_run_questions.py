"""T6: however questions are asked, answered and outlived, no plan is ever refused, and none waits for nobody."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.run_world import T, World, drive
from tests.run_plans import records, running

from moorage.api.wire import ResolvedApproval, ResolvedCheck
from moorage.core.approvals.consent import DELIVERY, Consent, parking
from moorage.core.approvals.reducing import ended
from moorage.core.run.approving import PARK_MS
from moorage.core.run.observed import SandboxPhase
from moorage.core.run.phases import RunPhase

HOUR = 3_600_000
PUSH = ResolvedApproval(name="push", before="Delivery", reject_after_ms=24 * HOUR)
TESTS = ResolvedCheck(name="tests", run="true")
KINDS = ("ToolCall", "Cost", "Egress")


def pending(world: World) -> list[Consent]:
    return [each for each in world.state.consents if each.pending]


def ask(world: World, n: int) -> None:
    """One of a few, so that the same is asked again: by the same attempt, by the next one, and after its answer."""
    said = {"key": f"{n % 6}", "name": "each", "before": KINDS[n % 3], "subject": "s"}
    patience = {} if n % 2 else {"reject_at": world.now + PARK_MS}
    world.report(f"ask:{len(world.gateway.history)}", T.APPROVAL_REQUESTED, said | patience)


def answer(world: World, n: int) -> None:
    for each in pending(world)[n % 3 : n % 3 + 1]:
        outcome = "approved" if n % 4 else "rejected"
        world.note(T.APPROVAL_DECIDED, {"key": each.key, "outcome": outcome, "by": "ada", "reason": ""})


def end(world: World, n: int) -> None:
    world.finish(("completed", "completed", "failed", "exhausted", "paused", "unknown")[n % 6])


def works_on(world: World, n: int) -> None:
    world.report(f"safe:{len(world.gateway.history)}", T.ITERATION_COMPLETE, {"iteration": world.state.iteration + 1})


def sandboxes_move(world: World, n: int) -> None:
    for view in list(world.pods.values()):
        if view.phase is SandboxPhase.WAITING:
            world.run_pod(view)
            world.report("agent", T.AGENT_STARTED, {})
        elif n % 2:
            world.set_pod(view, phase=SandboxPhase.ENDED)


def judged(world: World, n: int) -> None:
    if world.sandbox("verifier") is not None and world.state.proposal is not None:
        world.judge(passed=n % 3 > 0)


MOVES: tuple[Callable[[World, int], object], ...] = (
    lambda world, _: world.step(),
    lambda world, _: world.step(),
    ask,
    ask,
    answer,
    end,
    works_on,
    sandboxes_move,
    judged,
    lambda world, n: setattr(world, "now", world.now + n * PARK_MS // 2),
    lambda world, _: world.ask_to_pause(),
    lambda world, _: world.ask_to_go_on(),
)


def nobody_waits_for_nothing(world: World) -> None:
    state = world.state
    if ended(state):
        assert {each.before for each in pending(world)} <= {DELIVERY}
    if state.phase is RunPhase.AWAITING_APPROVAL:
        assert any(each.epoch == state.epoch for each in pending(world))
    if (T.PAUSE_REQUESTED, "Approval") in records(world.plan()):
        assert parking(state.consents, state.epoch)


def comes_to_its_end(world: World) -> None:
    """The result is allowed, and no other question is answered by anybody."""
    for _ in range(40):
        for each in pending(world):
            if each.before == DELIVERY:
                world.note(T.APPROVAL_DECIDED, {"key": each.key, "outcome": "approved", "by": "ada"})
        if drive(world, passes=40).end is not None:
            return
    raise AssertionError(world.plan())


@pytest.mark.rule("T6", "S2")
@given(
    acceptance=st.booleans(),
    moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 11)), max_size=40),
)
@settings(max_examples=300, deadline=None)
def test_no_question_stands_in_the_way_of_a_plan(
    acceptance: bool, moves: list[tuple[Callable[[World, int], object], int]]
) -> None:
    world = running(acceptance=(TESTS,) if acceptance else (), approvals=(PUSH,), max_attempts=8)
    for move, n in moves:
        if world.state.end is None:
            move(world, n)
        nobody_waits_for_nothing(world)
    comes_to_its_end(world)
