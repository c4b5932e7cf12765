"""O2: a run goes on with an ended one on another volume: its agent has the conversation, and the files."""

from pathlib import Path

import pytest
from tests.contract.real_agents import path_with, resolved, run

from moorage.api.wire import ResolvedAgent, ResolvedDelivery, ResolvedOrigin
from moorage.testing.models import Reply, Script, ToolCall
from moorage.testing.models.script import Usage
from moorage.testing.trees import git
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(300)  # real programs, started twice

FAILED = {"reason": "AgentFailed", "message": "the checks said no", "commit": None}


USAGE = Usage(input_tokens=100, output_tokens=10)


def bash(command: str) -> Reply:
    return Reply(tools=(ToolCall(name="bash", input={"command": command}),), usage=USAGE)


async def next_after(world: World, agent: ResolvedAgent) -> Run:
    origin = ResolvedOrigin(uid="u1", name="fix")
    return await world.admit(
        uid="u2",
        name="more",
        session_id="u1",
        origin=origin,
        goal="and write the docs",
        agent=agent,
        acceptance=(),
        delivery=ResolvedDelivery(branch="moorage/more"),
    )


async def went_on(world: World, agent: ResolvedAgent) -> None:
    """The first run changes a file and fails, after its agent has said that it is done; the second goes on."""
    first = await world.admit(agent=agent, goal="write a file")
    sandbox = await first.start()
    assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
    assert (await first.state())["agent_end"]["summary"] == "That was one."
    await first.report("RUN_FAILED", FAILED)
    assert world.model is not None
    asked = len(world.model.bodies)
    second = await next_after(world, agent)
    first.volume.rename(world.root / "volume-of-the-first")
    second.volume = first.volume  # the same place in another sandbox, as it is in pods
    again = await second.start()
    assert await again.ended(within_s=120) == 0, again.said.read_text()
    assert len(world.model.bodies) > asked, (await second.state())["agent_end"]
    told = str(world.model.bodies[asked])
    assert "write a file" in told
    assert "That was one." in told
    assert "and write the docs" in told
    assert told.index("write a file") < told.index("That was one.") < told.index("and write the docs")
    assert (again.tree / "one").read_text() == "1\n"
    state = await second.state()
    assert state["agent_end"]["summary"] == "That was two."
    used = (await first.state())["usage"]
    assert state["carried"]["tokens"] == used["input_tokens"] + used["output_tokens"] + used["cache_read_tokens"] > 0
    commit = state["proposal"]["commit"]
    await second.deliver()
    remote = world.remote.root / "shop.git"
    assert git(remote, "diff", "--name-only", "main", commit).split() == ["one", "two"]


@pytest.mark.rule("O2", "B3")
async def test_builtin_goes_on_with_the_conversation_of_an_ended_run(tmp_path: Path) -> None:
    replies = (bash("echo 1 > one"), Reply(text="That was one."), bash("echo 2 > two"), Reply(text="That was two."))
    async with World(tmp_path / "world", script=Script(replies=replies)) as world:
        await went_on(world, ResolvedAgent(driver="builtin", model=world.scripted()))


@pytest.mark.rule("O2", "P2")
@pytest.mark.parametrize("agent", ["codex", "pi"])
async def test_a_real_agent_goes_on_with_the_conversation_of_an_ended_run(tmp_path: Path, agent: str) -> None:
    path = path_with(agent, tmp_path / "bin")
    steps = (run(agent, "echo 1 > one"), Reply(text="That was one."))
    more = (run(agent, "echo 2 > two"), Reply(text="That was two."))
    async with World(tmp_path / "world", script=Script(replies=(*steps, *more))) as world:
        assert world.model is not None
        await went_on(world, resolved(agent, path, url=world.model.url))
