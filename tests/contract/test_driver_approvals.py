"""T6 through a whole runner: a tool call waits for a person, is parked, and runs once, or not at all, as they say."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_script import refused

from moorage.api.wire import ResolvedApproval, ResolvedEgress, ResolvedPrices, ResolvedSandbox
from moorage.drivers.telling import question_of
from moorage.gateway.settings import GatewaySettings
from moorage.testing.authority import Authority
from moorage.testing.models import Reply, Script, ToolCall
from moorage.testing.models.script import Usage
from moorage.testing.world import Run, Sandbox, World

pytestmark = pytest.mark.timeout(180)  # a case starts runners

SHELL = ResolvedApproval(name="shell", before="ToolCall", tools=("bash",))
PUSH = ResolvedApproval(name="push", before="Delivery")
USAGE = Usage(input_tokens=10, output_tokens=1)
CALL = ToolCall(name="bash", input={"command": "echo ran >> ran.txt"})
LOOK = ToolCall(name="read", input={"path": "a.txt"})
SCRIPT = Script(replies=(Reply(text="I work.", tools=(LOOK, CALL), usage=USAGE), Reply(text="Done.", usage=USAGE)))


async def answer(run: Run, kind: str, name: str = "shell") -> Any:
    body = {"command_id": f"{kind}-{name}", "type": kind, "approval": name, "issuer": "ada", "note": "not today"}
    return await run.call("POST", "/commands", body)


async def asking(world: World, **changes: Any) -> tuple[Run, Sandbox]:
    """A run whose agent waits for an answer before its second call."""
    fix = await world.admit(approvals=(SHELL,), **changes)
    sandbox = await fix.start()
    await fix.until("APPROVAL_REQUESTED", within_s=90)
    return fix, sandbox


def calls(types: list[str]) -> int:
    return types.count("TOOL_RESPONSE")


@pytest.mark.rule("T6")
async def test_a_call_runs_once_a_person_allows_it(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix, sandbox = await asking(world)
        assert (await fix.state())["phase"] == "AwaitingApproval"
        assert calls(await fix.types()) == 1  # the one before needed nobody
        assert (await answer(fix, "Approve", "other"))["reason"] == "NothingToApprove"
        told = await answer(fix, "Approve")
        assert (told["state"], told["reason"]) == ("Done", "Approved")
        key = question_of("1.1", CALL.input)
        assert told["message"] == f'tool:{key}: the tool bash is to run: command="echo ran >> ran.txt"'
        assert await sandbox.ended() == 0, sandbox.said.read_text()
        assert (await fix.state())["proposal"]["files"] == 1
        assert (await answer(fix, "Approve")) == told
        assert (await answer(fix, "Reject"))["reason"] == "NothingToApprove"


@pytest.mark.rule("T6")
async def test_a_call_that_is_refused_does_not_run_and_the_agent_hears_why(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix, sandbox = await asking(world)
        await answer(fix, "Reject")
        assert await sandbox.ended() == 0, sandbox.said.read_text()
        assert world.model is not None
        heard = json.dumps(world.model.bodies[-1])
        assert "refused by ada: not today" in heard
        assert (await fix.state())["proposal"]["empty"]


@pytest.mark.rule("T6", "R1", "R2")
async def test_a_question_outlives_sandbox_and_gateway_and_is_asked_once(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix, sandbox = await asking(world)
        await sandbox.kill()
        await world.restart_gateway(0)
        await fix.report("ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"})
        assert [each["status"] for each in (await fix.state())["consents"]] == ["pending"]
        second = await fix.start(2)
        await fix.until("AGENT_STARTED", 2, within_s=90)
        assert (await answer(fix, "Approve"))["state"] == "Done"
        assert await second.ended() == 0, second.said.read_text()
        assert [each["status"] for each in (await fix.state())["consents"]] == ["approved"]
        assert world.model is not None
        assert len({json.dumps(body) for body in world.model.bodies}) == len(world.model.bodies)


@pytest.mark.rule("T6", "Q5")
async def test_a_sandbox_that_would_only_wait_is_let_go_and_its_call_runs_in_the_next(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix, sandbox = await asking(world)
        await fix.report("PAUSE_REQUESTED", {"reason": "Approval", "by": "approvals", "message": ""})
        assert await sandbox.ended() == 0, sandbox.said.read_text()
        assert (await fix.state())["agent_end"]["outcome"] == "paused"
        await fix.report("PAUSED", {"reason": "Approval", "message": ""})
        assert (await answer(fix, "Approve"))["state"] == "Done"
        await fix.report("RESUMED", {"reason": "Approval"})
        second = await fix.start(2)
        assert await second.ended() == 0, second.said.read_text()
        state = await fix.state()
        assert (state["agent_end"]["outcome"], state["proposal"]["files"]) == ("completed", 1)
        assert [each.get("answered") for each in await fix.content("APPROVAL_REQUESTED")] == [None, True]
        assert state["usage"]["human_approvals"] == 1
        assert world.model is not None
        heard = json.dumps(world.model.bodies[-1])
        assert "its calls have run now" in heard
        assert "Make it again" not in heard, "it was made by the decision that was kept"


@pytest.mark.rule("T6")
async def test_nothing_is_pushed_before_it_is_approved_whoever_asks(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix = await world.admit(approvals=(PUSH,), acceptance=())
        sandbox = await fix.start()
        assert await sandbox.ended() == 0, sandbox.said.read_text()
        commit = (await fix.state())["proposal"]["commit"]
        door, body = f"/v1/runs/{fix.spec.uid}/deliver", {"epoch": 1, "commit": commit}
        refused(await world.gateway.operator.post(door, json=body), 409, "AwaitingApproval")
        said = {"key": f"delivery:push:{commit}", "name": "push", "before": "Delivery", "subject": commit}
        await fix.report("APPROVAL_REQUESTED", said)
        refused(await world.gateway.operator.post(door, json=body), 409, "AwaitingApproval")
        assert (await answer(fix, "Approve", "push"))["state"] == "Done"
        await fix.deliver()
        assert "EFFECT_RECEIPT" in await fix.types()


async def test_a_runner_waits_through_an_outage_of_its_gateway(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix, sandbox = await asking(world)
        await world.restart_gateway()
        await asyncio.sleep(0)
        await answer(fix, "Approve")
        assert await sandbox.ended() == 0, sandbox.said.read_text()


HOST = "pay.example.com"
PAY = ResolvedApproval(name="pay", before="Egress", hosts=("*.example.com",))


@pytest.mark.rule("T6", "E8")
async def test_a_host_is_reached_once_somebody_has_allowed_it(tmp_path: Path) -> None:
    settings = GatewaySettings(orders_wait_ms=200, egress_private=("127.0.0.0/8",))
    async with Authority().listening() as shop, World(tmp_path, settings=settings, hosts={HOST: "127.0.0.1"}) as world:
        entry = ResolvedEgress(host=HOST, scheme="http", port=shop.port)
        fix = await world.admit(command=("sleep", "600"), approvals=(PAY,), sandbox=ResolvedSandbox(egress=(entry,)))
        await fix.start()
        await fix.until("AGENT_STARTED", within_s=90)
        runner = world.gateway.sandbox(f"{fix.spec.uid}-p1", "team-a")
        door = f"/egress/http/{HOST}/orders/1"
        for _ in range(2):
            refused(await runner.post(door, content=b"one"), 503, "AwaitingApproval")
        assert (await fix.types()).count("APPROVAL_REQUESTED") == 1
        assert (await fix.state())["phase"] == "Running"
        assert (shop.committed, (await fix.types()).count("EFFECT_INTENT")) == ([], 0)
        assert (await answer(fix, "Approve", "pay"))["state"] == "Done"
        assert (await runner.post(door, content=b"one")).status_code == 201
        assert (await fix.state())["usage"]["human_approvals"] == 1


@pytest.mark.rule("T6", "E8")
async def test_a_refused_host_is_not_reached(tmp_path: Path) -> None:
    settings = GatewaySettings(orders_wait_ms=200, egress_private=("127.0.0.0/8",))
    async with World(tmp_path, settings=settings, hosts={HOST: "127.0.0.1"}) as world:
        entry = ResolvedEgress(host=HOST, scheme="http", port=9)
        fix = await world.admit(command=("sleep", "600"), approvals=(PAY,), sandbox=ResolvedSandbox(egress=(entry,)))
        await fix.start()
        await fix.until("AGENT_STARTED", within_s=90)
        runner = world.gateway.sandbox(f"{fix.spec.uid}-p1", "team-a")
        refused(await runner.get(f"/egress/http/{HOST}/"), 503, "AwaitingApproval")
        assert (await answer(fix, "Reject", "pay"))["state"] == "Done"
        said = refused(await runner.get(f"/egress/http/{HOST}/"), 403, "ApprovalRejected")
        assert "refused by ada: not today" in said
        refused(await runner.post(f"/tunnel/{HOST}:9"), 403, "ApprovalRejected")


PRICES = ResolvedPrices(input=1_000_000, output=1_000_000, cache_read=0, cache_write=0, cache_write_1h=0)
SPEND = ResolvedApproval(name="spend", before="Cost", step_micros=10)  # an answer costs 11 micro-dollars


async def spending(world: World) -> tuple[Run, Sandbox]:
    """A run that has spent its first step."""
    agent = world._builtin()
    assert agent.model is not None
    priced = agent.model.model_copy(update={"prices": {agent.model.name: PRICES}})
    fix = await world.admit(approvals=(SPEND,), agent=agent.model_copy(update={"model": priced}))
    sandbox = await fix.start()
    await fix.until("APPROVAL_REQUESTED", within_s=90)
    return fix, sandbox


@pytest.mark.rule("T6", "B3")
async def test_the_next_request_waits_for_every_step_that_is_spent(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix, sandbox = await spending(world)
        assert world.model is not None
        assert ((await fix.state())["phase"], len(world.model.bodies)) == ("AwaitingApproval", 1)
        assert (await answer(fix, "Approve", "spend"))["state"] == "Done"
        assert await sandbox.ended() == 0, sandbox.said.read_text()
        assert (await fix.state())["agent_end"]["outcome"] == "completed"
        assert len(world.model.bodies) == 2


@pytest.mark.rule("T6", "B3")
async def test_spending_that_is_refused_ends_the_agent_for_want_of_budget(tmp_path: Path) -> None:
    async with World(tmp_path, script=SCRIPT) as world:
        fix, sandbox = await spending(world)
        await answer(fix, "Reject", "spend")
        assert await sandbox.ended() == 0, sandbox.said.read_text()
        end = (await fix.state())["agent_end"]
        assert (end["outcome"], end["reason"]) == ("exhausted", "BudgetExhausted")
        assert "spending on was refused by ada" in end["message"]
