"""C1, C2, B3 at the gateway's doors: what is judged, what the journal has of it, what is refused, and what is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, beat, checkpoint, ok, refused, resolved, told
from tests.model_place import ANTHROPIC, MODEL, PRICES, REPLY

from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedApproval, ResolvedEgress, ResolvedModel, ResolvedSandbox
from moorage.core.constraints.judging import Action, Context, Validation
from moorage.gateway.settings import GatewaySettings
from moorage.store.sqlite import SqliteStore
from moorage.testing.authority import Authority
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.models import Script, StandIn

pytestmark = pytest.mark.timeout(120)

HOSTS = dict.fromkeys(("plain.example.com", "reads.example.com"), "127.0.0.1")
BODY = b'{"amount": 5}'


class Paid:
    """An entry point's constraint: no effect of a run that costs something."""

    name = "as-its-package-calls-it"

    def validate(self, context: Context) -> Validation:
        holds = not (context.cost_micros and context.effects)
        return Validation(self.name, holds, "" if holds else "PaidEffect", "" if holds else "paid, and effective")

    def on_violation(self, _: Validation) -> Action:
        return Action.EMERGENCY_STOP


class Tightening:
    """One that only minds at first, and then won't have any more."""

    name = "tightening"

    def validate(self, context: Context) -> Validation:
        return Validation(self.name, not context.iterations, "Many", f"so many: {context.iterations}")

    def on_violation(self, said: Validation) -> Action:
        return Action.GRACEFUL_EXIT if said.message in {"so many: 1", "so many: 2"} else Action.EMERGENCY_STOP


@dataclass
class Agent:
    """At work, with a model, a host that it may change and one that it may read."""

    operator: Operator
    http: httpx.AsyncClient
    calls: int = 0
    epoch: int = 1

    async def ask(self) -> httpx.Response:
        return await self.http.post(ANTHROPIC.path, json=ANTHROPIC.ask())

    async def post(self, body: bytes = BODY) -> httpx.Response:
        return await self.http.post("/egress/http/plain.example.com/v1/pay", content=body)

    async def get(self) -> httpx.Response:
        return await self.http.get("/egress/http/reads.example.com/v1/list")

    async def tool(self) -> dict[str, Any]:
        """A tool call, asked for and answered; what is told of the budget when it is asked for."""
        self.calls += 1
        budget = await self.tell("TOOL_REQUEST")
        await self.tell("TOOL_RESPONSE")
        return budget

    async def tell(self, kind: str, number: int | None = None) -> dict[str, Any]:
        call = f"1.{self.calls if number is None else number}"
        record = {"record_id": f"{kind}:{call}", "type": kind, "payload": {"tool": "bash"}, "tool_call_id": call}
        body = {"epoch": self.epoch, "records": [record | {"recorded_at": 7, "turn": 1}]}
        return (await ok(await self.http.post("/v1/self/records", json=body)))["budget"]

    async def iterate(self, iteration: int, **more: Any) -> dict[str, Any]:
        answer = await self.http.post("/v1/self/checkpoint", json=checkpoint(iteration, None, self.epoch) | more)
        return (await ok(answer))["budget"]

    async def resumed(self, raised: dict[str, int] | None = None) -> "Agent":
        """Paused, let go on by a person or by a raise, and at work again in its next attempt."""
        op, epoch = self.operator, self.epoch + 1
        await ok(await op.report(self.epoch, "PAUSED", {}, str(epoch)))
        if raised:
            await ok(await op.report(self.epoch, "LIMITS_RAISED", {"limits": raised, "by": "spec"}, str(epoch)))
        await ok(await op.report(self.epoch, "RESUMED", {}, str(epoch)))
        await ok(await op.fence(epoch))
        await op.register(f"p{epoch}", epoch)
        runner = op.gateway.sandbox(f"p{epoch}", "team-a")
        await ok(await runner.get("/v1/self"))
        await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {}, epoch=epoch)))
        return Agent(op, runner, calls=self.calls, epoch=epoch)

    async def judged(self) -> list[Any]:
        return [r.payload for r in await self.operator.records() if r.type == "CONSTRAINT_EVALUATED"]

    async def standing(self) -> list[tuple[str, str]]:
        return [(v["constraint"], v["action"]) for v in (await self.operator.state())["violations"]]

    async def usage(self) -> dict[str, int]:
        return (await self.operator.state())["usage"]


