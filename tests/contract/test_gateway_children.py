"""B2, B3, O2: a child's share at its parent's journal: reserved before its admission, settled after its end, whoever
dies in between; and where its work begins.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_script import Operator, agent_at_work, checkpoint, commit, ok, push, refused, resolved, worktree

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedDelivery, ResolvedParent
from moorage.core.journal.record import RecordType
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

ROOM = ResolvedLimits(tokens_hard=1_000, tool_calls_hard=10)


@dataclass
class Family:
    """A parent at work at a checkpoint, and its children."""

    gateway: LocalGateway
    upstream: GitServer
    parent: Operator
    base: str
    point: str

    def child(self, uid: str = "u2", tokens: int = 400, calls: int = 2, **changes: Any) -> Operator:
        limits = ResolvedLimits(tokens_hard=tokens, tool_calls_hard=calls)
        above = ResolvedParent(uid="u1", name="fix", commit=self.point)
        mine = {"name": f"fix-{uid}", "limits": limits, "parent": above, "delivery": None, "acceptance": ()}
        return Operator(self.gateway, resolved(self.upstream, uid, **mine | changes))

    async def settle(self, *gone: str) -> dict[str, Any]:
        body = {"gone": list(gone)}
        return (await ok(await self.gateway.operator.post("/v1/runs/u1/children", json=body)))["state"]

    async def kinds(self) -> list[str]:
        return [kind for kind in await self.parent.types() if kind.startswith("CHILD")]


@pytest.fixture
async def family(gateway: LocalGateway, upstream: GitServer, tmp_path: Path) -> Family:
    parent = Operator(gateway, resolved(upstream, limits=ROOM))
    runner = await agent_at_work(gateway, parent)
    tree = await worktree(gateway, tmp_path, "p1")
    base = (await parent.state())["workspace_base"]
    point = commit(tree, "b.txt", "two\n")
    await push(tree, "HEAD:refs/moorage/runs/u1/1/checkpoints")
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, point)))
    return Family(gateway, upstream, parent, base, point)


@pytest.mark.rule("B2", "B3", "O6")
async def test_a_share_is_reserved_once_before_its_child_is_admitted(family: Family) -> None:
    child = family.child()
    await child.admit()
    family.gateway.restart()
    await child.admit()
    state = await family.parent.state()
    assert [(c["uid"], c["name"], c["status"]) for c in state["children"]] == [("u2", "fix-u2", "started")]
    assert state["children"][0]["reserve"] == {"tokens": 400, "tool_calls": 2} | dict.fromkeys(
        ("iterations", "cost_micros", "effects", "egress_bytes"), 0
    )
    assert await family.kinds() == ["CHILD_STARTED"]
    assert await child.types() == ["RUN_ADMITTED"]


@pytest.mark.rule("B3")
async def test_what_is_left_beside_the_shares_is_all_that_the_next_child_gets(family: Family) -> None:
    await family.child().admit()
    second = family.child("u3", tokens=601)
    answer = await family.gateway.operator.put(second.door, content=second.spec.model_dump_json())
    assert "1000" in refused(answer, 403, "ParentBudget")
    refused(await family.gateway.operator.get(second.door), 404, "UnknownRun")
    await family.child("u3", tokens=600).admit()
    assert await family.kinds() == ["CHILD_STARTED", "CHILD_STARTED"]


@pytest.mark.rule("B2")
async def test_a_child_that_ended_is_settled_once_at_what_it_used(family: Family) -> None:
    child = family.child()
    runner = await child.start(pod="p2")
    await ok(await runner.get("/v1/self"))
    for call in ("1.1", "1.2"):
        for kind in ("TOOL_REQUEST", "TOOL_RESPONSE"):
            record = {"record_id": f"{kind}:{call}", "type": kind, "payload": {}, "recorded_at": 7}
            report = {"epoch": 1, "records": [record | {"tool_call_id": call}]}
            await ok(await runner.post("/v1/self/records", json=report))
    assert (await family.settle())["children"][0]["status"] == "started", "it hasn't ended"
    await ok(await child.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))
    settled = await family.settle("u2")
    assert settled["children"][0]["status"] == "ended"
    assert settled["children"][0]["outcome"] == "Failed"
    assert (settled["children_used"]["tool_calls"], settled["children_used"]["tokens"]) == (2, 0)
    family.gateway.restart()
    assert await family.settle("u2") == settled
    assert await family.kinds() == ["CHILD_STARTED", "CHILD_ENDED"]
    assert settled["usage"]["tool_calls"] == 0, "counted once for their tenant"


@pytest.mark.rule("B2")
async def test_a_share_whose_child_will_never_come_is_given_back(family: Family) -> None:
    """A gateway died between the two records, and the child's object was deleted."""
    child = family.child()
    share = {"uid": "u2", "name": "fix-u2", "reserve": {"tokens": 400}}
    run = await family.gateway.gate.ledger.open("u1")
    draft = family.gateway.gate.ledger.observed(RecordType.CHILD_STARTED, share, "u2")
    await family.gateway.gate.ledger.append(run, None, [draft])
    assert (await family.settle())["children"][0]["status"] == "started"
    settled = await family.settle("u2")
    assert (settled["children"][0]["outcome"], settled["children_used"]["tokens"]) == ("NeverStarted", 0)
    answer = await family.gateway.operator.put(child.door, content=child.spec.model_dump_json())
    refused(answer, 403, "ParentEnded")


@pytest.mark.rule("X2")
@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        ("CHILDREN_ENDING", {}, "ParentEnded"),
        ("CANCEL_REQUESTED", {"reason": "user"}, "ParentEnded"),
        ("RUN_FAILED", {"reason": "x", "message": "", "commit": None}, "ParentEnded"),
    ],
)
async def test_no_child_begins_where_they_are_to_end(
    family: Family, kind: str, payload: dict[str, Any], reason: str
) -> None:
    await ok(await family.parent.report(1, kind, payload))
    child = family.child()
    refused(await family.gateway.operator.put(child.door, content=child.spec.model_dump_json()), 403, reason)
    assert "CHILD_STARTED" not in await family.kinds()


async def test_a_parent_that_nobody_knows_has_no_children(family: Family) -> None:
    child = family.child(parent=ResolvedParent(uid="u7", name="ghost", commit=family.base))
    refused(await family.gateway.operator.put(child.door, content=child.spec.model_dump_json()), 403, "ParentNotFound")


@pytest.mark.rule("O2", "P5")
async def test_a_child_starts_at_its_parents_checkpoint_on_a_branch_of_its_own(family: Family) -> None:
    child = family.child(delivery=ResolvedDelivery(branch="moorage/fix-u2", push=False))
    runner = await child.start(pod="p2")
    git = (await ok(await runner.get("/v1/self")))["git"]
    assert (git["base"], git["branch"]) == (family.point, "moorage/fix-u2")
    assert family.point != family.base


@pytest.mark.rule("B2", "C2")
async def test_what_its_children_may_use_is_not_its_parents_to_use(family: Family) -> None:
    await family.child(calls=9).admit()
    runner = family.gateway.sandbox("p1", "team-a")
    budget = await _call(runner, "1")
    assert (budget["left"]["toolCalls"], budget["exhausted"]) == (0, None)
    assert (await _call(runner, "2"))["exhausted"] is not None


async def _call(runner: Any, call: str) -> dict[str, Any]:
    record = {"record_id": f"ask:{call}", "type": "TOOL_REQUEST", "payload": {}, "recorded_at": 7, "tool_call_id": call}
    return dict((await ok(await runner.post("/v1/self/records", json={"epoch": 1, "records": [record]})))["budget"])
