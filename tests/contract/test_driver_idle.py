"""N2, N6, B3: agents that use up their run's budget and get nowhere.

A Stop hook that went on until the quota was gone is a public failure of a neighbour: an agent decides and decides, and
calls nothing. No safe point comes of such decisions by the results of tools, and yet they are decisions. Others look
around for ever.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.posing_agents import SUBJECTS

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import SecretRef
from moorage.core.continuation.loops import Thresholds
from moorage.testing.models import Reply, Script
from moorage.testing.models.script import Usage
from moorage.testing.world import World

pytestmark = pytest.mark.timeout(240)  # a case starts a runner, and its program twice

IDLE = Thresholds().idle
DOORS = {"openai-responses": ("/v1/responses", "input"), "anthropic-messages": ("/v1/messages", "messages")}
HOOKED = """
import urllib.request
begin()
said = [{"role": "user", "content": "Mend it."}]
for number in range(100):
    body = {"model": "scripted", "max_tokens": 100, "tools": [{"name": "bash", "input_schema": {}}], FIELD: said}
    door = os.environ["ANTHROPIC_BASE_URL"] + PATH
    asked = urllib.request.Request(door, json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(asked, timeout=60).read()
    said += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": f"Not yet, says a hook: {number}."}]
end()
"""
LOOKING = """
import urllib.request
begin()
said = [{"role": "user", "content": "Mend it."}]
for number in range(100):
    body = {"model": "scripted", "max_tokens": 1, "tools": [{"name": "bash", "input_schema": {}}], FIELD: said}
    door = os.environ["ANTHROPIC_BASE_URL"] + PATH
    asked = urllib.request.Request(door, json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(asked, timeout=60).read()
    name = f"{os.getpid()}-{number}"
    told = {"toolCallId": name, "title": "x", "kind": "execute", "status": "in_progress", "rawInput": {"command": name}}
    update({"sessionUpdate": "tool_call", **told})
    result(name)
    said += [{"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "bash", "input": {}}]}]
    said += [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": "nothing"}]}]
end()
"""


async def worked(
    tmp_path: Path, name: str, limits: ResolvedLimits, script: str = HOOKED, tokens: int = 10
) -> tuple[dict[str, Any], int, list[Any]]:
    """How the run stands once its runner has gone, how often its model was asked, and what was decided of its ends."""
    reply = Reply(text="Done.", usage=Usage(input_tokens=tokens, output_tokens=1))
    async with World(tmp_path / "world", script=Script(replies=(reply,))) as world:
        assert world.model is not None
        agent = SUBJECTS[name].agent(f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        assert agent.model is not None
        path, field = DOORS[agent.model.protocol]
        SUBJECTS[name].write(tmp_path / "bin", f"PATH, FIELD = {path!r}, {field!r}\n{script}")
        given = {"base_url": world.model.url, "name": "scripted", "credentials": SecretRef(name="model", key="apiKey")}
        model = agent.model.model_copy(update=given)
        run = await world.admit(agent=agent.model_copy(update={"model": model}), limits=limits)
        sandbox = await run.start()
        assert await sandbox.ended(within_s=200) == 0, sandbox.said.read_text()
        assert sandbox.left() == []
        return await run.state(), len(world.model.log), await run.content("CONTINUATION_DECIDED")


@pytest.mark.rule("B3")
@pytest.mark.parametrize("name", ["acp", "claude-code", "codex"])
async def test_its_decisions_are_iterations_and_pass_their_limit_by_none(tmp_path: Path, name: str) -> None:
    state, asked, _ = await worked(tmp_path, name, ResolvedLimits(max_iterations=3))
    assert (state["iteration"], asked) == (3, 3)
    assert state["agent_end"]["outcome"] in {"paused", "exhausted"}


@pytest.mark.rule("N2", "N6")
@pytest.mark.parametrize("name", ["claude-code", "codex"])
async def test_without_any_limit_it_hears_the_facts_and_is_ended_then(tmp_path: Path, name: str) -> None:
    state, asked, decisions = await worked(tmp_path, name, ResolvedLimits())
    end = state["agent_end"]
    assert (end["outcome"], end["reason"]) == ("failed", "NoProgress")
    assert f"{2 * IDLE} decisions in a row called no tool" in end["message"]
    assert [(each["decision"], each["kind"]) for each in decisions] == [("nudge", "Circle")]
    assert asked == 2 * IDLE


@pytest.mark.rule("N6")
async def test_one_that_tells_nothing_of_its_use_is_seen_to_use_up_its_limit_and_change_nothing(tmp_path: Path) -> None:
    state, asked, decisions = await worked(tmp_path, "acp", ResolvedLimits(tokens_hard=1_000_000), LOOKING, 40_000)
    end = state["agent_end"]
    assert (end["outcome"], end["reason"]) == ("failed", "NoProgress")
    assert "% of this run's limit were used" in end["message"]
    assert [(each["decision"], each["kind"]) for each in decisions] == [("nudge", "Circle")]
    assert 20 <= asked < 25, "the rest of the budget is left"
    assert state["iteration"] >= asked - 1, "each decision with its call is an iteration"