@dataclass
class Site:
    """A gateway, hosts to reach and a model to ask."""

    gateway: LocalGateway
    upstream: GitServer
    authority: Authority
    model: StandIn

    async def agent(
        self, *custom: ResolvedConstraint, approvals: tuple[ResolvedApproval, ...] = (), **limits: Any
    ) -> Agent:
        common: dict[str, Any] = {"scheme": "http", "port": self.authority.port}
        hosts = (
            ResolvedEgress(host="plain.example.com", **common),
            ResolvedEgress(host="reads.example.com", effects="none", **common),
        )
        model = ResolvedModel(
            provider="main", protocol=ANTHROPIC.name, base_url=self.model.url, name=MODEL, prices=PRICES
        )
        spec = resolved(
            self.upstream,
            sandbox=ResolvedSandbox(egress=hosts),
            agent=ResolvedAgent(driver="command", command=("true",), model=model),
            limits=ResolvedLimits(custom=custom, **limits),
            approvals=approvals,
        )
        operator = Operator(self.gateway, spec)
        return Agent(operator, await agent_at_work(self.gateway, operator))


@pytest.fixture
async def site(tmp_path: Path, upstream: GitServer, clock: StepClock) -> AsyncIterator[Site]:
    store = SqliteStore(tmp_path / "journal.db")
    made = LocalGateway(
        tmp_path,
        store=store,
        settings=GatewaySettings(egress_private=("127.0.0.0/8",)),
        hosts=HOSTS,
        clock=clock,
        constraints={"paid": Paid, "tightening": Tightening},
    )
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving(), Authority().listening() as authority, StandIn(Script(replies=(REPLY,))).serving() as m:
        yield Site(made, upstream, authority, m)
    await store.close()


def cel(text: str, **more: Any) -> ResolvedConstraint:
    return ResolvedConstraint(name="mine", cel=text, **more)


# --- effects ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("B2", "B3")
async def test_an_effect_over_the_limit_is_refused_before_it_leaves(site: Site) -> None:
    agent = await site.agent(effects_hard=2)
    assert [(await agent.post(b"%d" % n)).status_code for n in range(2)] == [201, 201]
    assert await agent.judged() == [], "all of it may be used"
    said = refused(await agent.post(b"one more"), 403, "BudgetExhausted")
    assert said == "the run's effect limit of 2 is used up (2)"
    assert len(site.authority.log) == 2
    assert (await agent.usage())["effects"] == 2
    assert await agent.standing() == [("effects", "GRACEFUL_EXIT")]
    assert (await agent.ask()).status_code == 400, "the run is on its way to its end"


@pytest.mark.rule("B2", "B3")
async def test_no_effect_is_no_effect(site: Site) -> None:
    agent = await site.agent(effects_hard=0)
    assert (await agent.get()).status_code == 200, "a read is none"
    refused(await agent.post(), 403, "BudgetExhausted")
    assert [seen.method for seen in site.authority.log] == ["GET"]


@pytest.mark.rule("B2")
async def test_effects_that_are_asked_for_at_once_pass_no_limit(site: Site) -> None:
    agent = await site.agent(effects_hard=3)
    answers = await asyncio.gather(*(agent.post(b"%d" % n) for n in range(12)))
    assert sorted(a.status_code for a in answers) == [201] * 3 + [403] * 9
    assert len(site.authority.log) == 3


# --- egress -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("B2", "B3")
async def test_bytes_to_and_from_hosts_are_counted_and_limited(site: Site) -> None:
    agent = await site.agent(egress_hard_bytes=200)
    answer = await agent.post(b"x" * 50)
    assert (await agent.usage())["egress_bytes"] == 50 + len(answer.content)
    said = refused(await agent.post(b"x" * 200), 403, "BudgetExhausted")
    assert said.startswith("the run's egress limit of 200 bytes doesn't allow for 200 bytes more (")
    assert len(site.authority.log) == 1, "more than is left doesn't leave"
    assert await agent.standing() == [("egress", "GRACEFUL_EXIT")]


