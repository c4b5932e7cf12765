"""T6: what waits for a person, by the plan: asked once, never taken for an answer, and in nobody's way meanwhile."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import BASE, HEAD, T, World
from tests.run_plans import records, started

from moorage.api.budget import ResolvedLimits
from moorage.api.runstatus import AgentRunStatus
from moorage.api.wire import ResolvedAgent, ResolvedApproval, ResolvedCheck, ResolvedParent
from moorage.core.approvals.consent import for_tool, unmet
from moorage.core.run import actions as a
from moorage.core.run.actions import Plan
from moorage.core.run.approving import PARK_MS, due
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.plan import decide
from moorage.core.run.status import project

HOUR = 3_600_000
PUSH = ResolvedApproval(name="push", before="Delivery")
SPEND = ResolvedApproval(name="spend", before="Cost", step_micros=10)
BASH = ResolvedApproval(name="shell", before="ToolCall", tools=("bash", "write*"))


def at_delivery(*approvals: ResolvedApproval) -> World:
    """A run whose agent has proposed a commit that nobody has to verify."""
    world = started(acceptance=(), approvals=approvals)
    world.work()
    return world


def settle(world: World, passes: int = 30) -> World:
    """Pass until nothing is left to do but to wait."""
    for _ in range(passes):
        if not world.step():
            return world
    raise AssertionError(world.plan())


def answer(world: World, outcome: str, key: str | None = None) -> None:
    pending = [each for each in world.state.consents if each.pending]
    said = {"key": key or pending[0].key, "outcome": outcome, "by": "ada", "reason": ""}
    world.note(T.APPROVAL_DECIDED, said)


def asked(world: World, key: str = "tool:1.0", **more: Any) -> None:
    said = {"key": key, "name": "shell", "before": "ToolCall", "subject": "the tool bash is to run", **more}
    world.note(T.APPROVAL_REQUESTED, said)


@pytest.mark.rule("T6")
def test_a_result_waits_for_its_approval_and_leaves_once_it_is_there() -> None:
    world = settle(at_delivery(PUSH))
    assert (world.state.phase, world.remote.pushes) == (RunPhase.AWAITING_APPROVAL, 0)
    world.now += 1000 * HOUR
    settle(world)
    status = project(world.observed(), world.plan(), AgentRunStatus(), world.now)
    assert (status.phase, status.reason) == ("AwaitingApproval", "AwaitingApproval")
    (consent,) = world.state.consents
    assert f"kubectl moorage approve fix push --question {consent.key} -n team-a, or" in (status.message or "")
    assert len([r for r in world.gateway.history if r.type == T.APPROVAL_REQUESTED]) == 1
    answer(world, "approved")
    settle(world)
    assert (world.state.phase, world.remote.pushes) == (RunPhase.SUCCEEDED, 1)


@pytest.mark.rule("T6")
def test_the_pass_that_asks_says_what_for() -> None:
    """The phase is new in its status, and so is the one Event that tells of it."""
    world = at_delivery(PUSH)
    while not world.state.consents:
        plan = world.plan()
        world.step()
    status = project(world.observed(), plan, AgentRunStatus(), world.now)
    assert (status.phase, status.reason) == ("AwaitingApproval", "AwaitingApproval")
    assert status.message == world.plan().message != ""


@pytest.mark.rule("T6", "S2")
def test_what_waits_for_its_approval_is_not_pushed_whoever_asks_for_it() -> None:
    world = settle(at_delivery(PUSH))
    with pytest.raises(IllegalMove):
        world.push("b" * 40)


@pytest.mark.rule("T6")
def test_a_refused_result_ends_the_run_and_is_kept() -> None:
    world = settle(at_delivery(PUSH))
    answer(world, "rejected")
    settle(world)
    assert world.state.end is not None
    assert (world.state.phase, world.state.end.reason) == (RunPhase.FAILED, "ApprovalRejected")
    assert world.state.end.commit is not None
    assert world.remote.pushes == 0


@pytest.mark.rule("T6")
def test_the_first_answer_stands() -> None:
    world = settle(at_delivery(PUSH))
    (consent,) = world.state.consents
    answer(world, "approved")
    answer(world, "rejected", consent.key)
    assert [each.status for each in world.state.consents] == ["approved"]


def test_nobody_answering_is_a_no_only_where_that_was_said() -> None:
    world = settle(at_delivery(PUSH.model_copy(update={"reject_after_ms": HOUR})))
    (consent,) = world.state.consents
    assert consent.reject_at is not None
    world.now = consent.reject_at - 1
    assert records(world.plan()) == []
    world.now += 1
    settle(world)
    assert world.state.end is not None
    assert "nobody answered" in world.state.end.message


def test_all_approvals_of_a_result_are_asked_for_one_after_the_other() -> None:
    world = settle(at_delivery(PUSH, PUSH.model_copy(update={"name": "legal"})))
    answer(world, "approved")
    settle(world)
    assert [(each.name, each.status) for each in world.state.consents] == [("push", "approved"), ("legal", "pending")]
    answer(world, "approved")
    settle(world)
    assert world.state.phase is RunPhase.SUCCEEDED


def with_limit(world: World, most: int) -> World:
    world.spec = world.spec.model_copy(update={"limits": ResolvedLimits(human_approvals_hard=most)})
    return world


@pytest.mark.rule("T6", "B2", "B3")
def test_a_result_for_which_nobody_may_be_asked_waits_for_the_raise_and_is_asked_for_then() -> None:
    world = settle(with_limit(at_delivery(PUSH, PUSH.model_copy(update={"name": "legal"})), 1))
    answer(world, "approved")
    settle(world)
    world.now += 1000 * HOUR
    settle(world)
    assert [each.name for each in world.state.consents] == ["push"]
    status = project(world.observed(), world.plan(), AgentRunStatus(), world.now)
    told = status.message or ""
    assert (status.reason, world.remote.pushes) == ("BudgetExhausted", 0)
    assert told.startswith(
        "nobody may be asked for the approval legal: the run's human approval limit of 1 is used up (1)"
    )
    assert '{"spec": {"constraints": {"humanApprovals": {"hard": 2}}}}' in told
    truths = {each.type: (each.status, each.reason) for each in status.conditions}
    assert truths["WithinBudget"] == ("False", "BudgetExhausted")
    assert truths["Stalled"][0] == "True", "somebody has to act"
    world.wanted = ResolvedLimits(human_approvals_hard=2)
    settle(world)
    answer(world, "approved")
    settle(world)
    assert (world.state.phase, world.remote.pushes) == (RunPhase.SUCCEEDED, 1)


@pytest.mark.rule("T6", "B3")
def test_a_child_for_whose_result_nobody_may_be_asked_has_ended() -> None:
    """Its limits aren't raised."""
    world = with_limit(at_delivery(PUSH), 0)
    above = ResolvedParent(uid="u-0", name="elder", commit=BASE)
    world.spec = world.spec.model_copy(update={"parent": above})
    settle(world)
    assert world.state.end is not None
    assert (world.state.phase, world.state.end.reason) == (RunPhase.FAILED, "BudgetExhausted")
    assert "is kept until the run is released" in world.state.end.message
    assert (world.remote.pushes, world.state.consents) == (0, ())


