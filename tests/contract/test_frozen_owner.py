"""A holder that is frozen (SIGSTOP) past its lease and wakes after a takeover: it is refused, and one result exists."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.contract.counting_agent import AGENT, STEPS

from moorage.api.budget import ResolvedLimits
from moorage.points import Point
from moorage.runner.exitcodes import Exit
from moorage.testing.killpoints import Fault, Shot, environment, fired
from moorage.testing.trees import git
from moorage.testing.world import BRANCH, Run, Sandbox, World
from moorage.workspace.refs import RUNS

pytestmark = pytest.mark.timeout(240)

NEXT = {
    Point.WORKTREE_AFTER: "to say that its worktree stands",
    Point.CHECKPOINT_AFTER: "to push a checkpoint",
    Point.SAFE_POINT_BEFORE: "to count an iteration",
    Point.PROPOSAL_BEFORE: "to push a candidate",
    Point.RESULT_BEFORE: "to report a result",
}
"""What the runner is about to do at the gateway where it is frozen."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as made:
        yield made


async def frozen_at(run: Run, point: Point) -> Sandbox:
    trace, shot = run.world.root / "trace", Shot(point, 1, Fault.STOP)
    sandbox = await run.start(environment=environment(trace, shot))
    async with asyncio.timeout(120):
        while fired(trace, shot) is None:  # noqa: ASYNC110  another process's doing
            await asyncio.sleep(0.02)
    return sandbox


async def woken(sandbox: Sandbox) -> int:
    os.kill(sandbox.process.pid, signal.SIGCONT)
    return await sandbox.ended(within_s=120)


async def taken_over(run: Run) -> Sandbox:
    """What the operator does where a heartbeat is missed for the length of a Lease: the next attempt, elsewhere."""
    lost = {"epoch": 1, "role": "runner", "reason": "OwnerLost", "message": "no heartbeat for 40 s"}
    await run.report("ATTEMPT_ENDED", lost)
    run.volume = run.world.root / "another-node"
    return await run.start(2)


async def finished(run: Run, successor: Sandbox) -> str:
    """To the end of the run, as its operator takes it there; the commit that was delivered."""
    assert await successor.ended(within_s=120) == Exit.DONE, successor.said.read_text()
    assert await (await run.verify(2)).ended(within_s=120) == Exit.DONE
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        await run.deliver(1)
    await run.deliver(2)
    commit = str((await run.state())["proposal"]["commit"])
    await run.report("RUN_SUCCEEDED", {"reason": "Completed", "message": "", "commit": commit})
    return commit


def first_owners_refs(world: World) -> str:
    """Everything that epoch 1 has in the gateway's mirrors."""
    mirrors = sorted((world.root / "mirrors").glob("*/*.git"))
    assert mirrors
    listed = [git(mirror, "for-each-ref", f"{RUNS}u1/1") for mirror in mirrors]
    return "\n".join(listed)


@pytest.mark.rule("F3", "I2", "K1")
@pytest.mark.parametrize(
    ("point", "late"),
    [
        *[pytest.param(point, False, id=f"{about}, while its successor works") for point, about in NEXT.items()],
        pytest.param(Point.CHECKPOINT_AFTER, True, id="to push a checkpoint, after the end"),
        pytest.param(Point.RESULT_BEFORE, True, id="to report a result, after the end"),
    ],
)
async def test_an_owner_that_wakes_after_its_takeover_changes_nothing(world: World, point: Point, late: bool) -> None:
    run = await world.admit(command=("sh", "-euc", AGENT), limits=ResolvedLimits(max_iterations=100))
    frozen = await frozen_at(run, point)
    kept = first_owners_refs(world)
    successor = await taken_over(run)
    if not late:
        assert await woken(frozen) == Exit.FENCED
        assert (await run.types()).count("FENCE_REFUSED") >= 1
    commit = await finished(run, successor)
    if late:
        assert await woken(frozen) in {Exit.FENCED, Exit.NOT_WANTED}
    assert frozen.left() == []

    records = await run.records()
    raised = next(at for at, r in enumerate(records) if r.type == "EPOCH_RAISED" and r.epoch == 2)
    assert {r.epoch for r in records[raised:]} == {2}
    assert [p["iteration"] for p in await run.content("ITERATION_COMPLETE")] == list(range(1, STEPS + 1))
    assert first_owners_refs(world) == kept
    assert [u.new for u in world.remote.updates if u.ref == f"refs/heads/{BRANCH}"] == [commit]
    told = git(world.remote.root / "shop.git", "show", f"{BRANCH}:all.txt")
    assert told.split() == [str(n) for n in range(1, STEPS + 1)]
