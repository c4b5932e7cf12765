"""Killed, failing, held up and stopped while an agent's end is checked in its own sandbox (N4)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from moorage.api.wire import ResolvedAgent, ResolvedCheck, ResolvedContinuation, ResolvedModel, SecretRef
from moorage.points import Point
from moorage.testing.killpoints import Fault, Shot, environment, fired
from moorage.testing.models import Reply, Script, ToolCall
from moorage.testing.torture import waken
from moorage.testing.world import Run, World

PATIENCE_S = 200.0  # of a machine that does much else
pytestmark = pytest.mark.timeout(600)

CHECK = ResolvedCheck(name="tests", run="grep -q two a.txt")
HELD_UP = {Fault.DELAY, Fault.STOP}


async def admitted(world: World) -> Run:
    assert world.model
    model = ResolvedModel(
        provider="stand-in",
        protocol="anthropic-messages",
        base_url=world.model.url,
        name="scripted",
        credentials=SecretRef(name="model", key="apiKey"),
    )
    agent = ResolvedAgent(driver="builtin", model=model, continuation=ResolvedContinuation(check_rounds=2))
    return await world.admit(agent=agent, acceptance=(CHECK,))


async def ended(run: Run, trace: Path, shots: Sequence[Shot], fault: Fault) -> bool:
    """An attempt that meets the fault; whether it came to a result all the same."""
    sandbox = await run.start(environment=environment(trace, *shots))
    waking = [asyncio.create_task(waken(trace, shot)) for shot in (shots if fault is Fault.STOP else ())]
    try:
        code = await sandbox.ended(PATIENCE_S)
    finally:
        for each in waking:
            each.cancel()
        await asyncio.gather(*waking, return_exceptions=True)
    assert all(fired(trace, shot) for shot in shots)
    return code == 0


@pytest.mark.rule("K1", "N4")
@pytest.mark.parametrize("point", [Point.END_CHECK_BEFORE, Point.END_CHECK_WITHIN, Point.END_CHECK_AFTER])
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.DELAY])
async def test_whatever_befalls_the_check_of_an_end_nothing_of_it_is_left(
    tmp_path: Path, fault: Fault, point: Point
) -> None:
    work = Reply(tools=(ToolCall(name="bash", input={"command": "echo two > a.txt"}),))
    shots = [Shot(point, fault=fault)]
    async with World(tmp_path / "world", script=Script(replies=(work, Reply(text="Done.")))) as world:
        run, epoch = await admitted(world), 1
        whole = await ended(run, tmp_path / "trace", shots, fault)
        assert whole is (fault in HELD_UP)
        if not whole:
            epoch = 2
            await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "RunnerFailed", "message": "it died there"})
            again = await run.start(epoch)
            assert await again.ended(PATIENCE_S) == 0, again.said.read_text()
            assert not (again.volume / ".moorage" / "agent" / "tmp" / "end-check").exists()
        assert await (await run.verify(epoch)).ended(PATIENCE_S) == 0
        state = await run.state()
        assert (state["phase"], state["verification"]["passed"]) == ("Verifying", True)
        assert [each["status"] for each in await run.content("COMPLETION_CHECKED")][-1] == "clear"