@pytest.mark.rule("X1")
def test_a_run_that_waits_can_be_cancelled() -> None:
    world = settle(at_delivery(PUSH))
    world.cancel = True
    for _ in range(30):
        world.step()
    assert (world.state.phase, world.remote.pushes) == (RunPhase.CANCELLED, 0)


@pytest.mark.rule("T6", "Q5")
def test_a_call_that_waits_lets_its_sandbox_go_and_comes_back_by_the_answer() -> None:
    world = started(approvals=(BASH,))
    runner = world.sandbox("runner")
    assert runner
    world.gateway.as_runner("s", T.AGENT_STARTED, {}, 1, world.now)
    asked(world)
    assert world.state.phase is RunPhase.AWAITING_APPROVAL
    assert world.plan().reason == "AwaitingApproval"
    world.now += PARK_MS
    assert records(world.plan()) == [(T.PAUSE_REQUESTED, "Approval")]
    world.step()
    world.stop(runner.name, runner.uid)
    settle(world)
    assert (world.state.phase, world.pods, world.lease) == (RunPhase.PAUSED, {}, None)
    world.now += 1000 * HOUR
    assert not any(isinstance(action, a.StartSandbox | a.Report) for action in world.plan().actions)
    answer(world, "approved")
    settle(world)
    assert world.state.epoch == 2
    assert world.sandbox("runner")


