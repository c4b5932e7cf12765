"""The life of a release: from the first chart there was to this one, back, on again, and away, with runs in flight."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.operator_world import SPEC
from tests.integration.test_chart_installs import CHART, CLUSTERS, Helm, in_namespace, kinds

from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.shell import wait_until
from moorage.api import names

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FIRST = Path(__file__).parents[1] / "released" / "chart-0001.tgz"
"""The first chart that had definitions, as git keeps it (ebb087e22914484918adf7f83646714b88dc2ef7)."""

SECRET_LIMIT = 1024 * 1024
HOOKS = ("validatingwebhookconfiguration", "mutatingwebhookconfiguration")
RUNNING = {"phase": "Running", "epoch": 3, "attempt": 3, "observedGeneration": 1}
LATER = RUNNING | {"placement": {"kind": "cluster", "node": "n1"}}
"""With what the first chart didn't know."""

TENANT = "team-a"
OURS = ("-l", "app.kubernetes.io/part-of=moorage")


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A server of its own: this release owns the definitions."""
    with api_server() as alone:
        alone.kubectl("create", "namespace", TENANT)
        alone.kubectl("wait", "-n", TENANT, "--for=create", "serviceaccount/default", "--timeout=60s")
        yield alone


def established(server: ApiServer) -> None:
    server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def in_flight(server: ApiServer, name: str, status: dict[str, Any] = RUNNING, **spec: Any) -> dict[str, Any]:
    """A run as it stands while an agent works, with what is the run's beside it."""
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": {"name": name, "namespace": TENANT},
        "spec": SPEC | spec,
    }
    server.kubectl("create", "-f", "-", stdin=json.dumps(body))
    patch = json.dumps({"status": status})
    server.kubectl("patch", "ar", name, "-n", TENANT, "--subresource=status", "--type=merge", "-p", patch)
    made = run(server, name)
    meta = made["metadata"]
    owner = {"apiVersion": names.API_VERSION, "kind": "AgentRun", "name": name, "uid": meta["uid"]}
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": f"lease-{name}", "namespace": TENANT, "ownerReferences": [owner]},
    }
    server.kubectl("create", "-f", "-", stdin=json.dumps(lease))
    return made


def run(server: ApiServer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.kubectl("get", "ar", name, "-n", TENANT, "-o", "json"))
    return found


def goes_on(server: ApiServer, name: str, epoch: int) -> None:
    """Its operator can still say how far it is, and nothing of what it said is gone."""
    before = run(server, name)
    assert before["status"]["phase"] == "Running"
    patch = json.dumps({"status": {"epoch": epoch}})
    server.kubectl("patch", "ar", name, "-n", TENANT, "--subresource=status", "--type=merge", "-p", patch)
    after = run(server, name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"] == before["spec"]
    assert after["status"] == before["status"] | {"epoch": epoch}


def guards(server: ApiServer) -> list[str]:
    """What the release has in no namespace."""
    return server.kubectl("get", ",".join(CLUSTERS), *OURS, "-o", "name").split()


def release_sizes(helm: Helm) -> list[int]:
    """Bytes of each revision's Secret."""
    said = helm.server.kubectl("get", "secret", "-n", helm.namespace, "-l", "owner=helm", "-o", "json")
    return [len(base64.b64decode(each["data"]["release"])) for each in json.loads(said)["items"]]


def terminating(server: ApiServer, namespace: str) -> list[str]:
    """Objects of any kind there that are deleted and don't go."""
    listed = server.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    found = json.loads(server.kubectl("get", ",".join(listed), "-n", namespace, "-o", "json"))["items"]
    return [f"{each['kind']}/{each['metadata']['name']}" for each in found if "deletionTimestamp" in each["metadata"]]


@pytest.mark.rule("R8")
def test_runs_in_flight_outlive_an_upgrade_a_rollback_and_the_release(server: ApiServer) -> None:
    helm = in_namespace(server)
    helm("install", "moorage", str(FIRST))
    established(server)
    old = in_flight(server, "old")

    helm("upgrade", "moorage", str(CHART))
    established(server)
    goes_on(server, "old", 4)
    new = in_flight(
        server,
        "new",
        LATER,
        scheduling={"class": "background"},
        approvals=[{"name": "result", "before": "Delivery"}],
        delivery={"branch": "moorage/new", "push": False},
    )
    assert guards(server)

    helm("rollback", "moorage", "1")
    established(server)
    assert not [each for each in guards(server) if "policy" in each or "flow" in each], "the first chart had none"
    goes_on(server, "old", 5)

    helm("upgrade", "moorage", str(CHART))
    established(server)
    goes_on(server, "old", 6)
    goes_on(server, "new", 4)
    assert run(server, "new")["spec"] == new["spec"]
    assert run(server, "new")["status"]["placement"] == LATER["placement"], "unknown to the first chart, and as it was"
    assert run(server, "old")["metadata"]["uid"] == old["metadata"]["uid"]
    sizes = release_sizes(helm)
    assert len(sizes) == 4
    assert max(sizes) < SECRET_LIMIT / 3, f"{sizes} bytes: Helm can't keep a release beyond {SECRET_LIMIT}"

    helm("uninstall", "moorage")
    left_alone(helm)


def left_alone(helm: Helm) -> None:
    """Definitions and runs are there; nothing of the release is, and so nothing that could hold up who deletes them."""
    server = helm.server
    kept = server.kubectl("get", "crd", "-o", "name")
    assert all(f"customresourcedefinition.apiextensions.k8s.io/{kind}" in kept for kind in kinds(server))
    goes_on(server, "old", 7)
    assert guards(server) == []
    assert server.kubectl("get", ",".join(HOOKS), "-o", "name").split() == []
    assert terminating(server, helm.namespace) == []
    server.kubectl("delete", "ar", "old", "new", "-n", TENANT, "--timeout=30s")
    wait_until(
        lambda: "lease-" not in server.kubectl("get", "lease", "-n", TENANT, "-o", "name"), "theirs", timeout_s=60
    )
    assert terminating(server, TENANT) == []
    server.kubectl("delete", "namespace", TENANT, "--timeout=60s")
