"""A sandbox that loses its power at any moment: the next attempt ends in the same result, nothing twice (R1, E2)."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.counting_agent import AGENT, STEPS

from moorage.api.budget import ResolvedLimits
from moorage.testing.trees import git
from moorage.testing.world import Run, Sandbox, World

pytestmark = pytest.mark.timeout(180)  # each case starts several runners


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as made:
        yield made


async def admitted(world: World) -> Run:
    return await world.admit(command=("sh", "-euc", AGENT), limits=ResolvedLimits(max_iterations=100))


async def lose(run: Run, sandbox: Sandbox, epoch: int) -> bool:
    """Cut the power. An attempt that had told its end by then is none to be repeated: the plan starts no other."""
    await sandbox.kill()
    assert sandbox.left() == []
    if (await run.state())["agent_end"] is not None:
        return False
    await run.report("ATTEMPT_ENDED", {"epoch": epoch, "reason": "NodeLost", "message": "no power"})
    return True


async def whole(world: World, run: Run) -> None:
    """The result is what an undisturbed run would have had, and its journal tells each thing once."""
    state = await run.state()
    assert (state["phase"], state["iteration"]) == ("Verifying", STEPS), state["agent_end"]
    mirror = next((world.root / "mirrors").rglob("HEAD")).parent
    show = state["proposal"]["commit"]
    assert git(mirror, "show", f"{show}:all.txt").split() == [str(n) for n in range(1, STEPS + 1)]
    records = await run.records()
    iterations = [r.payload["iteration"] for r in records if r.type == "ITERATION_COMPLETE"]
    assert iterations == list(range(1, STEPS + 1))
    assert Counter(r.type for r in records)["AGENT_FINISHED"] == 1


@pytest.mark.rule("R1", "R3", "E2")
@pytest.mark.parametrize(
    "moment", ["ATTEMPT_STARTED", "WORKSPACE_READY", "AGENT_STARTED", "CHECKPOINT", "ITERATION_COMPLETE"]
)
async def test_killed_right_after_a_record(world, moment) -> None:
    run = await admitted(world)
    sandbox = await run.start()
    await run.until(moment)
    assert await lose(run, sandbox, 1)
    assert await (await run.start(epoch=2)).ended() == 0
    await whole(world, run)


@pytest.mark.rule("R1", "R3", "E2", "E8", "I4")
@pytest.mark.parametrize("seed", range(3))
async def test_killed_again_and_again_at_any_moment(world, seed) -> None:
    chance = random.Random(seed)
    run = await admitted(world)
    for epoch in range(1, 5):
        sandbox = await run.start(epoch=epoch)
        await asyncio.sleep(chance.uniform(0.2, 2.0))
        if not await lose(run, sandbox, epoch):
            break
    else:
        assert await (await run.start(epoch=5)).ended() == 0
    await whole(world, run)


@pytest.mark.rule("I6")
async def test_killed_after_its_result_there_is_nothing_left_to_do(world) -> None:
    run = await admitted(world)
    sandbox = await run.start()
    await run.until("RESULT_PROPOSED")
    await sandbox.kill()
    await whole(world, run)