def asked_for_a_host(world: World, **more: Any) -> None:
    world.note(T.APPROVAL_REQUESTED, {"key": "host:x", "name": "shop", "before": "Egress", "subject": "x", **more})


def parked(world: World) -> World:
    """Its runner does as it is told, where it is told to stop."""
    runner = world.sandbox("runner")
    assert runner
    world.now += PARK_MS
    world.step()
    world.stop(runner.name, runner.uid)
    return settle(world)


def at_work() -> World:
    world = started(approvals=(BASH,))
    world.gateway.as_runner("s", T.AGENT_STARTED, {}, 1, world.now)
    return world


@pytest.mark.rule("T6")
def test_each_question_has_a_time_of_its_own() -> None:
    world = at_work()
    asked_for_a_host(world)
    for key, at in (("tool:1.1", 900), ("tool:1.0", 500)):
        asked(world, key, reject_at=world.now + at)
    assert world.plan().requeue_ms == 500
    world.now += 900
    settle(world)
    assert [each.status for each in world.state.consents] == ["pending", "rejected", "rejected"]


@pytest.mark.rule("T6", "Q5")
def test_a_sandbox_is_let_go_by_the_question_that_it_waits_for_and_comes_back_by_its_answer() -> None:
    world = at_work()
    asked_for_a_host(world)
    asked(world)
    assert "approve fix shell" in world.plan().message
    assert (world.plan().requeue_ms or 0) <= PARK_MS
    parked(world)
    assert (world.state.phase, world.plan().message) == (
        RunPhase.PAUSED,
        "waits for the approval shell: the tool bash is to run:"
        " kubectl moorage approve fix shell --question tool:1.0 -n team-a, or reject",
    )
    answer(world, "approved", "tool:1.0")
    settle(world)
    assert (world.state.epoch, [each.status for each in world.state.consents]) == (2, ["approved"])


@pytest.mark.rule("T6")
def test_a_new_attempt_waits_as_long_for_its_answer_as_the_first_did() -> None:
    world = at_work()
    asked(world)
    world.now += PARK_MS - 1
    world.note(T.ATTEMPT_ENDED, {"epoch": 1, "role": "runner", "reason": "NodeLost"})
    world.raise_fence(2, 2, "Recovery")
    world.now += 1
    assert (T.PAUSE_REQUESTED, "Approval") not in records(world.plan())


@pytest.mark.rule("Q5")
def test_who_pauses_a_run_that_waits_for_an_answer_has_it_stand_after_that_too() -> None:
    world = at_work()
    asked(world)
    parked(world)
    assert world.ask_to_pause("Command")
    answer(world, "approved")
    settle(world)
    assert (world.state.phase, world.plan().reason) == (RunPhase.PAUSED, "Command")
    assert world.ask_to_go_on()
    settle(world)
    assert world.state.epoch == 2


# --- nobody who waits -------------------------------------------------------------------------------------------------


def proposed_while_a_question_waits(*approvals: ResolvedApproval, acceptance: Any = ()) -> World:
    world = started(acceptance=acceptance, approvals=(*approvals, SPEND))
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    world.report("agent", T.AGENT_STARTED, {})
    asked(world, "cost:spend:1", name="spend", before="Cost")
    world.report("end", T.AGENT_FINISHED, {"outcome": "completed", "reason": "Exited"})
    said = {"commit": HEAD, "tree": HEAD, "base": BASE, "empty": False, "files": 1}
    world.report("result", T.RESULT_PROPOSED, said)
    return world


@pytest.mark.rule("T6")
def test_a_question_of_an_agent_that_is_done_holds_nobody_up() -> None:
    world = proposed_while_a_question_waits(acceptance=(ResolvedCheck(name="tests", run="true"),))
    assert world.state.phase is RunPhase.VERIFYING
    world.now += PARK_MS
    assert (T.PAUSE_REQUESTED, "Approval") not in records(world.plan())
    asked(world, "cost:spend:2", name="spend", before="Cost")
    assert world.state.phase is RunPhase.VERIFYING


@pytest.mark.rule("T6")
def test_an_approved_result_leaves_whatever_else_its_agent_has_asked() -> None:
    world = proposed_while_a_question_waits(PUSH)
    runner = world.sandbox("runner")
    assert runner
    world.stop(runner.name, runner.uid)
    settle(world)
    answer(world, "approved", next(each.key for each in world.state.consents if each.before == "Delivery"))
    settle(world)
    assert (world.state.phase, world.remote.pushes) == (RunPhase.SUCCEEDED, 1)


