"""A run's life with the operator, the API server and the gateway real, and a test in place of kubelet and agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from tests.integration.operator_world import OperatorWorld, install_crds, operator_world

pytestmark = pytest.mark.integration


@pytest.fixture
async def world(api_server: ApiServer, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorWorld]:
    install_crds(api_server)
    async with operator_world(api_server, namespace, tmp_path) as made:
        yield made


async def test_a_run_gets_lease_volume_pod_and_ends_well(world: OperatorWorld) -> None:
    await world.start()
    await world.apply_run("fix")
    pod = await world.until_pod()
    await world.until_phase("fix", "Provisioning")
    await world.work(pod, finish=False)
    running = await world.until_phase("fix", "Running")
    assert running["epoch"] == 1
    await world.finish(pod)
    await world.end_pod(pod)
    status = await world.until_phase("fix", "Succeeded")
    print(world.writes)
    assert status["observedGeneration"] == 1
