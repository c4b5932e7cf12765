"""Real agents whose own hooks or extensions never let them stop: decisions that call no tool count all the same."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.real_agents import model_door, path_with, resolved

from moorage.api.budget import ResolvedLimits
from moorage.core.continuation.chain import NO_PROGRESS
from moorage.core.continuation.loops import Thresholds
from moorage.drivers.program import CIRCLING
from moorage.drivers.registry import load
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Reply
from moorage.testing.models.script import Usage

MOST = 3
AGAIN = "You are not done: go on."
SAID = Reply(text="Done.", usage=Usage(input_tokens=10, output_tokens=2))
EXTENSION = """export default function (pi) {
  pi.on("turn_end", async () => { pi.sendUserMessage("%s", { deliverAs: "followUp" }) })
}
"""


def hook(home: Path) -> dict[str, object]:
    """One that asks for more whenever the agent would end, in the words of Claude Code and Codex."""
    said = home / "again.json"
    said.write_text(json.dumps({"decision": "block", "reason": AGAIN}))
    return {"Stop": [{"hooks": [{"type": "command", "command": f"cat {said}"}]}]}


def never_done(agent: str, home: Path) -> tuple[str, ...]:
    """The agent's further arguments."""
    match agent:
        case "codex":
            (home / ".codex").mkdir(parents=True)
            (home / ".codex" / "hooks.json").write_text(json.dumps({"hooks": hook(home)}))
            return ("--dangerously-bypass-hook-trust",)
        case "pi":
            (home / "again.ts").write_text(EXTENSION % AGAIN)
            return ("--extension", str(home / "again.ts"))
        case _:
            (home / ".claude").mkdir(parents=True)
            (home / ".claude" / "settings.json").write_text(json.dumps({"hooks": hook(home)}))
            return ()


@pytest.mark.rule("B3", "N4")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("agent", ["codex", "pi", "claude-code"])
async def test_who_is_never_let_stop_is_stopped_after_its_last_iteration(agent, tmp_path):
    path = path_with(agent, tmp_path / "programs")
    (tmp_path / "tree").mkdir()
    host = LocalHost(tmp_path / "tree")
    task = task_for(host, resolved(agent, path), limits=ResolvedLimits(max_iterations=MOST))
    task.home.mkdir(parents=True, exist_ok=True)
    agent_with = task.agent.model_copy(update={"args": never_done(agent, task.home)})
    async with model_door(host, *[SAID] * 40) as (url, model):
        ended = await load(agent).run(replace(task, agent=agent_with, relay_url=url), host)
    asked = [body for body in model.bodies if AGAIN in json.dumps(body)]
    assert asked, "the hook was never heard of"
    assert ended.outcome == "exhausted", ended
    assert host.iterations == [1, 2, 3]
    assert len(model.bodies) <= MOST + 1


@pytest.mark.rule("N2", "N6")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("agent", ["codex", "pi", "claude-code"])
async def test_a_real_agent_that_is_never_let_stop_is_ended_without_any_limit(agent, tmp_path):
    """It is told the facts in its conversation first; this host begins no other program to do so."""
    path = path_with(agent, tmp_path / "programs")
    (tmp_path / "tree").mkdir()
    host = LocalHost(tmp_path / "tree")
    task = task_for(host, resolved(agent, path))
    task.home.mkdir(parents=True, exist_ok=True)
    agent_with = task.agent.model_copy(update={"args": never_done(agent, task.home)})
    async with model_door(host, *[SAID] * 40) as (url, model):
        for reason in (CIRCLING, NO_PROGRESS):
            ended = await load(agent).run(replace(task, agent=agent_with, relay_url=url), host)
            assert (ended.outcome, ended.reason) == ("failed", reason)
            assert "decisions in a row called no tool" in ended.message
    assert len(model.bodies) <= 2 * (Thresholds().idle + 1)
