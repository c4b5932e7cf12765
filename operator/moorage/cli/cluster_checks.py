"""What `kubectl moorage doctor` looks at on a cluster: is Moorage installed, does it run, may this person use it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from moorage.api.names import GROUP, VERSION
from moorage.cli.checks import Check, fail, ok, warn
from moorage.cli.cluster import READER, Cluster, asked, gateway_pod
from moorage.cli.exits import CliError

LEAST_KUBERNETES = (1, 34)
KINDS = ("agentruns", "workspaces", "agents", "modelproviders")
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PATIENCE_S = 60.0
POLL_S = 1.0


async def installation(cluster: Cluster) -> list[Check]:
    """All checks of a cluster; once the API server doesn't answer, nothing else is asked."""
    try:
        first = await version(cluster)
    except CliError as error:
        return [fail("kubernetes", error.message, error.hint)]
    rest = (definitions, runtime_classes, storage, gateway, rights)
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
    info = await asked(client.VersionApi(cluster.api).get_code(), "version")
    return judged_version(info.git_version, info.major, info.minor)


def judged_version(told: str, major: str, minor: str) -> Check:
    """The verdict on a version; providers append signs to the minor one."""
    found = int(major), int(re.match(r"\d*", minor)[0] or 0)  # type: ignore[index]  # the pattern matches the empty string
    if found < LEAST_KUBERNETES:
        least = ".".join(map(str, LEAST_KUBERNETES))
        return fail("kubernetes", f"{told} is too old", f"upgrade the cluster to {least} or later")
    return ok("kubernetes", told)


async def definitions(cluster: Cluster) -> Check:
    """Our kinds are served."""
    api = client.CustomObjectsApi(cluster.api)
    try:
        listed = await api.get_api_resources(GROUP, VERSION)
    except ApiException as error:
        if error.status != 404:
            raise
        return fail("definitions", f"{GROUP}/{VERSION} is not served", "install the chart with crds.install=true")
    missing = [kind for kind in KINDS if kind not in {each.name for each in listed.resources}]
    if missing:
        return fail("definitions", f"not served: {', '.join(missing)}", "upgrade the chart with crds.install=true")
    return ok("definitions", f"{GROUP}/{VERSION}: {', '.join(KINDS)}")


async def runtime_classes(cluster: Cluster) -> Check:
    """Sandboxes can be isolated."""
    found: Any = await asked(client.NodeV1Api(cluster.api).list_runtime_class(), "RuntimeClasses")
    names = sorted(each.metadata.name for each in found.items)
    if not names:
        hint = (
            "install gVisor on the nodes and set runtimeClass.create=true, or sandbox.runtimeClassName to another one"
        )
        return fail("runtime classes", "there is none", hint)
    return ok("runtime classes", ", ".join(names))


async def storage(cluster: Cluster) -> Check:
    """Volumes come without being asked for by class."""
    found: Any = await asked(client.StorageV1Api(cluster.api).list_storage_class(), "StorageClasses")
    defaults = [c.metadata.name for c in found.items if (c.metadata.annotations or {}).get(DEFAULT_CLASS) == "true"]
    if not defaults:
        hint = "mark one as default, or set store.sqlite.storageClassName and sandbox.storageClassName"
        return warn("storage", "no StorageClass is the default", hint)
    return ok("storage", ", ".join(defaults))


async def gateway(cluster: Cluster) -> Check:
    """A gateway is ready; the operator can't move a run without one."""
    try:
        return ok("gateway", f"{await gateway_pod(cluster)} is ready")
    except CliError as error:
        return fail("gateway", error.message, error.hint)


async def rights(cluster: Cluster) -> list[Check]:
    """What this person may do."""
    here, system = cluster.namespace, cluster.system_namespace
    wanted: dict[str, dict[str, Any]] = {
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


async def _right(cluster: Cluster, told: str, wanted: dict[str, Any]) -> Check:
    spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=client.V1ResourceAttributes(**wanted))
    body = client.V1SelfSubjectAccessReview(spec=spec)
    call = client.AuthorizationV1Api(cluster.api).create_self_subject_access_review(body)
    answer: Any = await asked(call, "your rights")
    where = wanted["namespace"]
    if answer.status.allowed:
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
