"""Real agents whose runner dies at a point of a safe point: conversation and tree are of one moment afterwards."""

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.contract.real_agents import PROTOCOLS, path_with, resolved, run

from moorage.core.models.spoken import PROTOCOLS as SPOKEN
from moorage.points import Point
from moorage.runner.processes import send
from moorage.testing.killpoints import Shot, environment, fired
from moorage.testing.models import Reply, Script
from moorage.testing.trees import git
from moorage.testing.world import Sandbox, World

pytestmark = pytest.mark.timeout(300)  # real programs, started twice
STEPS = 3
POINTS = {  # the second time: between the second decision and the third; and how many of its calls are safe by then
    Point.STAGE_WITHIN: 1,
    Point.STATE_WITHIN: 1,
    Point.CHECKPOINT_WITHIN: 1,
    Point.CHECKPOINT_AFTER: 1,
    Point.SAFE_POINT_BEFORE: 1,
    Point.SAFE_POINT_AFTER: 2,
}
"""What isn't counted isn't safe (P5), though its objects may be in the gateway."""


def calls(agent: str, body: dict[str, Any]) -> list[str]:
    return [each.call for each in SPOKEN[PROTOCOLS[agent]].carried(body)]


async def bury(sandbox: Sandbox) -> None:
    """End the agent, too: in a pod it goes with its runner, here that has left it behind."""
    async with asyncio.timeout(30):
        while left := sandbox.left():
            send(left, signal.SIGKILL)
            await asyncio.sleep(0.02)


@pytest.mark.rule("P2", "P5", "P6", "R1", "R2", "K1")
@pytest.mark.parametrize(
    ("point", "lost"),
    [*((point, True) for point in POINTS), (Point.STATE_WITHIN, False), (Point.CHECKPOINT_AFTER, False)],
)
@pytest.mark.parametrize("agent", ["codex", "pi"])
async def test_killed_at_its_safe_point_it_knows_of_what_is_in_its_tree(
    tmp_path: Path, agent: str, point: Point, lost: bool
) -> None:
    steps = tuple(run(agent, f"echo {n} >> all; touch step-{n}") for n in range(1, STEPS + 1))
    shot, trace, safe = Shot(point, 2), tmp_path / "trace", POINTS[point]
    path = path_with(agent, tmp_path / "bin")
    async with World(tmp_path / "world", script=Script(replies=(*steps, Reply(text="Done.")))) as world:
        model = world.model
        assert model is not None
        work = await world.admit(agent=resolved(agent, path, url=model.url))
        sandbox = await work.start(environment=environment(trace, shot))
        assert await sandbox.ended(within_s=120) != 0
        await bury(sandbox)
        assert fired(trace, shot)
        asked = len(model.log)
        assert asked == 2, "its third decision waits for the safe point after the second"
        if lost:
            shutil.rmtree(work.volume)
        await work.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "gone"})
        again = await work.start(2)
        assert await again.ended(within_s=120) == 0, again.said.read_text()
        ready = (await work.content("WORKSPACE_READY"))[-1]
        names = git(again.tree, "ls-tree", "--name-only", ready["head"]).split()
        assert [name for name in names if name.startswith("step-")] == [f"step-{n}" for n in range(1, safe + 1)]
        assert len(calls(agent, model.bodies[asked])) == safe, "it knows of what is in its tree, and of no more"
        assert len({entry.key for entry in model.log}) == len(model.log), "no decision is asked for twice"
        assert (again.tree / "all").read_text().split() == [str(n) for n in range(1, STEPS + 1)]
        assert (await work.state())["agent_end"]["summary"] == "Done."
