"""The cluster that the cases run on: brought up once, left up for the next run unless MOORAGE_E2E_DOWN=1."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from e2e.cluster import backend
from e2e.cluster.backend import Backend
from e2e.cluster.source import SourceCluster

_CASES = Path(__file__).parent / "cases"
_CASE_LIMIT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every case here needs the cluster, and takes longer than a unit test may."""
    for item in items:
        if not item.path.is_relative_to(_CASES):
            continue  # the hook sees what other folders collected too
        item.add_marker("e2e")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_CASE_LIMIT_S))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Backend]:
    """A real cluster with gVisor, volumes and enforced network policies."""
    chosen = backend.choose()
    chosen.up()
    yield chosen
    if os.environ.get("MOORAGE_E2E_DOWN") == "1":
        chosen.down()


@pytest.fixture(scope="session")
def two_nodes(cluster: Backend) -> SourceCluster:
    """The cluster with a second node, which can be cut off; only the one built from source can."""
    if not isinstance(cluster, SourceCluster):
        pytest.skip("a node can only be cut off where the harness made its network")
    cluster.up(2)
    return cluster


@pytest.fixture
def namespace(cluster: Backend) -> Iterator[str]:
    """A namespace of the test's own, under the `restricted` Pod Security Standard."""
    name = f"case-{uuid4().hex[:10]}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
