"""O2: the object of a child that an agent asked for."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from moorage.api.agentrun import AgentRun
from moorage.api.children import ChildOrder, SettleRequest
from moorage.controller.gateway_client import GatewayClient
from moorage.controller.objects import KubeObjects
from moorage.controller.roll import Roll
from moorage.controller.spawned import child_body, make_child
from moorage.controller.told import Standing
from moorage.core.run.resolve import limits, read_run
from moorage.sandbox.kube import ApiUnavailable, Exists, KubeApi, KubeError
from moorage.sandbox.port import Refused, RunKey, Unavailable

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
    every = {"tool_calls": 5, "effects": 6, "egress_bytes": 7, "human_approvals": 8}
    found = limits(child(**every).spec.constraints, None)
    assert (found.tool_calls_hard, found.effects_hard, found.egress_hard_bytes) == (5, 6, 7)
    assert found.human_approvals_hard == 8


RUN = RunKey("u-1", "team-a", "fix")


@dataclass
class Making:
    """An API server that has the parent and refuses the child, and a gateway that is told of that."""

    error: KubeError
    settled: list[SettleRequest] = field(default_factory=list)

    async def get(self, _path: str) -> Any:
        return PARENT

    async def create(self, _path: str, _body: Any) -> None:
        raise self.error

    async def child_order(self, _uid: str, _name: str) -> ChildOrder:
        return ORDER

    async def settle(self, _uid: str, request: SettleRequest) -> None:
        self.settled.append(request)

    async def make(self) -> None:
        await make_child(RUN, ORDER.name, KubeObjects(cast("KubeApi", self)), cast("GatewayClient", self))


@pytest.mark.rule("B2")
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_child_that_will_never_be_taken_gives_its_share_back(status: int) -> None:
    making = Making(KubeError(status, "Invalid", "spec.goal: goal must not be empty"))
    await making.make()
    problem = "Invalid: spec.goal: goal must not be empty"
    assert making.settled == [SettleRequest(gone=(ORDER.name,), why={ORDER.name: problem})]


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (KubeError(403, "Forbidden", "exceeded quota: runs"), Refused, "QuotaExceeded"),
        (KubeError(403, "Forbidden", "user may not create"), Refused, "AdmissionRefused"),
        (ApiUnavailable(503, "", "not now"), Unavailable, None),
    ],
)
async def test_a_child_that_is_not_taken_now_is_waited_for(
    error: KubeError, kind: type[Exception], reason: str | None
) -> None:
    making = Making(error)
    with pytest.raises(kind) as caught:
        await making.make()
    assert getattr(caught.value, "reason", None) == reason
    assert making.settled == []


async def test_a_child_that_somebody_made_already_is_made() -> None:
    making = Making(Exists(409, "AlreadyExists", ""))
    await making.make()
    assert making.settled == []


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
    assert roll.next_waiting() == [first]
    roll.note(first, Standing.LIVE)
    assert [roll.slots(each).free for each in (other, first, second)] == [False, True, False]
    assert roll.note(first, Standing.ENDED)
    assert roll.slots(second).free
