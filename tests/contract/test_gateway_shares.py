"""B2, B3: shares, requests under way and siblings at the same moment: by the state that the record of a share follows,
so much is left beside all of them.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_gateway_children import ROOM, Agent, Family, a_family, agent, asked, family
from tests.gateway_script import Operator, ok, refused

from moorage.api.budget import ResolvedConstraint
from moorage.api.wire import ResolvedParent
from moorage.core.journal.record import BlobRef, RecordType
from moorage.core.run.parents import MAX_DEPTH
from moorage.gateway.ledger import Run
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

__all__ = ["agent", "family"]


async def under_way(family: Family, tokens: int, key: str = "r1") -> Callable[[int], Any]:
    """A request to the model that may come to so much; what it gives ends it at what it took."""
    ledger = family.gateway.gate.ledger
    run = await ledger.open("u1")
    said = {"bytes_hash": key, "reserved": {"output_tokens": tokens}, "gateway": family.gateway.deps.peers.me}
    request = ledger.observed(RecordType.MODEL_REQUEST, said, key, attempt=1)
    await ledger.append(run, None, [replace(request, request_id=key)])

    async def answered(took: int) -> None:
        usage = {"status": 200, "complete": True, "usage": {"output_tokens": took}}
        draft = ledger.observed(RecordType.MODEL_RESPONSE, usage, key, attempt=1)
        await ledger.append(run, None, [replace(draft, request_id=key)])

    return answered


async def put(child: Operator) -> Any:
    return await child.http.put(child.door, content=child.spec.model_dump_json())


@pytest.mark.rule("B2", "B3")
async def test_what_requests_under_way_may_come_to_is_no_childs(family: Family) -> None:
    answered = await under_way(family, 900)
    assert (await family.parent.view())["reserved"]["tokens"] == 900
    child = family.child(tokens=400)
    assert "limit of 1000" in refused(await put(child), 403, "ParentBudget")
    await family.child("u3", tokens=100).admit()
    await answered(50)
    await child.admit()
    assert (await family.parent.view())["reserved"] is None


@pytest.mark.rule("B2", "B3")
async def test_what_an_agent_gives_away_is_left_beside_its_own_requests(agent: Agent) -> None:
    await under_way(agent.family, 900)
    refused(await agent.runner.post("/v1/self/children", json=asked(tokens=101)), 403, "ParentBudget")
    name = (await agent.spawn("4.0", tokens=None))["name"]
    assert (await ok(await agent.order(name)))["reserve"]["tokens"] == 50


@pytest.mark.rule("B2", "B3")
@pytest.mark.parametrize(("tokens", "share"), [(None, 50), (500, None)])
async def test_a_share_that_somebody_else_took_meanwhile_is_computed_anew(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tokens: int | None, share: int | None
) -> None:
    family = agent.family
    ledger = family.gateway.gate.ledger
    attach, siblings = ledger.attach, [family.child(tokens=900)]

    async def attach_late(run: Run, content: bytes) -> BlobRef:
        while siblings:
            await siblings.pop().admit()
        return await attach(run, content)

    monkeypatch.setattr(ledger, "attach", attach_late)
    answer = await agent.runner.post("/v1/self/children", json=asked(tokens=tokens))
    if share is None:
        refused(answer, 403, "ParentBudget")
    else:
        name = (await ok(answer))["name"]
        assert (await ok(await agent.order(name)))["reserve"]["tokens"] == share
    reserved = [each["reserve"]["tokens"] for each in (await family.parent.state())["children"]]
    assert sum(reserved) <= 1_000


@pytest.mark.rule("B2", "O6")
async def test_a_childs_limits_are_what_is_reserved_for_it(family: Family) -> None:
    """One operator has divided by a view that another one's child isn't in, and died before the admission."""
    ledger = family.gateway.gate.ledger
    told = {"uid": "u2", "name": "fix-u2", "reserve": {"tokens": 100, "tool_calls": 2, "effects": 7}}
    await ledger.append(await ledger.open("u1"), None, [ledger.observed(RecordType.CHILD_STARTED, told, "u2")])
    refused(await put(family.child(tokens=1_000)), 409, "SpecConflict")
    refused(await family.gateway.operator.get("/v1/runs/u2"), 404, "UnknownRun")
    await family.child(tokens=100).admit()


@pytest.mark.rule("B2", "O6")
async def test_what_an_agent_asked_for_is_what_its_child_gets(agent: Agent) -> None:
    name = (await agent.spawn(tokens=100))["name"]
    refused(await put(agent.family.child(tokens=900, name=name)), 409, "SpecConflict")
    assert await agent.family.kinds() == ["CHILD_REQUESTED"]
    await agent.family.child(tokens=100, name=name).admit()


@pytest.mark.rule("B3", "C4")
async def test_no_share_is_given_by_which_a_constraint_of_the_parents_own_would_stop_it(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path
) -> None:
    few = ResolvedConstraint(name="few", cel="tokens < 600")
    family = await a_family(gateway, upstream, tmp_path, ROOM.model_copy(update={"custom": (few,)}))
    agent = Agent(family)
    answer = await agent.runner.post("/v1/self/children", json=asked(tokens=600))
    assert "tokens < 600" in refused(answer, 403, "ParentBudget")
    assert "tokens < 600" in refused(await put(family.child(tokens=600)), 403, "ParentBudget")
    await agent.spawn("4.0", tokens=500)
    await family.child(tokens=99).admit()
    assert "tokens < 600" in refused(await put(family.child("u3", tokens=1)), 403, "ParentBudget")
    state = await family.parent.state()
    assert (state["phase"], state["pause"]) == ("Running", None)


# --- what begins, and what doesn't ------------------------------------------------------------------------------------


@pytest.mark.rule("I5", "B3")
async def test_a_paused_parent_takes_the_child_that_its_agent_asked_for_before_and_no_other(agent: Agent) -> None:
    """It may have nothing left but what that child gives back."""
    name = (await agent.spawn(tokens=1_000))["name"]
    parent = agent.family.parent
    pause = {"reason": "BudgetExhausted", "by": "limits", "message": "", "limit": "tokens_hard"}
    await ok(await parent.report(1, "PAUSE_REQUESTED", pause))
    refused(await agent.runner.post("/v1/self/children", json=asked("4.0", tokens=0)), 403, "ParentPaused")
    refused(await put(agent.family.child("u3", tokens=0)), 403, "ParentPaused")
    lost = {"epoch": 1, "role": "runner", "reason": "Paused", "message": ""}
    await ok(await parent.report(1, "ATTEMPT_ENDED", lost))
    await ok(await parent.report(1, "PAUSED", {"reason": "BudgetExhausted", "message": ""}))
    refused(await put(agent.family.child("u3", tokens=0)), 403, "ParentPaused")
    child = agent.family.child(tokens=1_000, name=name)
    await child.start(pod="p2")
    await ok(await child.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))
    settled = await agent.family.settle()
    assert (settled["phase"], settled["pause"]["widened"]) == ("Paused", True)


@pytest.mark.parametrize("goal", ["", "  \n\t", "\u00a0"])
async def test_a_goal_that_no_run_may_have_is_refused_before_anything_is_reserved(agent: Agent, goal: str) -> None:
    refused(await agent.runner.post("/v1/self/children", json=asked(goal=goal)), 422, "Invalid")
    assert await agent.family.kinds() == []


@pytest.mark.rule("O2")
async def test_at_the_last_depth_nobody_starts_any(family: Family) -> None:
    agent = family.parent.spec.agent
    above = ResolvedParent(uid="u1", name="fix", commit=family.point, depth=MAX_DEPTH)
    deepest = family.child(agent=agent, parent=above)
    runner = await deepest.start(pod="p2")
    await ok(await runner.get("/v1/self"))
    refused(await runner.post("/v1/self/children", json=asked()), 403, "ParentTooDeep")
    assert "CHILD_REQUESTED" not in await deepest.types()


@pytest.mark.rule("B2")
async def test_who_waits_hears_why_a_child_was_never_made(agent: Agent) -> None:
    name = (await agent.spawn())["name"]
    body = {"gone": [name], "why": {name: "Invalid: the goal isn't one"}}
    await ok(await agent.family.gateway.operator.post("/v1/runs/u1/children", json=body))
    agent.family.gateway.restart()
    heard = await ok(await agent.runner.get(f"/v1/self/children/{name}"))
    assert (heard["outcome"], heard["summary"]) == ("NeverStarted", "Invalid: the goal isn't one")
    assert await agent.spawn() == heard


@pytest.mark.rule("B2")
async def test_who_waits_hears_of_a_child_that_was_started_and_never_admitted(agent: Agent) -> None:
    name = (await agent.spawn())["name"]
    ledger = agent.family.gateway.gate.ledger
    told = {"uid": "u2", "name": name, "reserve": {"tokens": 300, "tool_calls": 2}}
    await ledger.append(await ledger.open("u1"), None, [ledger.observed(RecordType.CHILD_STARTED, told, "u2")])
    await agent.family.settle("u2")
    heard = await ok(await agent.runner.get(f"/v1/self/children/{name}"))
    assert (heard["outcome"], heard["summary"]) == ("NeverStarted", "")
