"""O2: a real, unmodified agent starts a child of its run by the tools that its runner serves."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.contract.real_agents import AGENTS, DONE, path_with, resolved

from moorage.api.children import ChildAnswer
from moorage.api.wire import ResolvedChildren
from moorage.drivers.registry import load
from moorage.runner.mcp import ChildTools
from moorage.runner.relay import Relay
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.serving import listening

pytestmark = pytest.mark.timeout(120)


@contextlib.asynccontextmanager
async def doors(host: LocalHost, *replies: Reply) -> AsyncIterator[tuple[str, StandIn]]:
    """The model's door and the tools', as a runner has them."""
    model, token = StandIn(Script(replies=replies)), host.tree.parent / "token"
    token.write_text("the run's")
    async with listening(Starlette(routes=[Mount("/model", app=model.app)])) as url:
        relay = Relay(url, token, host.hold)
        relay.tools = ChildTools(host.child_runs, lambda: host.budget).answer
        await relay.start()
        try:
            yield relay.url, model
        finally:
            await relay.stop()


def called(agent: str, tool: str, given: dict[str, Any]) -> ToolCall:
    """The tool as each agent names it to its model; Codex has a server's tools together."""
    prefix = {"claude-code": "mcp__moorage__", "opencode": "moorage_"}.get(agent, "")
    return ToolCall(namespace="mcp__moorage" if agent == "codex" else None, name=f"{prefix}{tool}", input=given)


@pytest.mark.rule("O2")
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_real_agent_starts_a_child_and_hears_how_it_ended(tmp_path: Path, agent: str) -> None:
    path = path_with(agent, tmp_path / "bin")
    (tmp_path / "tree").mkdir()
    host = LocalHost(tmp_path / "tree")
    host.child_runs.over["child-1"] = ChildAnswer(
        name="child-1", status="ended", outcome="Succeeded", summary="it parses", commit="c" * 40
    )
    spawn = called(agent, "spawn_run", {"goal": "the parser", "tokens": 300})
    wait = called(agent, "wait_run", {"name": "child-1"})
    spec = resolved(agent, path).model_copy(update={"children": ResolvedChildren(max=3, concurrent=2)})
    async with doors(host, Reply(tools=(spawn,)), Reply(tools=(wait,)), DONE) as (url, model):
        outcome = await load(spec.driver).run(task_for(host, spec, relay_url=url), host)
    assert (outcome.outcome, outcome.summary) == ("completed", "All done.")
    assert [(asked.goal, asked.tokens) for asked in host.child_runs.asked.values()] == [("the parser", 300)]
    assert "it parses" in str(model.bodies[2])
