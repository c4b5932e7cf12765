"""K1 on real pods: processes of ours are armed by their environment, which nothing in the chart can set.

Operator and gateway get it by `kubectl set env`, a sandbox by an admission policy of the harness's that names its pod.
What a process has met is noted in its pod's /tmp, which outlives the container: each shot fires once in each pod.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from e2e.cluster.shell import wait_until
from e2e.pods import pod
from e2e.system import Installation, Tenant
from moorage.points import VARIABLE
from moorage.sandbox.spec import CONTAINER
from moorage.testing.killpoints import FAULT, TRACE, Shot

ADMISSION = "admissionregistration.k8s.io/v1"
_NOTES = "/tmp/points"
_PATIENCE_S = 60


def _variables(*shots: Shot) -> dict[str, str]:
    return {VARIABLE: "moorage.testing.killpoints", TRACE: _NOTES, FAULT: " ".join(map(str, shots))}


@contextlib.contextmanager
def armed(moorage: Installation, shots: Mapping[str, tuple[Shot, ...]]) -> Iterator[None]:
    """Have `operator` and `gateway` meet shots, by the name of the process; each is restarted before and afterwards."""
    try:
        _set(moorage, {app: [f"{k}={v}" for k, v in _variables(*each).items()] for app, each in shots.items()})
        yield
    finally:
        disarm(moorage, *shots)


def disarm(moorage: Installation, *apps: str) -> None:
    """Let them meet nothing more; those that nobody has armed go on undisturbed."""
    _set(moorage, {app: [f"{name}-" for name in _variables()] for app in apps})


def _set(moorage: Installation, variables: Mapping[str, list[str]]) -> None:
    for app, each in variables.items():
        moorage.kubectl("set", "env", f"deploy/moorage-{app}", *each)
    for app in variables:
        moorage.settled(app)


def unmet(moorage: Installation, app: str, shots: Iterable[Shot]) -> list[Shot]:
    """Those that a process has not met yet."""
    listed = moorage.kubectl("exec", f"deploy/moorage-{app}", "--", "ls", "/tmp").split()
    return [shot for shot in shots if f"points.{shot}.fired".replace("/", "-") not in listed]


@contextlib.contextmanager
def armed_sandboxes(tenant: Tenant, shots: Mapping[str, Shot]) -> Iterator[None]:
    """Have the pods of these names, which needn't be there yet, meet a shot each, from now on."""
    about = {"name": f"{tenant.namespace}-armed"}
    binding = {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": about["name"]}}
    policy = {"kind": "MutatingAdmissionPolicy", "spec": _policy(tenant.namespace, shots)}
    try:
        for body in (policy, binding):
            tenant.cluster.kubectl(
                "apply", "-f", "-", stdin=json.dumps({"apiVersion": ADMISSION, "metadata": about, **body})
            )
        for each in shots:
            _await(tenant, each)
        yield
    finally:
        kinds = "mutatingadmissionpolicybinding,mutatingadmissionpolicy"
        tenant.cluster.kubectl("delete", kinds, about["name"], "--ignore-not-found")


def _policy(namespace: str, shots: Mapping[str, Shot]) -> dict[str, Any]:
    told = {name: str(shot) for name, shot in shots.items()}
    env = [
        f"Object.spec.containers.env{{name: {json.dumps(name)}, value: {value}}}"
        for name, value in (
            *((name, json.dumps(value)) for name, value in _variables().items() if name != FAULT),
            (FAULT, f"{json.dumps(told)}[object.metadata.name]"),
        )
    ]
    container = f"Object.spec.containers{{name: {json.dumps(CONTAINER)}, env: [{', '.join(env)}]}}"
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
        },
        "matchConditions": [{"name": "armed", "expression": f"object.metadata.name in {json.dumps(sorted(told))}"}],
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": f"Object{{spec: Object.spec{{containers: [{container}]}}}}"},
            }
        ],
    }


def _await(tenant: Tenant, name: str) -> None:
    """Until the API server knows the policy, as a pod that is only tried shows."""
    trial = pod(name, "true", runtime=None)
    trial["spec"]["containers"][0]["name"] = CONTAINER
    create = ("create", "--dry-run=server", "-f", "-", "-o", "json")
    wait_until(
        lambda: FAULT in tenant.kubectl(*create, stdin=json.dumps(trial)),
        f"the arming of pod {name}",
        timeout_s=_PATIENCE_S,
        pause_s=0.2,
    )
