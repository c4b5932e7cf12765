"""Real, unmodified Codex and pi at the model door: in each protocol, what they ask passes and is metered exactly."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.real_agents import DONE, path_with, resolved, run
from tests.gateway_script import PASSWORD, Operator, agent_at_work
from tests.gateway_script import resolved as resolved_run

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedPrices, ResolvedRetries
from moorage.drivers.port import Outcome
from moorage.drivers.registry import load
from moorage.runner.relay import Relay
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Fault, Script, StandIn

pytestmark = pytest.mark.timeout(300)  # real programs
SPOKEN = [
    ("codex", "openai-responses"),
    ("pi", "anthropic-messages"),
    ("pi", "openai-responses"),
    ("pi", "openai-chat"),
]
PRICES = ResolvedPrices(input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=0, cache_write_1h=0)
COST = 100 * 3 + 1_000 * 3 // 10 + 10 * 15  # micro-dollars of one answer: 750


@contextlib.asynccontextmanager
async def relayed(
    tmp_path: Path, upstream: GitServer, agent: ResolvedAgent, limits: ResolvedLimits
) -> AsyncIterator[tuple[str, Operator]]:
    """The address that the agent has of its model, by way of a relay and a gateway."""
    gateway = LocalGateway(tmp_path / "gateway")
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with gateway.serving():
        operator = Operator(gateway, resolved_run(upstream, agent=agent, limits=limits))
        await agent_at_work(gateway, operator)
        token = tmp_path / "token"
        token.write_text("token-of-p1")
        relay = Relay(str(gateway.url), token)
        await relay.start()
        try:
            yield relay.url, operator
        finally:
            await relay.stop()


async def worked(
    tmp_path: Path,
    upstream: GitServer,
    name: str,
    protocol: str,
    limits: ResolvedLimits,
    *faults: Fault,
    refusals: list[float] | None = None,
) -> tuple[Outcome, dict[str, int], list[dict[str, Any]], str]:
    """The agent's work on one file, in three decisions: its end, the run's usage, its answers, and the file. `faults`
    befall the second one. `refusals` hears how often the door has refused for want of budget.
    """
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("one\n")
    host, path = LocalHost(tree), path_with(name, tmp_path / "bin")
    mend = run(name, "echo two > a.txt").model_copy(update={"faults": faults})
    script = Script(replies=(run(name, "cat a.txt", text="I look."), mend, DONE))
    async with StandIn(script).serving() as model:
        agent = resolved(name, path, protocol, model.url)
        assert agent.model is not None
        retries = ResolvedRetries(max_attempts=4, budget=10)
        priced = agent.model.model_copy(update={"prices": {agent.model.name: PRICES}, "retries": retries})
        agent = agent.model_copy(update={"model": priced})
        async with relayed(tmp_path, upstream, agent, limits) as (url, operator):
            outcome = await load(name).run(task_for(host, agent, relay_url=url), host)
            usage = (await operator.state())["usage"]
            answers = [r.payload for r in await operator.records() if r.type == "MODEL_RESPONSE"]
            if refusals is not None:
                counted = operator.gateway.deps.metrics.model_requests
                refusals.append(counted.labels(protocol, "BudgetExhausted")._value.get())
    return outcome, usage, answers, (host.tree / "a.txt").read_text()


@pytest.mark.rule("B1")
@pytest.mark.parametrize(("name", "protocol"), SPOKEN)
async def test_a_real_agent_is_metered_to_the_token(tmp_path, upstream, name: str, protocol: str) -> None:
    outcome, usage, answers, text = await worked(tmp_path, upstream, name, protocol, ResolvedLimits())
    assert (outcome.outcome, text) == ("completed", "two\n")
    assert [(answer["complete"], answer["estimated"]) for answer in answers] == [(True, False)] * 3
    assert {kind: amount for kind, amount in usage.items() if amount} == {
        "input_tokens": 300,
        "output_tokens": 30,
        "cache_read_tokens": 3_000,
        "cost_micros": 3 * COST,
        "model_requests": 3,
    }


@pytest.mark.rule("B3")
@pytest.mark.parametrize(("name", "protocol"), SPOKEN)
async def test_a_hard_limit_ends_a_real_agent_and_isnt_retried(tmp_path, upstream, name: str, protocol: str) -> None:
    limits = ResolvedLimits(cost_hard_micros=2 * COST)
    asked: list[float] = []
    outcome, usage, answers, _ = await worked(tmp_path, upstream, name, protocol, limits, refusals=asked)
    assert outcome.reason == "BudgetExhausted"
    assert (usage["cost_micros"], usage["model_requests"], len(answers)) == (2 * COST, 2, 2)
    assert asked == [1], "a refusal leaves no record, so the door is asked how often it has refused"


@pytest.mark.rule("O1", "B3")
@pytest.mark.parametrize(("name", "protocol"), SPOKEN[:2])
async def test_a_real_agent_doesnt_notice_that_its_provider_fails_for_a_moment(
    tmp_path, upstream, name: str, protocol: str
) -> None:
    busy, broken = Fault(kind="status", status=429, retry_after_s=0.1), Fault(kind="overloaded")
    outcome, usage, answers, text = await worked(tmp_path, upstream, name, protocol, ResolvedLimits(), busy, broken)
    assert (outcome.outcome, text) == ("completed", "two\n")
    assert [answer["status"] for answer in answers] == [200, 429, 200, 200, 200]
    assert [answer["problem"] for answer in answers] == [None, None, "ProviderFailed", None, None]
    assert (usage["model_requests"], usage["model_retries"], usage["cost_micros"]) == (3, 2, 3 * COST)
