"""T6, B3: what a refusal to spend on comes to: the run stands, says what to do, and can be brought to ask anew."""

from dataclasses import replace

import pytest
from tests.property.run_world import BASE, START, T, World, a_spec
from tests.run_plans import started
from tests.unit.test_run_approvals import SPEND, answer, asked, at_work, parked, settle

from moorage.api.agentrun import ParentRef
from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedRun
from moorage.core.approvals.consent import cost_key
from moorage.core.run.approving import refused_to_spend as refusal
from moorage.core.run.observed import Problem
from moorage.core.run.parents import Parent, child_of
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
        "spending on was refused by ada: no; to be asked anew: kubectl moorage resume fix -n team-a; to end it:"
        " kubectl moorage cancel fix -n team-a"
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


# --- with children ----------------------------------------------------------------------------------------------------


def share_of(world: World, **limits: int) -> int | None:
    """The cost that a child of the run would get now; None where it has to wait."""
    spec = a_spec(uid="u-0", name="elder", approvals=(SPEND,))
    asked, parent = ResolvedLimits(**limits), parent_of(spec, world)
    found = child_of(a_spec(limits=asked), asked, ParentRef(name="elder"), START, parent)
    if isinstance(found, Problem):
        assert (found.reason, found.stalled) == ("ParentBudget", False)
        return None
    return found.limits.cost_hard_micros


def parent_of(spec: ResolvedRun, world: World) -> Parent:
    return Parent(spec, replace(world.state, workspace_base=BASE), START, 0)


@pytest.mark.rule("T6", "B3")
def test_no_child_gets_more_than_is_left_of_the_step_that_somebody_has_allowed() -> None:
    world = started(approvals=(SPEND,))
    world.report("agent", T.AGENT_STARTED, {})
    assert (share_of(world), share_of(world, cost_hard_micros=11)) == (5, None)
    world.report("kid", T.CHILD_STARTED, {"uid": "u-9", "name": "kid", "reserve": {"cost_micros": 6}})
    assert (share_of(world), share_of(world, cost_hard_micros=4)) == (2, 4)
    world.report("model", T.MODEL_RESPONSE, {"usage": {"cost_micros": 4}})
    assert share_of(world) is None
    asked(world, cost_key("spend", 1), name="spend", before="Cost")
    assert share_of(world) is None
    answer(world, "approved", cost_key("spend", 1))
    assert share_of(world) == 5


@pytest.mark.rule("T6", "O6")
def test_what_was_reserved_for_it_is_its_cost_limit_where_only_an_approval_limits_it() -> None:
    world = started(approvals=(SPEND,))
    world.report("kid", T.CHILD_STARTED, {"uid": "u-1", "name": "fix", "reserve": {"cost_micros": 6}})
    assert share_of(world) == 6


@pytest.mark.rule("T6", "B3")
def test_a_refusal_of_a_step_counts_what_children_may_spend() -> None:
    world = started(approvals=(SPEND,))
    world.report("agent", T.AGENT_STARTED, {})
    world.report("kid", T.CHILD_STARTED, {"uid": "u-9", "name": "kid", "reserve": {"cost_micros": 10}})
    asked(world, cost_key("spend", 1), name="spend", before="Cost")
    answer(world, "rejected", cost_key("spend", 1))
    assert "refused by" in (refusal(world.spec, world.state) or "")
    world.report("over", T.CHILD_ENDED, {"uid": "u-9", "name": "kid", "outcome": "Failed", "used": {}, "commit": None})
    assert refusal(world.spec, world.state) is None
