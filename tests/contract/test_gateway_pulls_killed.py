"""A gateway that is killed, fails, is held up or stopped at a pull request: there is one afterwards, and no more.

The forge is a real Gitea, and the remote's own credential, a token, is all that it asks for.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.contract.killpoint_places import elsewhere
from tests.gateway_killed import Killed, Patient, meeting, verified_run
from tests.gateway_script import BRANCH, resolved

from moorage.api.wire import ResolvedDelivery, ResolvedPullRequest, SecretRef
from moorage.points import Point
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitea import GiteaForge, GiteaServer
from moorage.testing.killpoints import Fault, Shot, fired

pytestmark = pytest.mark.timeout(180)  # where nobody knows, the forge has its ten seconds


@pytest.mark.rule("K1", "W5", "E1", "E4")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_a_gateway_at_a_pull_request_there_is_one")
)
async def test_whatever_befalls_a_gateway_at_a_pull_request_there_is_one(
    gitea_server: GiteaServer, tmp_path: Path, fault: Fault, points: Sequence[Point]
) -> None:
    forge = await asyncio.to_thread(GiteaForge, gitea_server)
    shots = [Shot(point, fault=fault) for point in points]
    gateway, trace = Killed(tmp_path, password=forge.token), tmp_path / "trace"
    async with forge.serving() as api:
        asked = ResolvedPullRequest(kind="gitea", api=api, project=forge.project, credentials=SecretRef(name="git"))
        spec = resolved(forge.remote, delivery=ResolvedDelivery(branch=BRANCH, pull_request=asked))
        try:
            async with meeting(gateway, trace, shots):
                head = await verified_run(gateway.port, spec, tmp_path)
                effects = await settled(gateway.port, head)
        finally:
            await gateway.kill()
    assert all(fired(trace, shot) for shot in shots)
    assert [pull.commit for pull in await forge.made()] == [head]
    known = [(each["kind"], each["status"]) for each in effects if each["status"] != "not_dispatched"]
    assert known == [("git_push", "confirmed"), ("pull_request", "confirmed")]


async def settled(port: int, head: str) -> list[dict[str, str]]:
    """Delivery asked for until it is known to be whole; the effects then."""
    operator = Patient(port, OPERATOR_TOKEN)
    try:
        while True:
            view = await operator("POST", "/v1/runs/u1/deliver", {"epoch": 1, "commit": head})
            effects: list[dict[str, str]] = view["state"]["effects"]
            if [(each["kind"], each["status"]) for each in effects][-1:] == [("pull_request", "confirmed")]:
                return effects
            await asyncio.sleep(0.1)
    finally:
        await operator.http.aclose()