# --- tool calls -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("B3", "C7")
async def test_tool_calls_are_counted_and_one_more_stops_the_run(site: Site) -> None:
    agent = await site.agent(tool_calls_hard=2)
    budgets = [await agent.tool() for _ in range(2)]
    assert [budget["exhausted"] for budget in budgets] == [None, None]
    assert (await agent.iterate(1))["left"] == {"toolCalls": 0}
    budget = await agent.tool()
    assert budget["exhausted"] == "the run's tool call limit of 2 is used up (2)"
    assert await agent.standing() == [("toolCalls", "GRACEFUL_EXIT")]
    said = (await agent.ask()).json()["error"]["message"]
    assert said == "BudgetExhausted: the run's tool call limit of 2 is used up (3)", "it had begun as it was told"


@pytest.mark.rule("B3")
async def test_a_call_that_is_told_again_is_no_further_one(site: Site) -> None:
    agent = await site.agent(tool_calls_hard=1)
    agent.calls = 1
    assert [(await agent.tell("TOOL_REQUEST"))["exhausted"] for _ in range(2)] == [None, None]
    agent.calls = 2
    assert (await agent.tell("TOOL_REQUEST"))["exhausted"], "the first one is still under way"


@pytest.mark.rule("B2", "B3")
async def test_of_fifty_calls_at_once_no_more_may_be_made_than_the_limit(site: Site) -> None:
    """Whoever is told that the limit is used up doesn't make its call (`test_no_tool_is_called_beyond_its_limit`)."""
    agent = await site.agent(tool_calls_hard=10)
    budgets = await asyncio.gather(*(agent.tell("TOOL_REQUEST", number) for number in range(50)))
    assert 1 <= [budget["exhausted"] for budget in budgets].count(None) <= 10
    assert await agent.standing() == [("toolCalls", "GRACEFUL_EXIT")]
    assert (await agent.operator.types()).count("TOOL_REQUEST") == 50, "one that is refused may have begun"


@pytest.mark.rule("B2", "B3")
async def test_calls_that_are_told_at_once_are_as_many_as_they_are(site: Site) -> None:
    agent = await site.agent(tool_calls_hard=2)
    records = [
        {"record_id": f"t{n}", "type": "TOOL_REQUEST", "payload": {"tool": "bash"}, "tool_call_id": f"1.{n}", "turn": 1}
        for n in range(3)
    ]
    body = {"epoch": 1, "records": [record | {"recorded_at": 7} for record in records]}
    budget = (await ok(await agent.http.post("/v1/self/records", json=body)))["budget"]
    assert budget["exhausted"] == "the run's tool call limit of 2 doesn't allow for 3 more (0 are used)"


# --- people -----------------------------------------------------------------------------------------------------------


WAYS = ResolvedApproval(name="ways", before="Egress")


