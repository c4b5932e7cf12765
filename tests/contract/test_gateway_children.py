"""B2, B3, O2: a child's share at its parent's journal: reserved before its admission, settled after its end, whoever
dies in between; and where its work begins.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_script import (
    Operator,
    agent_at_work,
    checkpoint,
    commit,
    ok,
    push,
    refused,
    resolved,
    result,
    told,
    worktree,
)

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedChildren, ResolvedDelivery, ResolvedParent
from moorage.core.journal.record import RecordType
from moorage.gateway import spawning
from moorage.gateway.gate import mirror_key
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.trees import git as _git

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

    async def settle(self, *gone: str, over: tuple[str, ...] = ()) -> dict[str, Any]:
        body = {"gone": list(gone), "over": list(over)}
        return (await ok(await self.gateway.operator.post("/v1/runs/u1/children", json=body)))["state"]

    async def kinds(self) -> list[str]:
        return [kind for kind in await self.parent.types() if kind.startswith("CHILD")]


@pytest.fixture
async def family(gateway: LocalGateway, upstream: GitServer, tmp_path: Path) -> Family:
    return await a_family(gateway, upstream, tmp_path)


async def a_family(gateway: LocalGateway, upstream: GitServer, tmp_path: Path, limits: ResolvedLimits = ROOM) -> Family:
    """With the runner of its parent in pod p1."""
    agent = ResolvedAgent(driver="command", command=("true",), children=ResolvedChildren(max=3, concurrent=2))
    parent = Operator(gateway, resolved(upstream, limits=limits, agent=agent))
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
        ("iterations", "cost_micros", "effects", "egress_bytes", "human_approvals"), 0
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
    assert git["branch"] == "moorage/fix-u2"
    assert git["base"] not in {family.point, family.base}
    mirror = family.gateway.deps.mirrors.path(mirror_key(await family.gateway.gate.ledger.open("u2")))
    assert _git(mirror, "rev-parse", f"{git['base']}^") == family.base
    assert _git(mirror, "diff-tree", git["base"], family.point) == ""


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


# --- asked for by its agent -------------------------------------------------------------------------------------------


def asked(key: str = "3.0", **changes: Any) -> dict[str, Any]:
    return {"epoch": 1, "key": key, "goal": "test the parser", "tokens": 300, "tool_calls": 2} | changes


@dataclass
class Agent:
    """The parent's runner, and its operator."""

    family: Family

    @property
    def runner(self) -> httpx.AsyncClient:
        return self.family.gateway.sandbox("p1", "team-a")

    async def spawn(self, key: str = "3.0", **changes: Any) -> dict[str, Any]:
        return dict(await ok(await self.runner.post("/v1/self/children", json=asked(key, **changes))))

    async def order(self, name: str) -> httpx.Response:
        return await self.family.gateway.operator.get(f"/v1/runs/u1/children/{name}")


@pytest.fixture
def agent(family: Family) -> Agent:
    return Agent(family)


@pytest.mark.rule("O2", "B2")
async def test_a_child_that_an_agent_asks_for_is_one_whoever_asks_again(agent: Agent) -> None:
    first = await agent.spawn()
    agent.family.gateway.restart()
    assert await agent.spawn() == first
    assert first["status"] == "requested"
    order = await ok(await agent.order(first["name"]))
    assert (order["goal"], order["reserve"]) == ("test the parser", {"tokens": 300, "tool_calls": 2})
    assert (await agent.spawn("4.0"))["name"] != first["name"]
    assert await agent.family.kinds() == ["CHILD_REQUESTED", "CHILD_REQUESTED"]


@pytest.mark.rule("O2", "B2")
async def test_one_whose_object_was_seen_and_is_gone_gives_its_share_back(agent: Agent) -> None:
    name, parent = (await agent.spawn())["name"], agent.family.parent
    await ok(await parent.report(1, "CHILD_MADE", {"name": name, "uid": "u2"}))
    assert (await agent.spawn())["status"] == "made"
    (child,) = (await agent.family.settle(name))["children"]
    assert (child["outcome"], child["used"]["tokens"]) == ("NeverStarted", 0)
    assert await agent.family.kinds() == ["CHILD_REQUESTED", "CHILD_MADE", "CHILD_ENDED"]


async def test_who_asks_of_a_child_says_how_long_he_waits(agent: Agent) -> None:
    """The test's clock stands still: a wait of the gateway's own length would have no end."""
    name = (await agent.spawn())["name"]
    heard = await ok(await agent.runner.get(f"/v1/self/children/{name}?within_ms=0"))
    assert heard["status"] == "requested"


@pytest.mark.rule("B2", "B3")
async def test_its_share_is_reserved_once_on_its_way_from_the_request_to_the_run(agent: Agent) -> None:
    name = (await agent.spawn(tokens=900))["name"]
    await agent.family.child(tokens=900, name=name).admit()
    state = await agent.family.parent.state()
    assert [(c["uid"], c["key"], c["reserve"]["tokens"]) for c in state["children"]] == [("u2", "3.0", 900)]
    refused(await agent.order(name), 404, "NotFound")
    again = await agent.spawn(tokens=900)
    assert (again["name"], again["status"]) == (name, "started")


@pytest.mark.rule("B3")
async def test_what_is_asked_for_too_much_is_refused_and_reserves_nothing(agent: Agent) -> None:
    refused(await agent.runner.post("/v1/self/children", json=asked(tokens=1_001)), 403, "ParentBudget")
    await agent.spawn("1.0")
    await agent.spawn("2.0")
    assert "wait" in refused(await agent.runner.post("/v1/self/children", json=asked("5.0")), 403, "TooManyChildren")
    assert await agent.family.kinds() == ["CHILD_REQUESTED", "CHILD_REQUESTED"]


