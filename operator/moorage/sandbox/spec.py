"""The objects that a run needs in Kubernetes, as plain dicts: pure, so that what a sandbox may do is read in one place.

T4: pods meet the `restricted` Pod Security Standard. T3: nothing but the gateway is reachable, and no name is resolved.
T2: the one token is the gateway's; it opens nothing at the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from moorage.api import names
from moorage.api.quantity import amount
from moorage.api.wire import ResolvedRun, Role
from moorage.sandbox.port import RunKey, Which

Body = dict[str, Any]
GATEWAY_HOST = "moorage-gateway"
TOKEN_DIR = "/var/run/moorage"  # noqa: S105  a folder, not a token
TOKEN_FILE = f"{TOKEN_DIR}/token"
VOLUME = "/workspace"
UID = 1000
LEASE_SECONDS = 40  # F4
CONTAINER = "runner"


@dataclass(frozen=True)
class SandboxSettings:
    """What an installation fixes for all sandboxes.

    gateway_ip, gateway_port: the Service that sandboxes talk to. gateway_namespace, gateway_labels: its pods, for the
    policy; gateway_pod_port is what they listen on. probe: host:port that must be refused before an agent starts (T3).
    """

    gateway_ip: str
    gateway_port: int
    gateway_namespace: str
    gateway_labels: dict[str, str]
    gateway_pod_port: int = 8080
    audience: str = "moorage-gateway"
    token_seconds: int = 3600
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    probe: str | None = None
    priority_classes: Mapping[str, str] = field(default_factory=dict)
    """The PriorityClass of sandboxes by scheduling.class; a class that isn't in it has the cluster's default."""

    tmp_size: str = "1Gi"
    default_disk: str = "5Gi"
    cpu_request: Fraction = field(default=Fraction(1, 10))
    """Part of the cpu limit that is reserved: an agent mostly waits for a model."""

    memory_request: Fraction = field(default=Fraction(1, 2))
    """Part of the memory limit that is reserved."""


def owner(run: RunKey) -> Body:
    """Children go with their AgentRun; its deletion never waits for them."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "name": run.name,
        "uid": run.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _meta(run: RunKey, name: str, labels: dict[str, str], **annotations: str) -> Body:
    return {
        "name": name,
        "namespace": run.tenant,
        "labels": labels,
        "annotations": {names.RUN_NAME: run.name, **annotations},
        "ownerReferences": [owner(run)],
    }


# --- the sandbox ------------------------------------------------------------------------------------------------------


def pod(run: RunKey, spec: ResolvedRun, settings: SandboxSettings, which: Which) -> Body:
    """The sandbox of that epoch, role and serial."""
    role = which.role.value
    name = names.sandbox_name(run.uid, run.name, which.epoch, role, which.serial)
    about = {names.COMMIT: which.commit} if which.commit else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _meta(run, name, names.sandbox_labels(run.uid, role, which.epoch), **about),
        "spec": _pod_spec(run, spec, settings, which.role),
    }


