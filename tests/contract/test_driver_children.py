"""O2: a real, unmodified agent starts a child of its run by the tools that its runner serves."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.contract.real_agents import DONE, path_with, resolved

from moorage.api.children import ChildAnswer
from moorage.api.wire import ResolvedChildren
from moorage.drivers.registry import load
from moorage.runner.mcp import ChildTools
from moorage.runner.relay import Relay
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.serving import listening

TOOLS = "mcp__moorage"  # as Codex calls a server's tools together
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


@pytest.mark.rule("O2")
async def test_codex_starts_a_child_and_hears_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    host = LocalHost(tmp_path / "tree")
    host.child_runs.over["child-1"] = ChildAnswer(
        name="child-1", status="ended", outcome="Succeeded", summary="it parses", commit="c" * 40
    )
    spawn = ToolCall(namespace=TOOLS, name="spawn_run", input={"goal": "the parser", "tokens": 300})
    wait = ToolCall(namespace=TOOLS, name="wait_run", input={"name": "child-1"})
    agent = resolved("codex", path_with("codex", tmp_path / "bin"))
    agent = agent.model_copy(update={"children": ResolvedChildren(max=3, concurrent=2)})
    async with doors(host, Reply(tools=(spawn,)), Reply(tools=(wait,)), DONE) as (url, model):
        outcome = await load("codex").run(task_for(host, agent, relay_url=url), host)
    assert (outcome.outcome, outcome.summary) == ("completed", "All done.")
    assert [(asked.goal, asked.tokens) for asked in host.child_runs.asked.values()] == [("the parser", 300)]
    assert "it parses" in str(model.bodies[2])
