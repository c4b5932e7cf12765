"""Commands where two gateways serve one run: accepted once, whichever is asked, and heard at the other one (M2, M5)."""

import asyncio
from typing import Any

import pytest
from tests.contract.test_two_gateways import Pair, pair
from tests.gateway_script import Operator, agent_at_work, ok, refused, resolved, told

from moorage.api.commands import Receipt
from moorage.api.wire import ResolvedAgent, ResolvedApproval
from moorage.core.commands.admission import Decision
from moorage.gateway.commands import CommandsRoom, Taking
from moorage.gateway.reduced import Run
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

__all__ = ["pair"]  # a fixture
pytestmark = pytest.mark.timeout(120)

DOOR = "/v1/runs/u1/commands"
DECIDED = "APPROVAL_DECIDED"
SHELL = ResolvedApproval(name="shell", before="ToolCall")


async def receipt(gateway: LocalGateway, kind: str = "Steer", name: str = "c1", **more: Any) -> Any:
    body = {"command_id": name, "type": kind, "issuer": "ada", **more}
    return await ok(await gateway.operator.post(DOOR, json=body))


async def working(pair: Pair, upstream: GitServer, **changes: Any) -> Operator:
    operator = Operator(pair.one, resolved(upstream, agent=ResolvedAgent(driver="builtin"), **changes))
    await agent_at_work(pair.one, operator)
    return operator


@pytest.mark.rule("M2", "M5")
async def test_a_command_that_both_are_given_at_once_is_accepted_once(pair: Pair, upstream: GitServer) -> None:
    operator = await working(pair, upstream)
    asked = (receipt(gateway, text="use tabs") for _ in range(8) for gateway in pair.gateways)
    receipts = await asyncio.gather(*asked)
    assert all(each == receipts[0] for each in receipts)
    assert (await operator.types()).count("COMMAND_ACCEPTED") == 1
    other = {"command_id": "c1", "type": "Steer", "issuer": "ada", "text": "use spaces"}
    refused(await pair.other.operator.post(DOOR, json=other), 409, "CommandIdTaken")


@pytest.mark.rule("M3", "M5")
async def test_a_runner_at_one_hears_at_once_what_the_other_one_accepted(pair: Pair, upstream: GitServer) -> None:
    await working(pair, upstream)
    here, there = pair.sandboxes("p1")
    poll = asyncio.create_task(here.get("/v1/self/orders?after=0&heard=-1"))
    accepted = await receipt(pair.other, text="use tabs")
    assert (await ok(await poll))["waiting"] == accepted["offset"]
    waiting = (await ok(await here.get("/v1/self/messages")))["messages"]
    assert [each["text"] for each in waiting] == ["use tabs"]
    await ok(await there.post("/v1/self/records", json=told("COMMAND_DELIVERED", {"command_id": "c1"})))
    assert (await ok(await here.get("/v1/self/messages")))["messages"] == []
    assert (await receipt(pair.one, text="use tabs"))["state"] == "Delivered"


@pytest.mark.rule("T6", "M5")
async def test_an_answer_at_one_is_heard_at_once_by_who_waits_at_the_other(pair: Pair, upstream: GitServer) -> None:
    operator = await working(pair, upstream, approvals=(SHELL,))
    here, _ = pair.sandboxes("p1")
    asking = asyncio.create_task(here.post("/v1/self/consent", json={"epoch": 1, "key": "1.0", "tool": "bash"}))
    while "APPROVAL_REQUESTED" not in await operator.types():
        assert not asking.done()
        await asyncio.sleep(0.01)
    assert (await receipt(pair.other, "Approve", approval="shell"))["state"] == "Done"
    assert (await ok(await asking))["status"] == "approved"


@pytest.mark.rule("M2", "T6", "M5")
@pytest.mark.parametrize(
    ("named", "state", "answered"), [({}, "Done", "tool:2.0"), ({"question": "tool:1.0"}, "Rejected", None)]
)
async def test_an_answer_that_was_decided_before_another_question_came_is_decided_anew(
    pair: Pair,
    upstream: GitServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    named: dict[str, str],
    state: str,
    answered: str | None,
) -> None:
    operator = await working(pair, upstream, approvals=(SHELL,))

    async def asks(key: str) -> None:
        said = {"key": key, "name": "shell", "before": "ToolCall", "subject": "bash", "reject_at": None}
        await ok(await operator.report(1, "APPROVAL_REQUESTED", said, key))

    await asks("tool:1.0")
    appended, moved = CommandsRoom._append, []

    async def late(room: CommandsRoom, run: Run, taking: Taking, decision: Decision) -> Receipt:
        """The first question is given up, and another one asked, by the gateway that this one hasn't heard of."""
        if not moved:
            moved.append(True)
            given_up = {"key": "tool:1.0", "outcome": "rejected", "by": "timeout", "reason": ""}
            await ok(await operator.report(1, "APPROVAL_DECIDED", given_up, "tool:1.0"))
            await asks("tool:2.0")
        return await appended(room, run, taking, decision)

    monkeypatch.setattr(CommandsRoom, "_append", late)
    told = await receipt(pair.other, "Approve", approval="shell", **named)
    by_ada = [each.payload for each in await operator.records() if each.actor == "ada" and each.type == DECIDED]
    assert told["state"] == state
    assert [each["key"] for each in by_ada] == ([answered] if answered else [])


@pytest.mark.rule("M2", "Q5", "X3", "M5")
@pytest.mark.parametrize(("kind", "begins"), [("Pause", "PAUSE_REQUESTED"), ("Cancel", "CANCEL_REQUESTED")])
async def test_what_both_are_asked_for_under_two_ids_is_begun_once(
    pair: Pair, upstream: GitServer, monkeypatch: pytest.MonkeyPatch, kind: str, begins: str
) -> None:
    operator = await working(pair, upstream)
    appended, moved = CommandsRoom._append, []

    async def late(room: CommandsRoom, run: Run, taking: Taking, decision: Decision) -> Receipt:
        """The other gateway is quicker, once this one has decided."""
        if not moved:
            moved.append(True)
            assert (await receipt(pair.one, kind, "c1"))["state"] == "Accepted"
        return await appended(room, run, taking, decision)

    monkeypatch.setattr(CommandsRoom, "_append", late)
    assert (await receipt(pair.other, kind, "c2"))["state"] == "Accepted"
    assert (await operator.types()).count(begins) == 1
    joined = [each.payload.get("joins") for each in await operator.records() if each.type == "COMMAND_ACCEPTED"]
    assert joined == [None, "c1"]
