"""A real kube-apiserver and etcd for the integration tests: one per test session, a namespace per test."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

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
