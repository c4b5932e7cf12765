"""O2, F5, B3, X2, N3: what a run becomes by being a child, and how a parent's plan waits for its children."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import BASE, HEAD, START, T, World, a_spec
from tests.run_plans import kinds, observed, records, running

from moorage.api.agent import Agent
from moorage.api.agentrun import AgentRun, ParentRef
from moorage.api.budget import ResolvedLimits
from moorage.api.wire import (
    ResolvedParent,
    ResolvedRun,
    ResolvedTimeouts,
    ResolvedWorkspace,
)
from moorage.core.approvals.consent import Consent
from moorage.core.constraints.context import used
from moorage.core.constraints.telling import budget_of
from moorage.core.journal.plain import plain, restored
from moorage.core.run import actions as a
from moorage.core.run.family import KEPT_ENDED, Child, Share, kept, share_of
from moorage.core.run.observed import Problem
from moorage.core.run.parenthood import PATIENCE_MS
from moorage.core.run.parents import MAX_DEPTH, Parent, child_of
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.plan import decide
from moorage.core.run.resolve import Defaults, References, read_run, resolve
from moorage.core.run.state import Checkpoint, RunState

POINT = Checkpoint("c" * 40, "d" * 40, 3, 1)
STATE = RunState(phase=RunPhase.RUNNING, epoch=1, attempt=1, workspace_base=BASE, checkpoint=POINT)
REF = ParentRef(name="elder")


def a_parent(state: RunState = STATE, iterations: int = 0, **spec: Any) -> Parent:
    return Parent(a_spec(uid="u-0", name="elder", **spec), state, START, iterations)


def child(parent: Parent | None, ref: ParentRef = REF, created_at: int = START, **spec: Any) -> ResolvedRun | Problem:
    """Its limits are all its own."""
    own = a_spec(**spec)
    return child_of(own, own.limits, ref, created_at, parent)


def accepted(parent: Parent, ref: ParentRef = REF, created_at: int = START, **spec: Any) -> ResolvedRun:
    found = child(parent, ref, created_at, **spec)
    assert isinstance(found, ResolvedRun), found
    return found


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    ("start", "state", "commit"),
    [("Checkpoint", STATE, POINT.commit), ("Base", STATE, BASE), ("Checkpoint", replace(STATE, checkpoint=None), BASE)],
)
def test_a_child_starts_where_it_says(start: Any, state: RunState, commit: str) -> None:
    found = accepted(a_parent(state), ParentRef(name="elder", start=start))
    assert found.parent == ResolvedParent(uid="u-0", name="elder", commit=commit, depth=1)


def test_a_child_works_in_its_parents_repository() -> None:
    git = ResolvedWorkspace(key="web", kind="remote_git", url="https://git.example/web.git")
    found = child(a_parent(workspace=git))
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("ParentWorkspaceDiffers", True)
    empty = ResolvedWorkspace(key="its-own", kind="ephemeral")
    assert accepted(a_parent(), workspace=empty).workspace.key == "k"
    assert accepted(a_parent(workspace=git), workspace=git).workspace == git


@pytest.mark.parametrize(
    ("parent", "reason", "stalled"),
    [
        (None, "ParentNotFound", False),
        (a_parent(replace(STATE, checkpoint=None, workspace_base=None)), "ParentNotReady", False),
        (Parent(a_spec(), STATE, START, 0), "ParentNotFound", True),
        (a_parent(parent=ResolvedParent(uid="u", name="n", commit=BASE, depth=MAX_DEPTH)), "ParentTooDeep", True),
    ],
)
def test_what_keeps_a_run_from_being_a_child(parent: Parent | None, reason: str, stalled: bool) -> None:
    found = child(parent)
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == (reason, stalled)


@pytest.mark.rule("F5")
@pytest.mark.parametrize(
    ("theirs", "own", "later", "left"),
    [
        (None, 9_000, 0, 9_000),
        (60_000, None, 0, 60_000),
        (60_000, None, 20_000, 40_000),
        (60_000, 90_000, 20_000, 40_000),
        (60_000, 10_000, 20_000, 10_000),
        (60_000, None, 90_000, 0),
    ],
)
def test_a_childs_deadline_is_never_later_than_its_parents(
    theirs: int | None, own: int | None, later: int, left: int
) -> None:
    parent = a_parent(timeouts=ResolvedTimeouts(deadline_ms=theirs))
    found = accepted(parent, created_at=START + later, timeouts=ResolvedTimeouts(deadline_ms=own))
    assert found.timeouts.deadline_ms == left


@pytest.mark.rule("B3")
def test_a_child_has_the_share_that_it_asks_for_or_half_of_what_is_left() -> None:
    state = replace(
        STATE,
        usage=replace(STATE.usage, output_tokens=100, cost_micros=10),
        children=(Child("u-9", "other", Share(tokens=300)),),
        children_used=Share(tokens=200),
    )
    limits = ResolvedLimits(tokens_hard=1_000, cost_hard_micros=110, max_iterations=10)
    found = accepted(a_parent(state, 4, limits=limits), limits=ResolvedLimits(cost_hard_micros=100, effects_hard=7))
    assert found.limits == ResolvedLimits(tokens_hard=200, cost_hard_micros=100, max_iterations=3, effects_hard=7)


@pytest.mark.rule("B3")
@pytest.mark.parametrize("asked", [401, None])
def test_more_than_is_left_waits_for_a_sibling(asked: int | None) -> None:
    spent = 600 if asked else 999
    state = replace(STATE, usage=replace(STATE.usage, output_tokens=spent))
    found = child(a_parent(state, limits=ResolvedLimits(tokens_hard=1_000)), limits=ResolvedLimits(tokens_hard=asked))
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("ParentBudget", False)


@pytest.mark.rule("B3")
def test_a_child_does_without_what_there_is_too_little_of_to_halve() -> None:
    limits = ResolvedLimits(tokens_hard=1_000, effects_hard=1, egress_hard_bytes=0, human_approvals_hard=1)
    assert accepted(a_parent(limits=limits)).limits == ResolvedLimits(
        tokens_hard=500, effects_hard=0, egress_hard_bytes=0, human_approvals_hard=0
    )
    found = child(a_parent(limits=limits), limits=ResolvedLimits(effects_hard=2))
    assert isinstance(found, Problem)
    assert found.reason == "ParentBudget"


@pytest.mark.rule("B2", "B3")
def test_what_requests_under_way_may_come_to_is_not_divided() -> None:
    parent = replace(a_parent(limits=ResolvedLimits(tokens_hard=1_000)), reserved=Share(tokens=900))
    assert accepted(parent, limits=ResolvedLimits()).limits.tokens_hard == 50
    found = child(parent, limits=ResolvedLimits(tokens_hard=101))
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("ParentBudget", False)


@pytest.mark.rule("B2", "B3", "T6")
def test_questions_that_wait_are_not_divided() -> None:
    waiting = (
        Consent("a", "shell", "ToolCall", "s", "pending", 0),
        Consent("b", "shell", "ToolCall", "s", "pending", 0),
    )
    state = replace(STATE, usage=replace(STATE.usage, human_approvals=1), consents=waiting)
    limits = ResolvedLimits(human_approvals_hard=7)
    assert accepted(a_parent(state, limits=limits)).limits.human_approvals_hard == 2
    found = child(a_parent(state, limits=limits), limits=ResolvedLimits(human_approvals_hard=5))
    assert isinstance(found, Problem)
    assert found.message.startswith("of the parent's human approval budget 4 is left")


def delivering(state: RunState, most: int, needed: int) -> ResolvedRun | Problem:
    """A run by hand with so many approvals before its delivery, of a parent that may ask `most` questions."""
    spec = {
        "workspace": {"remoteGit": {"url": "https://git.example/web.git"}},
        "goal": "g",
        "agentRef": {"name": "coder"},
        "delivery": {},
        "approvals": [{"name": f"push-{n}", "before": "Delivery"} for n in range(needed)],
    }
    agent = Agent.model_validate({"metadata": {"name": "coder"}, "spec": {"driver": "command", "command": ["true"]}})
    refs = References(agent=agent, drivers=frozenset({"command"}))
    meta = {"name": "fix", "namespace": "team-a", "uid": "u-1", "generation": 1}

    def read(spec: dict[str, Any]) -> AgentRun:
        found = read_run({"metadata": meta, "spec": spec})
        assert isinstance(found, AgentRun), found
        return found

    alone = resolve(read(spec), refs, Defaults())
    assert isinstance(alone, ResolvedRun), alone
    parent = a_parent(state, workspace=alone.workspace, limits=ResolvedLimits(human_approvals_hard=most))
    return resolve(read(spec | {"parentRef": {"name": "elder"}}), replace(refs, parent=parent), Defaults())


@pytest.mark.rule("B3", "T6")
@pytest.mark.parametrize(("most", "needed", "share"), [(1, 1, 1), (3, 2, 2), (10, 2, 5), (1, 0, 0)])
def test_a_childs_share_of_the_questions_is_what_its_delivery_asks_at_least(most: int, needed: int, share: int) -> None:
    found = delivering(STATE, most, needed)
    assert isinstance(found, ResolvedRun), found
    assert found.limits.human_approvals_hard == share


@pytest.mark.rule("B3", "T6")
def test_a_child_whose_delivery_asks_for_more_than_is_left_waits_before_it_works() -> None:
    state = replace(STATE, usage=replace(STATE.usage, human_approvals=2))
    found = delivering(state, 3, 2)
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("ParentBudget", False)
    assert "1 is left" in found.message
    assert "its delivery asks for 2" in found.message


@pytest.mark.rule("B3", "T6", "O6")
def test_a_child_with_a_share_that_no_delivery_could_come_of_is_not_admitted() -> None:
    """One that was reserved before says as little as any other."""
    state = replace(STATE, children=(Child("u-1", "fix", Share(human_approvals=1)),))
    found = delivering(state, 9, 2)
    assert isinstance(found, Problem)
    assert (found.reason, found.stalled) == ("ConstraintInvalid", True)
    assert isinstance(delivering(state, 9, 1), ResolvedRun)


@pytest.mark.rule("B2", "O6")
def test_what_was_reserved_for_it_is_its_limit_whatever_is_left_now() -> None:
    state = replace(STATE, children=(Child("u-1", "fix", Share(tokens=250)),), children_used=Share(tokens=740))
    found = accepted(a_parent(state, limits=ResolvedLimits(tokens_hard=1_000)), limits=ResolvedLimits(tokens_hard=900))
    assert found.limits.tokens_hard == 250


# --- the parent's state -----------------------------------------------------------------------------------------------

RESERVE = {
    "tokens": 500,
    "cost_micros": 40,
    "iterations": 5,
    "tool_calls": 6,
    "effects": 1,
    "egress_bytes": 9,
    "human_approvals": 2,
}
USED = {"tokens": 120, "cost_micros": 11, "iterations": 2, "tool_calls": 3}


def with_child(world: World, uid: str = "u-9") -> World:
    world.report(f"child {uid}", T.CHILD_STARTED, {"uid": uid, "name": f"run-{uid}", "reserve": RESERVE})
    return world


def child_ends(world: World, uid: str = "u-9", times: str = "") -> None:
    payload = {"uid": uid, "name": f"run-{uid}", "outcome": "Succeeded", "used": USED, "commit": HEAD}
    world.report(f"over {uid}{times}", T.CHILD_ENDED, payload)


@pytest.mark.rule("B2", "B3")
def test_a_share_counts_as_used_until_it_is_settled_at_what_was() -> None:
    world = with_child(running())
    context = used(world.state, iterations=1, wall_ms=0, asking={})
    assert (context.tokens, context.cost_micros, context.iterations) == (500, 40, 6)
    assert (context.tool_calls, context.effects, context.egress_bytes, context.human_approvals) == (6, 1, 9, 2)
    told = budget_of(world.spec.limits, context, world.state)
    assert {name: told.used[name] - amount for name, amount in told.given.items()} == dict.fromkeys(told.given, 0) | {
        "iterations": 1
    }
    child_ends(world)
    child_ends(world, times=" again")
    assert world.state.given_away == world.state.children_used == share_of(USED)
    assert used(world.state, iterations=1, wall_ms=0, asking={}).tokens == 120
    assert world.state.usage.tokens == 0, "a run's own usage is what its tenant is charged for it"
    assert restored(RunState, plain(world.state)) == world.state


def test_a_child_is_started_once_and_none_while_they_are_to_end() -> None:
    world = with_child(running())

    def start(key: str, uid: str) -> None:
        world.gateway.append(key, T.CHILD_STARTED, {"uid": uid, "name": "n", "reserve": {}}, 1, world.now)

    with pytest.raises(IllegalMove, match="before"):
        start("again", "u-9")
    world.report("ending", T.CHILDREN_ENDING, {})
    with pytest.raises(IllegalMove, match="no child"):
        start("late", "u-8")


def test_a_negative_share_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        share_of({"tokens": -1})


def test_those_that_live_and_the_last_that_ended_are_kept() -> None:
    ended = tuple(Child(f"e{n}", "e").ended(Share(), "Failed", None) for n in range(KEPT_ENDED + 3))
    alive = Child("a", "a")
    assert kept((alive, *ended)) == (alive, *ended[3:])
    asked = Child("k", "k", key="1.0").ended(Share(), "Failed", None)
    assert kept((asked, *ended)) == (asked, *ended[3:]), "asked for again, it is the same child"


# --- the parent's plan ------------------------------------------------------------------------------------------------


@pytest.mark.rule("N3")
def test_an_agent_that_is_done_waits_for_its_children_and_then_they_end_first() -> None:
    world = with_child(running())
    world.finish()
    plan = world.plan()
    assert (plan.actions, plan.reason) == ((), "ChildrenRunning")
    world.now += PATIENCE_MS
    assert records(world.plan()) == [("CHILDREN_ENDING", "")]
    world.step()
    plan = world.plan()
    assert (plan.actions, plan.reason) == ((), "ClosingChildren")
    child_ends(world)
    assert kinds(world.plan()) == ["StartSandbox"]  # the verifier


@pytest.mark.rule("N3")
def test_children_that_end_in_time_are_waited_for_no_longer() -> None:
    world = with_child(running())
    world.finish()
    child_ends(world)
    assert kinds(world.plan()) == ["StartSandbox"]
    assert not world.state.children_ending


@pytest.mark.rule("X2")
def test_a_cancelled_parent_ends_after_its_children() -> None:
    world = with_child(running())
    world.cancel = True
    world.step()
    runner = world.sandbox("runner")
    assert runner
    del world.pods[runner.name]
    assert records(world.plan()) == [("CHILDREN_ENDING", "")]
    world.step()
    assert (world.plan().actions, world.plan().reason) == ((), "ClosingChildren")
    assert world.state.phase is RunPhase.CANCELLING
    child_ends(world)
    assert records(world.plan())[-1] == ("RUN_CANCELLED", "Cancelled")


@pytest.mark.rule("X2", "C2")
def test_a_parent_at_its_deadline_stops_and_ends_after_its_children() -> None:
    world = with_child(running(timeouts=ResolvedTimeouts(deadline_ms=60_000)))
    world.now += 60_000
    plan = world.plan()
    assert (kinds(plan), plan.reason) == (["Report", "StopSandbox"], "ClosingChildren")
    assert records(plan) == [("CHILDREN_ENDING", "")]
    child_ends(world)
    assert records(world.plan())[-1] == ("RUN_FAILED", "DeadlineExceeded")


@pytest.mark.rule("B2")
def test_children_that_were_seen_to_have_ended_are_settled_beside_whatever_else_is_due() -> None:
    world = with_child(running())
    plan = world.plan()
    assert not any(isinstance(each, a.SettleChildren) for each in plan.actions)
    seen = observed(world, children_over=("u-9", "u-8"), children_gone=("u-9",))
    plan = decide(seen, world.now)
    assert a.SettleChildren(("u-9",), ("u-9", "u-8")) in plan.actions
    assert plan.requeue_ms is not None
    assert plan.requeue_ms <= 2_000


def exhausted(world: World, **pause: Any) -> World:
    """Its agent has spent all that it hadn't given away, and its pause has come to its end."""
    asked = {"reason": "BudgetExhausted", "by": "limits", "message": "all is used up", "limit": "tokens_hard"} | pause
    world.report("pause", T.PAUSE_REQUESTED, asked)
    world.report("over", T.ATTEMPT_ENDED, {"epoch": 1, "role": "runner", "reason": "Paused", "message": ""})
    world.pods.clear()
    world.report("paused", T.PAUSED, {"reason": asked["reason"], "message": ""})
    return world