async def test_an_agent_that_may_have_none_starts_none(gateway: LocalGateway, upstream: GitServer) -> None:
    await agent_at_work(gateway, Operator(gateway, resolved(upstream)))
    answer = await gateway.sandbox("p1", "team-a").post("/v1/self/children", json=asked())
    refused(answer, 403, "Forbidden")


@pytest.mark.rule("O2")
async def test_what_was_asked_is_found_however_long_the_journal_is(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawning, "PAGE", 3)
    first, second = await agent.spawn(), await agent.spawn("4.0", goal="test the printer")
    for call in range(5):
        await _call(agent.runner, str(call))
    assert (await ok(await agent.order(first["name"])))["goal"] == "test the parser"
    assert (await ok(await agent.order(second["name"])))["goal"] == "test the printer"


@pytest.mark.rule("O2")
async def test_a_child_that_is_asked_for_late_in_a_long_journal_is_made(agent: Agent) -> None:
    ledger = agent.family.gateway.gate.ledger
    run = await ledger.open("u1")
    notes = [ledger.observed(RecordType.AGENT_OUTPUT, {}, f"said-{n}") for n in range(1_001)]
    await ledger.append(run, None, notes)
    name = (await agent.spawn())["name"]
    assert (await ok(await agent.order(name)))["goal"] == "test the parser"


@pytest.mark.rule("C3", "Q5")
async def test_a_run_that_is_about_to_pause_starts_no_child(agent: Agent) -> None:
    asked_for = {"reason": "Command", "message": "", "by": "somebody", "kill": False, "limit": None}
    await ok(await agent.family.parent.report(1, "PAUSE_REQUESTED", asked_for))
    refused(await agent.runner.post("/v1/self/children", json=asked()), 403, "ParentPaused")
    assert await agent.family.kinds() == []


@pytest.mark.rule("N3")
async def test_what_an_ended_agent_left_behind_starts_no_child(agent: Agent) -> None:
    await ok(await agent.runner.post("/v1/self/result", json=result(None, outcome="failed", reason="AgentFailed")))
    refused(await agent.runner.post("/v1/self/children", json=asked()), 403, "ParentEnded")
    assert await agent.family.kinds() == []


@pytest.mark.rule("F3")
async def test_an_older_attempt_starts_none(agent: Agent) -> None:
    runner = agent.runner
    lost = {"epoch": 1, "role": "runner", "reason": "SandboxDeleted", "message": ""}
    await ok(await agent.family.parent.report(1, "ATTEMPT_ENDED", lost))
    await ok(await agent.family.parent.fence(2))
    refused(await runner.post("/v1/self/children", json=asked()), 409, "Fenced")


@pytest.mark.rule("B2")
async def test_who_waits_hears_how_the_child_ended(agent: Agent) -> None:
    name = (await agent.spawn())["name"]
    child = agent.family.child(tokens=300, name=name)
    await child.start(pod="p2")
    waiting = asyncio.create_task(agent.runner.get(f"/v1/self/children/{name}"))
    await ok(await child.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))
    await agent.family.settle()
    heard = await ok(await waiting)
    assert (heard["status"], heard["outcome"], heard["used"]) == ("ended", "Failed", {})
    refused(await agent.runner.get("/v1/self/children/nobody"), 404, "NotFound")


@pytest.mark.rule("B2", "X2")
async def test_one_that_was_asked_for_and_that_nobody_makes_gives_its_share_back(agent: Agent) -> None:
    name = (await agent.spawn())["name"]
    assert (await agent.family.settle())["children"][0]["status"] == "requested"
    settled = (await agent.family.settle(name))["children"][0]
    assert (settled["status"], settled["outcome"]) == ("ended", "NeverStarted")


@pytest.mark.rule("W7", "P5")
async def test_what_a_child_proposes_is_its_parents_to_fetch(agent: Agent, tmp_path: Path) -> None:
    name = (await agent.spawn())["name"]
    child, head = await proposing(agent.family, tmp_path, name)
    await agent.family.settle()
    heard = await ok(await agent.runner.get(f"/v1/self/children/{name}"))
    assert (heard["outcome"], heard["commit"], heard["summary"]) == ("Succeeded", head, "it parses")
    await ok(await agent.family.gateway.operator.post(f"{child.door}/release"))
    elder = tmp_path / "tree"
    await asyncio.to_thread(_git, elder, "fetch", "-q", "origin", head)
    base = heard["base"]
    assert _git(elder, "rev-parse", "FETCH_HEAD^") == base
    assert _git(elder, "diff-tree", base, agent.family.point) == ""


async def proposing(family: Family, tmp_path: Path, name: str) -> tuple[Operator, str]:
    """A child that has succeeded with a commit, in pod p2."""
    child = family.child(tokens=300, name=name)
    runner = await child.start(pod="p2")
    git = (await ok(await runner.get("/v1/self")))["git"]
    for kind, said in (("WORKSPACE_READY", {"base": git["base"], "branch": git["branch"]}), ("AGENT_STARTED", {})):
        await ok(await runner.post("/v1/self/records", json=told(kind, said)))
    tree = await worktree(family.gateway, tmp_path, "p2", "kid")
    await asyncio.to_thread(_git, tree, "fetch", "-q", "origin", git["base"])
    await asyncio.to_thread(_git, tree, "checkout", "-q", git["base"])
    head = await asyncio.to_thread(commit, tree, "c.txt", "three\n")
    await push(tree, f"HEAD:refs/heads/{git['branch']}")
    await ok(await runner.post("/v1/self/result", json=result(head, summary="it parses")))
    await ok(await child.report(1, "RUN_SUCCEEDED", {"reason": "Completed", "message": "", "commit": head}))
    return child, head
