"""T6: which questions outlive the attempt that asked them, and what its next one has to wait for."""

from dataclasses import replace

import pytest
from tests.property.run_world import T, World
from tests.run_plans import records, started
from tests.unit.test_run_approvals import (
    BASH,
    HOUR,
    PUSH,
    answer,
    asked,
    asked_for_a_host,
    at_delivery,
    at_work,
    settle,
)

from moorage.core.journal.chain import MAX_ID
from moorage.core.run import actions as a
from moorage.core.run.approving import PARK_MS
from moorage.core.run.phases import RunPhase


@pytest.mark.rule("T6")
@pytest.mark.parametrize("outcome", ["completed", "failed", "exhausted"])
def test_an_agent_that_has_ended_takes_its_questions_with_it(outcome: str) -> None:
    world = at_work()
    asked_for_a_host(world)
    asked(world, "cost:spend:1", name="spend", before="Cost")
    assert world.state.phase is RunPhase.AWAITING_APPROVAL
    world.report("end", T.AGENT_FINISHED, {"outcome": outcome, "reason": "Exited"})
    assert (world.state.phase, world.state.consents) == (RunPhase.RUNNING, ())
    asked(world)
    assert world.state.consents == ()
    assert world.state.usage.human_approvals == 0


@pytest.mark.rule("T6")
@pytest.mark.parametrize("outcome", ["paused", "unknown"])
def test_one_that_is_gone_on_from_leaves_its_questions_to_the_next(outcome: str) -> None:
    world = at_work()
    asked(world)
    world.report("end", T.AGENT_FINISHED, {"outcome": outcome, "reason": "Exited"})
    assert [each.key for each in world.state.consents if each.pending] == ["tool:1.0"]


def next_attempt(world: World) -> World:
    """The first one is lost, and another agent is at work."""
    lost = world.state.epoch
    world.note(T.ATTEMPT_ENDED, {"epoch": lost, "role": "runner", "reason": "NodeLost"})
    world.raise_fence(lost + 1, lost + 1, "Recovery")
    while not (runner := world.sandbox("runner")):
        assert world.step()
    world.run_pod(runner)
    world.report("agent", T.AGENT_STARTED, {})
    return world


@pytest.mark.rule("T6")
def test_a_question_that_a_new_attempt_does_not_come_to_keeps_it_from_nothing() -> None:
    world = at_work()
    asked_for_a_host(world)
    asked(world)
    next_attempt(world)
    assert [each.key for each in world.state.consents] == ["tool:1.0"]
    world.now += 2 * PARK_MS
    assert (T.PAUSE_REQUESTED, "Approval") not in records(world.plan())
    asked(world, "tool:1.1")
    answer(world, "approved", "tool:1.1")
    assert world.state.phase is RunPhase.RUNNING
    world.report("safe", T.ITERATION_COMPLETE, {"iteration": 1})
    assert [each.key for each in world.state.consents] == ["tool:1.1"]


@pytest.mark.rule("T6")
def test_a_new_attempt_that_comes_to_an_earlier_question_waits_for_the_same_answer() -> None:
    world = at_work()
    asked(world, reject_at=world.now + HOUR)
    (first,) = world.state.consents
    next_attempt(world)
    world.now += PARK_MS
    asked(world, reject_at=world.now + 2 * HOUR)
    assert world.state.consents == (replace(first, epoch=2),)
    assert world.state.phase is RunPhase.AWAITING_APPROVAL
    assert (T.PAUSE_REQUESTED, "Approval") in records(world.plan())


@pytest.mark.rule("T6")
def test_a_new_attempt_that_is_to_do_something_else_there_asks_something_else() -> None:
    world = at_work()
    asked(world)
    (first,) = world.state.consents
    next_attempt(world)
    asked(world, subject="the tool write is to run")
    (second,) = world.state.consents
    assert (second.subject, second.offset > first.offset) == ("the tool write is to run", True)


@pytest.mark.rule("T6")
def test_what_is_asked_anew_is_asked_and_answered_by_records_of_their_own() -> None:
    """An id that was used before would be taken for the record that has it, and change nothing."""
    world = at_delivery(PUSH.model_copy(update={"name": "p" * 63, "reject_after_ms": HOUR}))
    world.step()
    assert [each.epoch for each in world.state.consents] == [1]
    next_attempt(world).work()
    world.step()
    assert [each.epoch for each in world.state.consents] == [2]
    world.now += HOUR
    plan = world.plan()
    assert all(len(each.record_id) <= MAX_ID for each in plan.actions if isinstance(each, a.Report))
    settle(world)
    assert world.state.end is not None
    assert world.state.end.reason == "ApprovalRejected"


@pytest.mark.rule("T6", "R1")
def test_a_lost_sandbox_takes_no_question_with_it_and_answers_none() -> None:
    world = started(approvals=(BASH,))
    world.gateway.as_runner("s", T.AGENT_STARTED, {}, 1, world.now)
    asked(world)
    world.note(T.ATTEMPT_ENDED, {"epoch": 1, "role": "runner", "reason": "NodeLost"})
    world.raise_fence(2, 2, "Recovery")
    world.gateway.as_runner("s2", T.AGENT_STARTED, {}, 2, world.now)
    assert [each.status for each in world.state.consents] == ["pending"]
    asked(world)  # as the next attempt does
    assert [each.status for each in world.state.consents] == ["pending"]
    answer(world, "approved")
    assert world.state.phase is RunPhase.RUNNING