@pytest.mark.rule("B3", "C3")
@pytest.mark.parametrize(
    ("pause", "goes_on"),
    [
        ({}, True),
        ({"by": "driver", "limit": None}, True),
        ({"limit": "effects_hard"}, True),
        ({"limit": "wall_clock_ms"}, False),
        ({"by": "approvals", "limit": None}, False),
        ({"by": "user", "reason": "PauseRequested", "limit": None}, False),
    ],
)
def test_a_parent_that_gave_all_away_goes_on_once_a_child_gives_something_back(
    pause: dict[str, Any], goes_on: bool
) -> None:
    world = exhausted(with_child(running(limits=ResolvedLimits(tokens_hard=500, effects_hard=1))), **pause)
    assert "RESUMED" not in [kind for kind, _ in records(world.plan())]
    child_ends(world)
    assert ("RESUMED" in [kind for kind, _ in records(world.plan())]) is goes_on
    assert restored(RunState, plain(world.state)) == world.state


@pytest.mark.rule("B3", "C3")
def test_a_child_that_used_all_of_its_share_lets_nobody_go_on() -> None:
    world = exhausted(with_child(running(limits=ResolvedLimits(tokens_hard=600))))
    payload = {"uid": "u-9", "name": "run-u-9", "outcome": "Failed", "used": RESERVE, "commit": None}
    world.report("over u-9", T.CHILD_ENDED, payload)
    assert "RESUMED" not in [kind for kind, _ in records(world.plan())]


