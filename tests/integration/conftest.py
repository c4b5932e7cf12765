"""A real kube-apiserver and etcd for the integration tests: one per test session, a namespace per test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.integration.operator_world import OperatorWorld, install_crds, operator_world

from e2e.cluster.apiserver import ApiServer, api_server

HERE = Path(__file__).parent
LIMIT_S = 180  # an API server on a busy machine takes its time, and one wait alone may take 45 s


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A time limit for the tests of this folder that have none of their own."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session", name="api_server")
def api_server_fixture() -> Iterator[ApiServer]:
    """API server with garbage collection, namespace deletion and quotas; ``.kubeconfig``, ``.url``, ``.token``."""
    with api_server() as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    """Name of a fresh namespace; it goes with the server."""
    name = f"test-{uuid4().hex[:10]}"
    api_server.kubectl("create", "namespace", name)
    # pods are refused before it
    api_server.kubectl("wait", "-n", name, "--for=create", "serviceaccount/default", "--timeout=60s")
    return name


@pytest.fixture
async def world(api_server: ApiServer, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorWorld]:
    """That namespace, a gateway of its own, and an operator that the test starts."""
    install_crds(api_server)
    async with operator_world(api_server, namespace, tmp_path) as made:
        yield made