def _pod_spec(run: RunKey, spec: ResolvedRun, settings: SandboxSettings, role: Role) -> Body:
    body: Body = {
        "restartPolicy": "Never",
        "serviceAccountName": names.SANDBOX,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "hostAliases": [{"ip": settings.gateway_ip, "hostnames": [GATEWAY_HOST]}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, settings)],
        "volumes": _volumes(run, spec, settings, role),
    }
    if spec.sandbox.runtime_class:
        body["runtimeClassName"] = spec.sandbox.runtime_class
    if priority := settings.priority_classes.get(spec.scheduling_class):
        body["priorityClassName"] = priority
    if settings.pull_secrets:
        body["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return body


def _container(spec: ResolvedRun, settings: SandboxSettings) -> Body:
    env = {
        "MOORAGE_GATEWAY_URL": f"http://{GATEWAY_HOST}:{settings.gateway_port}",
        "MOORAGE_TOKEN_FILE": TOKEN_FILE,
        "MOORAGE_VOLUME": VOLUME,
    }
    if settings.probe:
        env["MOORAGE_PROBE"] = settings.probe
    return {
        "name": CONTAINER,
        "image": spec.agent.image,
        "imagePullPolicy": settings.pull_policy,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": resources(spec, settings),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "File",  # logs are content, and content never enters an object
        "volumeMounts": [
            {"name": "workspace", "mountPath": VOLUME},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  a volume of the sandbox's own
            {"name": "token", "mountPath": TOKEN_DIR, "readOnly": True},
        ],
    }


def _volumes(run: RunKey, spec: ResolvedRun, settings: SandboxSettings, role: Role) -> list[Body]:
    token = {"audience": settings.audience, "expirationSeconds": settings.token_seconds, "path": "token"}
    disk = spec.sandbox.disk or settings.default_disk
    workspace: Body = {"emptyDir": {"sizeLimit": disk}}
    if role is Role.RUNNER:
        workspace = {"persistentVolumeClaim": {"claimName": names.volume_name(run.uid, run.name)}}
    return [
        {"name": "workspace", **workspace},
        {"name": "tmp", "emptyDir": {"sizeLimit": settings.tmp_size}},
        {"name": "token", "projected": {"defaultMode": 0o440, "sources": [{"serviceAccountToken": token}]}},
    ]


def resources(spec: ResolvedRun, settings: SandboxSettings) -> Body:
    """Limits as asked for; a part of them reserved."""
    limits, requests = {}, {}
    if spec.sandbox.cpu:
        limits["cpu"] = spec.sandbox.cpu
        requests["cpu"] = f"{max(1, int(amount(spec.sandbox.cpu) * settings.cpu_request * 1000))}m"
    if spec.sandbox.memory:
        limits["memory"] = spec.sandbox.memory
        requests["memory"] = str(max(1, int(amount(spec.sandbox.memory) * settings.memory_request)))
    return {"limits": limits, "requests": requests} if limits else {}


def needs(spec: ResolvedRun, settings: SandboxSettings, pod: bool, volume: bool) -> dict[str, Fraction]:
    """What a sandbox (or a verifier, which is as large) and a volume take of a ResourceQuota, by its own names."""
    found: dict[str, Fraction] = {}
    if pod:
        body = resources(spec, settings)
        found |= {"pods": Fraction(1), "count/pods": Fraction(1)}
        for kind in ("limits", "requests"):
            found |= {f"{kind}.{name}": amount(text) for name, text in body.get(kind, {}).items()}
        found |= {name: amount(text) for name, text in body.get("requests", {}).items()}
    if volume:
        claims = "persistentvolumeclaims"
        found |= {claims: Fraction(1), f"count/{claims}": Fraction(1)}
        found["requests.storage"] = amount(spec.sandbox.disk or settings.default_disk)
    return found


def volume(run: RunKey, spec: ResolvedRun, settings: SandboxSettings) -> Body:
    """The claim for the run's worktree: it outlives an attempt."""
    claim: Body = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": spec.sandbox.disk or settings.default_disk}},
    }
    if spec.workspace.storage:
        claim["storageClassName"] = spec.workspace.storage
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(run, names.volume_name(run.uid, run.name), names.run_labels(run.uid)),
        "spec": claim,
    }


def lease(run: RunKey, epoch: int, holder: str, now: str, previous: Body | None = None) -> Body:
    """F1: the Lease at `epoch`; over `previous` it is a compare-and-swap on its resourceVersion."""
    meta = _meta(run, names.lease_name(run.uid, run.name), names.run_labels(run.uid), **{names.EPOCH: str(epoch)})
    transitions = 0
    if previous is not None:
        meta["resourceVersion"] = previous["metadata"]["resourceVersion"]
        transitions = int((previous.get("spec") or {}).get("leaseTransitions") or 0) + 1
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        },
    }


# --- once per tenant --------------------------------------------------------------------------------------------------


def _tenant_meta(namespace: str) -> Body:
    return {"name": names.SANDBOX, "namespace": namespace, "labels": {names.MANAGED_BY: names.PRODUCT}}


def service_account(namespace: str) -> Body:
    """The sandboxes' identity: no role is ever bound to it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _tenant_meta(namespace),
        "automountServiceAccountToken": False,
    }


def network_policy(namespace: str, settings: SandboxSettings) -> Body:
    """T3: in by nobody, out to the gateway's pods on their port and nowhere else, names included."""
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.gateway_namespace}},
        "podSelector": {"matchLabels": dict(settings.gateway_labels)},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _tenant_meta(namespace),
        "spec": {
            "podSelector": {"matchExpressions": [{"key": names.ROLE, "operator": "Exists"}]},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [{"to": [peer], "ports": [{"protocol": "TCP", "port": settings.gateway_pod_port}]}],
        },
    }