@pytest.mark.rule("I5")
def test_a_child_begins_while_its_parent_is_paused_where_it_was_asked_for_before() -> None:
    world = running()
    world.report("asked", T.CHILD_REQUESTED, {"key": "1.0", "name": "mine", "reserve": RESERVE})
    exhausted(world)
    with pytest.raises(IllegalMove):
        world.gateway.append("other", T.CHILD_STARTED, {"uid": "u-8", "name": "n", "reserve": {}}, 1, world.now)
    world.report("mine", T.CHILD_STARTED, {"uid": "u-9", "name": "mine", "reserve": RESERVE})
    assert [(each.uid, each.key) for each in world.state.children] == [("u-9", "1.0")]


@pytest.mark.rule("O2")
def test_that_its_object_was_seen_is_written_once_and_what_has_begun_stays_further_on() -> None:
    world = running()
    world.report("asked", T.CHILD_REQUESTED, {"key": "1.0", "name": "mine", "reserve": RESERVE})
    plan = decide(observed(world, children_made=(("mine", "u-9"),)), world.now)
    (made,) = [each for each in plan.actions if isinstance(each, a.Report)]
    assert made == a.Report("op:CHILD_MADE:u-9", T.CHILD_MADE, {"name": "mine", "uid": "u-9"})
    world.report("made", T.CHILD_MADE, made.payload)
    (child,) = world.state.children
    assert (child.status, child.uid, child.key, child.open) == ("made", "", "1.0", True)
    assert world.state.given_away == share_of(RESERVE)
    world.report("mine", T.CHILD_STARTED, {"uid": "u-9", "name": "mine", "reserve": RESERVE})
    world.report("late", T.CHILD_MADE, made.payload)
    assert [(each.status, each.uid, each.key) for each in world.state.children] == [("started", "u-9", "1.0")]


@pytest.mark.rule("I5")
def test_no_child_begins_while_its_parent_is_cancelled() -> None:
    world = running()
    world.report("asked", T.CHILD_REQUESTED, {"key": "1.0", "name": "mine", "reserve": RESERVE})
    world.report("cancel", T.CANCEL_REQUESTED, {"reason": "user"})
    with pytest.raises(IllegalMove):
        world.gateway.append("mine", T.CHILD_STARTED, {"uid": "u-9", "name": "mine", "reserve": {}}, 1, world.now)


@pytest.mark.rule("X1", "X2")
def test_a_child_that_cannot_be_settled_keeps_nothing_that_is_due_to_its_parent() -> None:
    """The first action that fails ends a pass."""
    world = with_child(running())
    world.cancel = True
    plan = decide(observed(world, children_over=("u-9",)), world.now)
    assert kinds(plan) == ["Report", "SettleChildren"]
    assert records(plan) == [("CANCEL_REQUESTED", "user")]