# --- when to look again -----------------------------------------------------------------------------------------------


def idles(world: World) -> bool:
    """Nothing is to be done, and nobody looks for it every moment."""
    settle(world)
    return (world.plan().requeue_ms or HOUR) >= 100


def test_a_result_that_waits_is_not_looked_at_without_rest_once_its_wall_clock_is_over() -> None:
    world = started(acceptance=(), approvals=(PUSH,), limits=ResolvedLimits(wall_clock_ms=HOUR))
    world.work()
    settle(world)
    world.now += 2 * HOUR
    assert idles(world)


def test_neither_is_a_question_whose_time_is_over_while_nothing_follows_from_it() -> None:
    world = at_work()
    asked(world, reject_at=world.now + 1)
    world.cancel = True
    world.step()
    world.now += PARK_MS + 1
    assert world.state.cancel_stage is not None
    assert due(world.state, world.now) is None


def in_silence(world: World) -> Plan:
    """The plan for an attempt that lives, and of which nothing new has been seen for as long as that may last."""
    assert world.lease is not None
    world.lease = replace(world.lease, renewed_at=world.now)
    since = world.now - world.spec.timeouts.no_progress_ms - 1
    return decide(replace(world.observed(), progress_seen_at=since), world.now)


def test_neither_is_an_attempt_that_is_silent_because_a_question_waits() -> None:
    world = at_work()
    asked(world)
    plan = in_silence(world)
    assert (plan.actions, plan.reason) == ((), "AwaitingApproval")
    assert (plan.requeue_ms or 0) >= 100


@pytest.mark.rule("T6")
def test_an_agent_that_hangs_is_ended_whatever_host_it_has_asked_for() -> None:
    world = at_work()
    asked_for_a_host(world)
    assert records(in_silence(world)) == [(T.ATTEMPT_ENDED, "NoProgress")]


@pytest.mark.rule("T6")
def test_an_answer_about_a_host_is_good_for_the_run_however_many_calls_follow() -> None:
    world = at_work()
    asked_for_a_host(world)
    answer(world, "approved")
    for n in range(40):
        asked(world, f"tool:1.{n}")
        answer(world, "approved")
    assert [each.status for each in world.state.consents if each.before == "Egress"] == ["approved"]
    assert sum(each.before == "ToolCall" for each in world.state.consents) == 32


@pytest.mark.parametrize(("tool", "needs"), [("bash", True), ("write_file", True), ("read", False), ("rebash", False)])
def test_tools_are_named_by_patterns(tool: str, needs: bool) -> None:
    assert (for_tool((PUSH, BASH), tool) is not None) is needs
    assert for_tool((PUSH,), tool) is None
    assert for_tool((ResolvedApproval(name="all", before="ToolCall"),), tool) is not None


def test_another_commit_is_another_question() -> None:
    world = settle(at_delivery(PUSH))
    answer(world, "approved")
    commit = world.state.proposal.commit if world.state.proposal else ""
    assert unmet((PUSH,), world.state.consents, commit) is None
    assert unmet((PUSH,), world.state.consents, "c" * 40) == PUSH
    assert unmet((BASH,), (), commit) is None


@pytest.mark.rule("T6", "B3")
@pytest.mark.parametrize(
    ("driver", "safe_points", "parks"), [("command", 0, False), ("command", 1, True), ("codex", 0, True)]
)
def test_a_program_that_would_begin_anew_keeps_its_sandbox_while_its_next_request_waits(
    driver: str, safe_points: int, parks: bool
) -> None:
    world = started(approvals=(SPEND,), agent=ResolvedAgent(driver=driver, command=("true",)))
    world.gateway.as_runner("s", T.AGENT_STARTED, {}, 1, world.now)
    for n in range(safe_points):
        world.note(T.ITERATION_COMPLETE, {"iteration": n + 1})
    asked(world, "cost:spend:1", name="spend", before="Cost")
    world.now += PARK_MS
    assert (records(world.plan()) == [(T.PAUSE_REQUESTED, "Approval")]) == parks
    assert world.plan().reason == ("" if parks else "AwaitingApproval")
    answer(world, "approved")
    assert records(world.plan()) == []
