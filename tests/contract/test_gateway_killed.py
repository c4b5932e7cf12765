"""The gateway is killed again and again while a whole run passes through it, and nobody can tell afterwards."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.contract.killpoint_places import elsewhere
from tests.gateway_killed import Killed, delivered_once, meeting, running, whole_run
from tests.gateway_process import SNAPSHOTS
from tests.gateway_script import resolved

from moorage.points import Point
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Fault, Shot, fired

pytestmark = pytest.mark.timeout(180)  # each case starts several gateways


@pytest.mark.rule("K1", "P1")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_a_gateway_at_a_snapshot_the_run_goes_on")
)
async def test_whatever_befalls_a_gateway_at_a_snapshot_the_run_goes_on(
    upstream: GitServer, tmp_path: Path, fault: Fault, points: Sequence[Point]
) -> None:
    """From the journal: every record is followed by a snapshot here, and the gateway is disturbed at every third."""
    shots = [Shot(point, number, fault) for point in points for number in (2, 5, 8)]
    gateway, trace = Killed(tmp_path), tmp_path / "trace"
    try:
        async with meeting(gateway, trace, shots, {SNAPSHOTS: "1"}):
            head, view = await whole_run(gateway.port, resolved(upstream), tmp_path)
    finally:
        await gateway.kill()
    assert all(fired(trace, shot) for shot in shots)
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
