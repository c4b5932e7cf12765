"""The harness itself: what every other case takes for granted."""

import json
import time
from typing import Any

import pytest

from e2e.cluster import network
from e2e.cluster.backend import Backend
from e2e.cluster.errors import CommandFailedError
from e2e.cluster.layout import METADATA_ADDRESS, PUBLIC_ADDRESS, PUBLIC_ADDRESS_V6
from e2e.cluster.node import TOOLS_IMAGE

SERVER_PORT = 8080
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod(name: str, command: str, *, runtime: str | None = "gvisor", claim: str | None = None) -> dict[str, Any]:
    """A pod that meets the restricted standard, with the harness's tools."""
    container: dict[str, Any] = {
        "name": "main",
        "image": TOOLS_IMAGE,
        "command": ["sh", "-c", command],
        "securityContext": _RESTRICTED,
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
    }
    volume = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "work", **volume}],
    }
    if runtime:
        spec["runtimeClassName"] = runtime
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def apply(cluster: Backend, namespace: str, *objects: dict[str, Any]) -> None:
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=document)


def wait_ready(cluster: Backend, namespace: str, *names: str) -> None:
    pods = [f"pod/{name}" for name in names]
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", "--timeout=60s", *pods)


def reaches(cluster: Backend, namespace: str, name: str, address: str, port: int) -> bool:
    try:
        cluster.kubectl("exec", "-n", namespace, name, "--", "probe", address, str(port))
    except CommandFailedError:
        return False
    return True


def test_a_restricted_gvisor_pod_writes_to_its_volume(cluster: Backend, namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "work"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    command = "dmesg | head -1 > /work/kernel && id -u > /work/uid && exec sleep 3600"
    apply(cluster, namespace, claim, pod("sandbox", command, claim="work"))
    wait_ready(cluster, namespace, "sandbox")
    written = cluster.kubectl("exec", "-n", namespace, "sandbox", "--", "cat", "/work/kernel", "/work/uid")
    assert "gVisor" in written
    assert written.splitlines()[-1] == "1000"


@pytest.mark.parametrize("runtime", ["gvisor", None])
def test_a_policy_refuses_what_a_pod_without_one_reaches(cluster: Backend, namespace: str, runtime: str | None) -> None:
    server = pod("server", f"cd /work && echo hello > index.html && exec httpd -f -p {SERVER_PORT}", runtime=None)
    apply(cluster, namespace, server, pod("client", "exec sleep 3600", runtime=runtime))
    wait_ready(cluster, namespace, "server", "client")
    address = cluster.kubectl("get", "pod", "-n", namespace, "server", "-o", "jsonpath={.status.podIP}")
    api = cluster.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
    targets = [(address, SERVER_PORT), (api, 443), (PUBLIC_ADDRESS, 80), (METADATA_ADDRESS, 80)]
    if network.ipv6_works():
        targets.append((PUBLIC_ADDRESS_V6, 80))

    def reached() -> list[bool]:
        return [reaches(cluster, namespace, "client", *target) for target in targets]

    assert reached() == [True] * len(targets)
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "alone"},
        "spec": {"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Ingress", "Egress"]},
    }
    apply(cluster, namespace, policy)
    deadline = time.monotonic() + 15
    while any(reached()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert reached() == [False] * len(targets)
