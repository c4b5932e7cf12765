"""The gateway is killed again and again while a whole run passes through it, and nobody can tell afterwards."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.gateway_killed import Killed, delivered_once, running, whole_run
from tests.gateway_process import SNAPSHOTS
from tests.gateway_script import resolved

from moorage.points import Point
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Shot, environment, fired

pytestmark = pytest.mark.timeout(180)  # each case starts several gateways


@pytest.mark.rule("K1", "P1")
@pytest.mark.parametrize("point", [Point.SNAPSHOT_BEFORE, Point.SNAPSHOT_AFTER])
async def test_a_gateway_killed_around_a_snapshot_goes_on_from_the_journal(
    upstream: GitServer, tmp_path: Path, point: Point
) -> None:
    """Every record is followed by a snapshot here, and the gateway is killed at every third."""
    shots = [Shot(point, number) for number in (2, 5, 8)]
    often = {SNAPSHOTS: "1", **environment(tmp_path / "trace", *shots)}
    gateway = Killed(tmp_path)
    await gateway.start(often)
    try:
        working = asyncio.create_task(whole_run(gateway.port, resolved(upstream), tmp_path))
        while not working.done():
            assert gateway.process is not None
            ended = asyncio.create_task(gateway.process.wait())
            await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await gateway.start(often)
            ended.cancel()
        head, view = await working
    finally:
        await gateway.kill()
    assert all(fired(tmp_path / "trace", shot) for shot in shots)
    delivered_once(upstream, head, view["state"])


@pytest.mark.rule("E6", "J3", "R1", "E2")
@pytest.mark.parametrize("seed", range(3))
async def test_a_gateway_killed_at_any_moment_delivers_once(upstream: GitServer, tmp_path: Path, seed: int) -> None:
    async with running(tmp_path) as gateway:
        working = asyncio.create_task(whole_run(gateway.port, resolved(upstream), tmp_path))
        await gateway.torture(random.Random(seed), times=4)
        head, view = await working
        assert gateway.kills == 4
    delivered_once(upstream, head, view["state"])
