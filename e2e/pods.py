"""Plain pods for the harness's own cases: restricted, with the harness's tools."""

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from e2e.cluster.backend import Backend
from e2e.cluster.errors import HarnessError
from e2e.cluster.node import TOOLS_IMAGE

T = TypeVar("T")
SERVER_PORT = 8080
_PROBE = 'probe "$0" "$1" 2>&1; code=$?; echo; echo $code'
_PROBED = {"0": True, "1": False}  # of its exit codes, those that say how the connection went
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}

UNPRIVILEGED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, command: str, *, runtime: str | None = "gvisor", claim: str | None = None) -> dict[str, Any]:
    """A pod that meets the restricted standard, with the harness's tools."""
    container: dict[str, Any] = {
        "name": "main",
        "image": TOOLS_IMAGE,
        "command": ["sh", "-c", command],
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "work", "mountPath": "/volume"}],
    }
    volume = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": UNPRIVILEGED,
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
    """Whether a pod can connect to an address.

    Raises:
        HarnessError: nobody can say, since the pod or its probe could not be asked.
    """
    said = cluster.kubectl("exec", "-n", namespace, name, "--", "sh", "-c", _PROBE, address, str(port))
    code = said.rstrip().rpartition("\n")[2]
    if code not in _PROBED:
        raise HarnessError(f"the probe of {address}:{port} in pod {name} exited {code}:\n{said}")
    return _PROBED[code]


def server(name: str = "server") -> dict[str, Any]:
    """A pod that answers HTTP on SERVER_PORT."""
    return pod(name, f"cd /volume && echo hello > index.html && exec httpd -f -p {SERVER_PORT}", runtime=None)


def address(cluster: Backend, namespace: str, name: str) -> str:
    """Address of a running pod."""
    return cluster.kubectl("get", "pod", "-n", namespace, name, "-o", "jsonpath={.status.podIP}")


def isolate(cluster: Backend, namespace: str, name: str) -> None:
    """Refuse a pod all traffic, in and out, by a NetworkPolicy."""
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"alone-{name}"},
        "spec": {"podSelector": {"matchLabels": {"app": name}}, "policyTypes": ["Ingress", "Egress"]},
    }
    apply(cluster, namespace, policy)


def settles(look: Callable[[], T], *, to: T, within_s: float) -> T:
    """What is seen once that is what was waited for; the last that was seen where it never came."""
    deadline = time.monotonic() + within_s
    while (seen := look()) != to and time.monotonic() < deadline:
        time.sleep(0.5)
    return seen


def eventually(holds: Callable[[], bool], *, within_s: float = 15) -> bool:
    """Whether something comes to hold."""
    return settles(holds, to=True, within_s=within_s)
