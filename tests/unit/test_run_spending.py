"""T6, B3: what a refusal to spend on comes to: the run stands, says what to do, and can be brought to ask anew."""

import pytest
from tests.property.run_world import T, World
from tests.run_plans import started
from tests.unit.test_run_approvals import SPEND, answer, asked, at_work, parked, settle

from moorage.core.approvals.consent import cost_key
from moorage.core.run.phases import RunPhase


def refused_to_spend(outcome: str, by: str = "ada") -> World:
    """Its agent has ended, since nothing more of its model is to be had."""
    world = started(approvals=(SPEND,))
    world.report("agent", T.AGENT_STARTED, {})
    world.report("model", T.MODEL_RESPONSE, {"usage": {"cost_micros": 10}})
    asked(world, cost_key("spend", 1), name="spend", before="Cost")
    world.note(T.APPROVAL_DECIDED, {"key": cost_key("spend", 1), "outcome": "rejected", "by": by, "reason": "no"})
    world.report("end", T.AGENT_FINISHED, {"outcome": outcome, "reason": "BudgetExhausted", "message": "m"})
    runner = world.sandbox("runner")
    assert runner
    world.stop(runner.name, runner.uid)
    return settle(world)


@pytest.mark.rule("T6", "B3")
@pytest.mark.parametrize("outcome", ["exhausted", "failed"])
def test_who_was_refused_to_spend_on_stands_and_is_asked_anew_once_it_is_let_go_on(outcome: str) -> None:
    world = refused_to_spend(outcome)
    plan = world.plan()
    assert (world.state.phase, plan.reason) == (RunPhase.PAUSED, "BudgetExhausted")
    assert plan.message == (
        "spending on was refused by ada: no; to be asked anew: kubectl moorage resume fix; to end it: kubectl moorage"
        " cancel fix"
    )
    assert world.ask_to_go_on()
    settle(world)
    assert (world.state.epoch, world.state.consents) == (2, ())
    world.report("agent", T.AGENT_STARTED, {})
    asked(world, cost_key("spend", 1), name="spend", before="Cost")
    answer(world, "approved")
    assert (world.state.phase, world.state.consents[0].status) == (RunPhase.RUNNING, "approved")


@pytest.mark.rule("T6")
def test_a_no_to_a_run_that_is_paused_for_the_question_is_no_reason_to_ask_it_anew() -> None:
    world = at_work()
    asked(world, cost_key("spend", 1), name="spend", before="Cost")
    parked(world)
    answer(world, "rejected")
    settle(world)
    assert (world.state.epoch, [each.status for each in world.state.consents]) == (2, ["rejected"])