async def allowed(agent: Agent, asking: "asyncio.Task[httpx.Response]") -> httpx.Response:
    """What comes of it once somebody has allowed what it waits for."""
    op = agent.operator
    while not any(each["status"] == "pending" for each in (await op.state())["consents"]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    said = {"command_id": f"a{(await op.state())['offset']}", "type": "Approve", "approval": "ways", "issuer": "ada"}
    await ok(await op.http.post(f"{op.door}/commands", json=said))
    return await asking


@pytest.mark.rule("B2", "B3", "T6")
async def test_one_question_over_the_limit_is_put_to_nobody_and_nothing_leaves(site: Site) -> None:
    agent = await site.agent(approvals=(WAYS,), human_approvals_hard=1)
    assert (await allowed(agent, asyncio.create_task(agent.get()))).status_code == 200
    assert (await agent.get()).status_code == 200, "the same way is allowed already"
    said = refused(await agent.post(), 403, "BudgetExhausted")
    assert said == "the run's human approval limit of 1 is used up (1)"
    assert [seen.method for seen in site.authority.log] == ["GET", "GET"]
    assert (await agent.operator.types()).count("APPROVAL_REQUESTED") == 1
    assert await agent.standing() == [("humanApprovals", "GRACEFUL_EXIT")]
    agent = await agent.resumed({"human_approvals_hard": 2})
    assert (await allowed(agent, asyncio.create_task(agent.post()))).status_code == 201
    assert (await agent.usage())["human_approvals"] == 2


@pytest.mark.rule("B2", "T6")
async def test_a_question_that_was_withdrawn_costs_nobody_an_answer(site: Site) -> None:
    agent = await site.agent(approvals=(WAYS,), human_approvals_hard=1)
    waiting = asyncio.create_task(agent.get())
    while not (await agent.operator.state())["consents"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    refused(await agent.post(), 403, "BudgetExhausted")
    agent = await agent.resumed()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await agent.standing() == []
    assert (await allowed(agent, asyncio.create_task(agent.post()))).status_code == 201


@pytest.mark.rule("B3", "C7")
async def test_how_often_somebody_may_still_be_asked_is_told(site: Site) -> None:
    agent = await site.agent(approvals=(WAYS,), human_approvals_soft=1, human_approvals_hard=2)
    assert (await agent.iterate(1))["left"] == {"humanApprovals": 2}
    await allowed(agent, asyncio.create_task(agent.get()))
    budget = await agent.iterate(2)
    assert (budget["left"], budget["exhausted"]) == ({"humanApprovals": 1}, None)
    assert budget["warnings"] == ["the soft human approval limit of 1 is passed (1)"]
    assert (await agent.ask()).headers["x-moorage-human-approvals-left"] == "1"


# --- iterations, disk -------------------------------------------------------------------------------------------------


@pytest.mark.rule("C2", "B3")
async def test_the_model_isnt_asked_after_the_last_iteration(site: Site) -> None:
    agent = await site.agent(max_iterations=1)
    assert (await agent.ask()).status_code == 200
    await agent.iterate(1)
    assert await agent.standing() == []
    answer = await agent.ask()
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    (judged,) = await agent.judged()
    assert (judged["action"], judged["asking"]) == ("GRACEFUL_EXIT", {"cost": 1, "iterations": 1, "tokens": 1})
    assert judged["context"]["iterations"] == 1


@pytest.mark.rule("B2", "B3")
async def test_of_fifty_questions_at_once_none_leaves_after_the_last_iteration(site: Site) -> None:
    agent = await site.agent(max_iterations=1)
    await agent.iterate(1)
    asking = (agent.http.post(ANTHROPIC.path, json=ANTHROPIC.ask(temperature=n / 100)) for n in range(50))
    answers = await asyncio.gather(*asking)
    assert 400 in {answer.status_code for answer in answers} <= {400, 429}, "refused, or never let in"
    assert all("BudgetExhausted" in answer.text for answer in answers if answer.status_code == 400)
    assert site.model.log == []
    assert "MODEL_REQUEST" not in await agent.operator.types()


@pytest.mark.rule("B3")
async def test_a_disk_that_is_emptied_again_is_no_violation_any_more(site: Site) -> None:
    agent = await site.agent(disk_soft_bytes=50, disk_hard_bytes=100)
    assert (await agent.iterate(1, disk_bytes=60))["warnings"] == [
        "the soft disk limit of 50 bytes is passed (60 bytes)"
    ]
    assert (await agent.iterate(2, disk_bytes=101))["exhausted"]
    assert await agent.standing() == [("disk.soft", "WARN_CONTINUE"), ("disk", "GRACEFUL_EXIT")]
    assert (await agent.iterate(3, disk_bytes=40))["exhausted"] is None
    assert await agent.standing() == []
    assert len(await agent.judged()) == 3, "each change is a record"


# --- warnings ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("B3", "C2", "C7")
async def test_a_soft_limit_is_recorded_once_and_told(site: Site) -> None:
    agent = await site.agent(tokens_soft=400)
    assert (await agent.ask()).headers.get("x-moorage-warning") is None
    assert (await agent.iterate(1))["warnings"] == ["the soft token limit of 400 is passed (417)"]
    headers = (await agent.ask()).headers
    assert headers["x-moorage-warning"] == "the soft token limit of 400 is passed (417)"
    await agent.iterate(2)
    assert (await ok(await agent.http.post("/v1/self/heartbeat", json=beat())))["budget"]["warnings"]
    (judged,) = await agent.judged()
    (said,) = judged["validations"]
    assert (said["constraint"], said["action"], said["reason"]) == ("tokens.soft", "WARN_CONTINUE", "SoftLimitPassed")


@pytest.mark.rule("C7")
async def test_0_left_is_told_as_0_and_unlimited_not_at_all(site: Site) -> None:
    agent = await site.agent(tokens_hard=1, effects_hard=0)
    headers = (await agent.ask()).headers
    assert (headers["x-moorage-tokens-left"], headers["x-moorage-effects-left"]) == ("1", "0")
    assert "x-moorage-tool-calls-left" not in headers
    assert (await agent.iterate(1))["left"] == {"tokens": 0, "effects": 0}
