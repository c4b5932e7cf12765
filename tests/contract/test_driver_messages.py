"""M3 through a whole runner: what people say to an agent enters between its calls and its next decision, and after its
end; unmodified agents are told in their own conversation.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract.real_agents import DONE, path_with, resolved, run

from moorage.testing.models import Reply, Script
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(300)  # real programs

STEER, FOLLOW_UP = "Please use tabs.", "Now write the docs."


async def say(run: Run, kind: str, text: str, name: str) -> Any:
    body = {"command_id": name, "type": kind, "text": text, "issuer": "ada"}
    return await run.call("POST", "/commands", body)


def first_call(agent: str, root: Path) -> Reply:
    """It lasts until the test lets it end."""
    command = f"touch {root}/begun; while ! test -e {root}/go; do sleep 0.05; done; echo done > out.txt"
    return run(agent, command, text="I work.")


def heard(world: World) -> list[str]:
    assert world.model is not None
    return [json.dumps(body) for body in world.model.bodies]


async def commanded(world: World, root: Path, **changes: Any) -> Run:
    """Both are said during the first call; the run is worked on to its end."""
    fix = await world.admit(**changes)
    sandbox = await fix.start()
    while not (root / "begun").exists():
        assert sandbox.process.returncode is None, sandbox.said.read_text()
        await asyncio.sleep(0.02)
    assert (await say(fix, "Steer", STEER, "s1"))["state"] == "Accepted"
    assert (await say(fix, "FollowUp", FOLLOW_UP, "f1"))["state"] == "Accepted"
    (root / "go").touch()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    return fix


@pytest.mark.rule("M3")
@pytest.mark.parametrize("name", ["builtin", "claude-code", "codex", "opencode", "pi"])
async def test_an_agent_hears_both_in_its_conversation_each_in_its_place(tmp_path: Path, name: str) -> None:
    real = name != "builtin"
    script = Script(replies=(first_call(name if real else "pi", tmp_path), DONE))
    async with World(tmp_path / "w", script=script) as world:
        assert world.model is not None
        changes = {"agent": resolved(name, path_with(name, tmp_path / "bin"), url=world.model.url)} if real else {}
        fix = await commanded(world, tmp_path, **changes)
        assert (await fix.state())["agent_end"]["outcome"] == "completed"
        told = heard(world)
        assert STEER not in told[0]
        assert all(STEER in each for each in told[-2:])
        assert FOLLOW_UP in told[-1]
        assert FOLLOW_UP not in told[-2]
        assert told[-1].index("I work.") < told[-1].index(STEER) < told[-1].index(FOLLOW_UP)
        delivered = [r.payload for r in await fix.records() if r.type == "COMMAND_DELIVERED"]
        assert [each["command_id"] for each in delivered if each] == ["s1", "f1"]
        assert [c["state"] for c in (await fix.state())["commands"]] == ["Delivered", "Delivered"]
