"""What `kubectl moorage doctor` looks at on a cluster: is Moorage installed, does it run, may this person use it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx

from moorage.api.names import API_VERSION, CONSTRAINTS, GROUP, KINDS, PART_OF, PRODUCT
from moorage.cli.checks import Check, fail, ok, warn
from moorage.cli.cluster import READER, Cluster, asked, gateway_pod
from moorage.cli.exits import CliError
from moorage.sandbox.kube import path_of

LEAST_KUBERNETES = (1, 34)
AUTHORIZATION = "authorization.k8s.io/v1"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PATIENCE_S = 60.0
POLL_S = 1.0
FLOW_CONTROL = "flowcontrol.apiserver.k8s.io/v1"


async def installation(cluster: Cluster) -> list[Check]:
    """All checks of a cluster; once the API server doesn't answer, nothing else is asked."""
    try:
        first = await version(cluster)
    except CliError as error:
        return [fail("kubernetes", error.message, error.hint)]
    rest = (definitions, runtime_classes, storage, flow_control, gateway, rights)
    found = [await _guarded(check.__name__, check(cluster)) for check in rest]
    return [first, *(check for checks in found for check in checks)]


async def _guarded(name: str, checks: Any) -> list[Check]:
    """A check that may not be made is a finding, not the end."""
    try:
        answer = await checks
    except CliError as error:
        return [warn(name.replace("_", " "), error.message, error.hint or "ask somebody with more rights")]
    return answer if isinstance(answer, list) else [answer]


async def version(cluster: Cluster) -> Check:
    """Kubernetes is new enough."""
    info = await asked(cluster.api.get("/version"), "version") or {}
    return judged_version(str(info.get("gitVersion")), str(info.get("major")), str(info.get("minor")))


def judged_version(told: str, major: str, minor: str) -> Check:
    """The verdict on a version; providers append signs to the minor one."""
    found = int(major), int(re.match(r"\d*", minor)[0] or 0)  # type: ignore[index]  # the pattern matches the empty string
    if found < LEAST_KUBERNETES:
        least = ".".join(map(str, LEAST_KUBERNETES))
        return fail("kubernetes", f"{told} is too old", f"upgrade the cluster to {least} or later")
    return ok("kubernetes", told)


async def definitions(cluster: Cluster) -> Check:
    """Our kinds are served."""
    listed = await asked(cluster.api.get(f"/apis/{API_VERSION}"), "API resources")
    if listed is None:
        return fail("definitions", f"{API_VERSION} is not served", "install the chart with crds.install=true")
    served = {each["name"] for each in listed["resources"]}
    missing = [kind for kind in (*KINDS, CONSTRAINTS) if kind not in served]
    if missing:
        judged = warn if missing == [CONSTRAINTS] else fail  # runs do without them
        return judged("definitions", f"not served: {', '.join(missing)}", "upgrade the chart with crds.install=true")
    return ok("definitions", f"{API_VERSION}: {', '.join((*KINDS, CONSTRAINTS))}")


async def runtime_classes(cluster: Cluster) -> Check:
    """Sandboxes can be isolated."""
    found = await asked(cluster.api.items(path_of("node.k8s.io/v1", "runtimeclasses")), "RuntimeClasses")
    names = sorted(str(each["metadata"]["name"]) for each in found)
    if not names:
        hint = (
            "install gVisor on the nodes and set runtimeClass.create=true, or sandbox.runtimeClassName to another one"
        )
        return fail("runtime classes", "there is none", hint)
    return ok("runtime classes", ", ".join(names))


async def storage(cluster: Cluster) -> Check:
    """Volumes come without being asked for by class."""
    found = await asked(cluster.api.items(path_of("storage.k8s.io/v1", "storageclasses")), "StorageClasses")
    metas = [each["metadata"] for each in found]
    defaults = [str(m["name"]) for m in metas if (m.get("annotations") or {}).get(DEFAULT_CLASS) == "true"]
    if not defaults:
        hint = "mark one as default, or set store.sqlite.storageClassName and sandbox.storageClassName"
        return warn("storage", "no StorageClass is the default", hint)
    return ok("storage", ", ".join(defaults))


async def flow_control(cluster: Cluster) -> Check:
    """Nobody's traffic at the API server delays our Leases."""
    path = path_of(FLOW_CONTROL, "flowschemas")
    found = await asked(cluster.api.items(path, labels=f"{PART_OF}={PRODUCT}"), "FlowSchemas")
    return judged_flow(found)


def judged_flow(schemas: list[dict[str, Any]]) -> Check:
    """The verdict on the release's FlowSchemas: there, and each with the level that it names."""
    if not schemas:
        why = "not enforced: a flood at the API server may cost runs their owners"
        hint = "set flowControl.enabled=true; an installation for some namespaces only can't have it"
        return warn("flow control", why, hint)
    dangling = [
        str(each["metadata"]["name"])
        for each in schemas
        for condition in each.get("status", {}).get("conditions", [])
        if condition["type"] == "Dangling" and condition["status"] == "True"
    ]
    if dangling:
        why = f"not enforced: the level of {', '.join(sorted(dangling))} is gone"
        return warn("flow control", why, "run helm upgrade again: it puts levels back")
    return ok("flow control", ", ".join(sorted(str(each["metadata"]["name"]) for each in schemas)))


async def gateway(cluster: Cluster) -> Check:
    """A gateway is ready; the operator can't move a run without one."""
    try:
        return ok("gateway", f"{await gateway_pod(cluster)} is ready")
    except CliError as error:
        return fail("gateway", error.message, error.hint)


async def rights(cluster: Cluster) -> list[Check]:
    """What this person may do."""
    here, system = cluster.namespace, cluster.system_namespace
    wanted = {
        "create runs": {"namespace": here, "verb": "create", "group": GROUP, "resource": "agentruns"},
        "read runs": {"namespace": here, "verb": "get", "group": GROUP, "resource": "agentruns"},
        "read evidence": {
            "namespace": here,
            "verb": "create",
            "resource": "serviceaccounts",
            "subresource": "token",
            "name": READER,
        },
        "reach the gateway": {
            "namespace": system,
            "verb": "create",
            "resource": "pods",
            "subresource": "portforward",
        },
    }
    return [await _right(cluster, told, attributes) for told, attributes in wanted.items()]


async def _right(cluster: Cluster, told: str, wanted: dict[str, str]) -> Check:
    body = {"spec": {"resourceAttributes": wanted}}
    answer = await asked(cluster.api.create(path_of(AUTHORIZATION, "selfsubjectaccessreviews"), body), "your rights")
    where = wanted["namespace"]
    if answer["status"].get("allowed"):
        return ok("rights", f"you may {told} in {where}")
    what = "/".join(wanted[part] for part in ("resource", "subresource") if part in wanted)
    return warn("rights", f"you may not {told} in {where}", f"you need {wanted['verb']} on {what} there")


async def ready(url: str) -> Check:
    """From inside the cluster: the gateway says that it is ready, within a minute."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    async with httpx.AsyncClient(timeout=5.0) as http:
        while True:
            said = await _readiness(http, url)
            if said == "200" or loop.time() >= deadline:
                break
            await asyncio.sleep(POLL_S)
    if said == "200":
        return ok("gateway", f"{url} is ready")
    return fail("gateway", f"{url}/readyz: {said}", "look at the gateway's logs")


async def _readiness(http: httpx.AsyncClient, url: str) -> str:
    try:
        return str((await http.get(f"{url}/readyz")).status_code)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
