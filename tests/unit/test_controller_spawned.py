"""O2: the object of a child that an agent asked for."""

from typing import Any

import pytest

from moorage.api.agentrun import AgentRun
from moorage.api.children import ChildOrder
from moorage.controller.roll import Roll, Standing
from moorage.controller.spawned import child_body
from moorage.core.run.resolve import limits, read_run
from moorage.sandbox.port import RunKey

SPEC: dict[str, Any] = {
    "workspaceRef": {"name": "web"},
    "agentRef": {"name": "coder"},
    "goal": "all of it",
    "acceptance": [{"name": "tests", "run": "make test"}],
    "delivery": {"branch": "fix"},
    "sandbox": {"runtimeClassName": "kata"},
    "approvals": [{"name": "shell", "before": "ToolCall", "tools": ["bash"]}, {"name": "push", "before": "Delivery"}],
    "constraints": {
        "tokens": {"soft": "8k", "hard": "9k"},
        "wallClock": "1h",
        "disk": {"hard": "1Gi"},
        "custom": [{"name": "few", "cel": "iterations < 9"}],
    },
    "scheduling": {"class": "background", "deadline": "4h"},
    "cancel": True,
    "suspend": True,
}
PARENT = {"metadata": {"name": "fix", "namespace": "team-a", "uid": "u-1"}, "spec": SPEC}
ORDER = ChildOrder(
    name="fix-1-abc",
    goal="the parser",
    start="Base",
    reserve={"tokens": 300, "cost_micros": 1_500_000, "iterations": 4},
)


def child(**reserve: int) -> AgentRun:
    body = child_body(PARENT, ORDER.model_copy(update={"reserve": reserve} if reserve else {}))
    found = read_run({**body, "metadata": {**body["metadata"], "uid": "u-2"}})
    assert isinstance(found, AgentRun), found
    return found


def test_a_child_is_its_parents_and_goes_with_it() -> None:
    meta = child_body(PARENT, ORDER)["metadata"]
    assert (meta["name"], meta["namespace"]) == ("fix-1-abc", "team-a")
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("AgentRun", "fix", "u-1", True)


def test_a_child_works_as_its_parent_does_at_a_goal_of_its_own_and_delivers_nothing() -> None:
    spec = child().spec
    assert spec.goal == "the parser"
    assert spec.parent_ref is not None
    assert (spec.parent_ref.name, spec.parent_ref.start) == ("fix", "Base")
    assert spec.workspace_ref is not None
    assert spec.agent_ref is not None
    assert spec.sandbox is not None
    assert (spec.delivery, spec.acceptance or (), spec.cancel, spec.suspend) == (None, (), False, False)


def test_what_a_person_must_allow_its_parent_they_must_allow_the_child() -> None:
    assert [each.name for each in child().spec.approvals or ()] == ["shell"]


def test_it_waits_for_its_turn_as_its_parent_does() -> None:
    assert child().spec.scheduling.class_ == "background"
    assert child().spec.scheduling.deadline is None
    alone = {**PARENT, "spec": {name: value for name, value in SPEC.items() if name != "scheduling"}}
    assert "scheduling" not in child_body(alone, ORDER)["spec"]


def test_its_share_and_its_parents_own_constraints_are_its_limits() -> None:
    found = limits(child().spec.constraints, None)
    assert (found.tokens_hard, found.cost_hard_micros, found.max_iterations) == (300, 1_500_000, 4)
    assert [each.name for each in found.custom] == ["few"]
    assert (found.wall_clock_ms, found.disk_hard_bytes) == (3_600_000, 2**30)
    every = {"tool_calls": 5, "effects": 6, "egress_bytes": 7}
    found = limits(child(**every).spec.constraints, None)
    assert (found.tool_calls_hard, found.effects_hard, found.egress_hard_bytes) == (5, 6, 7)


# --- its turn --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("N3")
def test_runs_that_hold_all_slots_never_wait_for_their_children_for_ever() -> None:
    roll = Roll(limit=1)
    for at, name in enumerate(["elder", "other", "first", "second"]):
        spec = {"parentRef": {"name": "elder"}} if name in {"first", "second"} else {}
        meta = {"name": name, "namespace": "t", "uid": f"uid-{name}", "resourceVersion": "1"}
        meta["creationTimestamp"] = f"2026-01-01T00:00:0{at}Z"
        roll.saw({"metadata": meta, "spec": spec})
    elder, other, first, second = (RunKey(f"uid-{n}", "t", n) for n in ("elder", "other", "first", "second"))
    assert not roll.slots(first).free, "its parent holds no slot itself"
    roll.note(elder, Standing.LIVE)
    assert [roll.slots(each).free for each in (other, first, second)] == [False, True, False]
    assert roll.next_waiting(1) == [other, first]
    roll.note(first, Standing.LIVE)
    assert [roll.slots(each).free for each in (other, first, second)] == [False, True, False]
    assert roll.note(first, Standing.ENDED)
    assert roll.slots(second).free
