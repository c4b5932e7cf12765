"""Moorage on the cluster: images built from this checkout, the chart installed, an outside world, a tenant per case."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from e2e import upstream
from e2e.cluster.backend import Backend
from e2e.cluster.locks import exclusive
from e2e.system import MANIFESTS, Tenant, cordoned
from e2e.upstream import Upstream


@pytest.fixture(scope="session")
def system(cluster: Backend, tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """Moorage, installed with Helm from this checkout, and an outside world for it.

    Where several processes share the cases, the first one makes it for all of them.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return _made(cluster)
    shared = tmp_path_factory.getbasetemp().parent
    told = shared / "upstream.json"
    with exclusive(shared / "upstream.lock"):
        if not told.exists():
            made = _made(cluster)
            told.write_text(json.dumps([made.namespace, made.git_url, made.model_url]))
    return Upstream(cluster, *json.loads(told.read_text()))


def _made(cluster: Backend) -> Upstream:
    cluster.load_images(cluster.build_images())
    with cordoned(cluster, "node2"):  # which may be cut off later, where the cluster has it
        cluster.deploy()
        return upstream.start(cluster, more=MANIFESTS / "model-conversations.yaml")


@pytest.fixture
def tenant(cluster: Backend, system: Upstream) -> Iterator[Tenant]:
    """A tenant of the test's own."""
    name = f"case-{uuid4().hex[:10]}"
    yield Tenant.create(cluster, system, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def moorage(cluster: Backend, system: Upstream) -> Callable[..., str]:
    """`moorage …` against the cluster; `code` is the exit code that is expected."""

    def call(*arguments: str, code: int = 0) -> str:
        argv = [str(Path(sys.executable).parent / "moorage"), *arguments]
        env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig())}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=60)
        assert done.returncode == code, f"{argv} exited {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return call
