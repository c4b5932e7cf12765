"""A real kube-apiserver and etcd for the integration tests: one per test session, a namespace per test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.integration.operator_world import OperatorWorld, install_crds, operator_world

from e2e.cluster.apiserver import ApiServer, api_server


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
    api_server.kubectl("wait", "-n", name, "--for=create", "serviceaccount/default", "--timeout=20s")
    return name


@pytest.fixture
async def world(api_server: ApiServer, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorWorld]:
    """That namespace, a gateway of its own, and an operator that the test starts."""
    install_crds(api_server)
    async with operator_world(api_server, namespace, tmp_path) as made:
        yield made
