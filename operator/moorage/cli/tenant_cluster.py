"""A tenant on a cluster: made, brought up to date, and looked at.

Imported only by commands that need a cluster: the Kubernetes client takes most of a second to load.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moorage.api.names import API_VERSION, CONSTRAINTS
from moorage.cli.cluster import RBAC, Cluster, asked
from moorage.cli.exits import CliError, Denied, NotFound, Usage
from moorage.cli.namespaces import waiting
from moorage.cli.tenant_objects import LEVEL, RBAC_GROUP, Change, Terms, Wanted, changes, merged, objects
from moorage.cli.timeline import rfc3339
from moorage.sandbox.kube import Body, Exists, KubeError, path_of

INVALID = 422
UNSETTLED = "EffectsClosed"


@dataclass(frozen=True)
class Done:
    """What became of an object: created, configured or unchanged, with what was changed."""

    title: str
    verb: str
    body: Body
    changed: tuple[Change, ...] = ()


async def create(cluster: Cluster, terms: Terms, *, dry: bool) -> list[Done]:
    """Make all of it, or what is missing. `dry`: only look. Raise CliError."""
    await _demand_definitions(cluster)
    await _demand_roles(cluster, terms.roles if terms.users or terms.groups else ())
    return [await _ensured(cluster, wanted, dry=dry) for wanted in objects(terms)]


async def _demand_definitions(cluster: Cluster) -> None:
    listed = await asked(cluster.api.get(f"/apis/{API_VERSION}"), "API resources")
    if CONSTRAINTS not in {each["name"] for each in (listed or {}).get("resources", ())}:
        raise NotFound("this cluster knows no ResourceConstraints", "install or upgrade Moorage's CRDs")


async def _demand_roles(cluster: Cluster, roles: Sequence[str]) -> None:
    for role in roles:
        try:
            found = await asked(cluster.api.get(path_of(RBAC, "clusterroles", name=role)), f"ClusterRole {role}")
        except Denied:
            return  # who may bind roles need not be one who may read them
        if found is None:
            raise NotFound(f"--role: there is no ClusterRole {role}", "see kubectl get clusterroles")


async def _ensured(cluster: Cluster, wanted: Wanted, *, dry: bool) -> Done:
    name = wanted.body["metadata"]["name"]
    path = f"{wanted.base}/{name}"
    found = await asked(cluster.api.get(path), wanted.title)
    if found is None:
        return await _created(cluster, wanted, dry=dry)
    body = merged(found, wanted)
    if found.get("metadata", {}).get("deletionTimestamp"):
        raise CliError(f"{wanted.title} is being deleted", "wait until it is gone, then ask again")
    changed = tuple(changes(found, body))
    if not changed:
        return Done(wanted.title, "unchanged", found)
    if dry:
        return Done(wanted.title, "configured", dict(body), changed)
    version = found["metadata"]["resourceVersion"]
    patch = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
    return Done(wanted.title, "configured", await _written(cluster.api.patch(path, patch), wanted.title), changed)


async def _created(cluster: Cluster, wanted: Wanted, *, dry: bool) -> Done:
    if dry:
        return Done(wanted.title, "created", dict(wanted.body))
    try:
        return Done(wanted.title, "created", await _written(cluster.api.create(wanted.base, wanted.body), wanted.title))
    except Taken:
        return await _ensured(cluster, wanted, dry=dry)


async def _written(call: Awaitable[Body], title: str) -> Body:
    """Raise Exists, and CliError."""

    async def told() -> Body:
        try:
            return await call
        except KubeError as error:
            if error.status == INVALID:
                raise Usage(f"the API server refuses {title}: {error}") from None
            if isinstance(error, Exists):
                raise Taken from None
            raise

    return await asked(told(), title)


class Taken(Exception):
    """Somebody has made it just now."""


# --- looking ----------------------------------------------------------------------------------------------------------


async def look(cluster: Cluster, name: str) -> dict[str, Any]:
    """What a tenant is: how it is bounded, what it uses, who waits, what is unknown, who may use it. Raise CliError."""
    there = await asked(cluster.api.get(path_of("v1", "namespaces", name=name)), f"namespace {name}")
    if there is None:
        raise NotFound(f"there is no namespace {name}", f"kubectl moorage tenant create {name} makes it")
    runs = await asked(cluster.api.items(path_of(API_VERSION, "agentruns", name)), f"AgentRuns in {name}")
    constraints = await asked(cluster.api.items(path_of(API_VERSION, CONSTRAINTS, name)), f"contracts in {name}")
    now = time.time_ns() // 1_000_000
    waits = [(told.created_at, each) for each in runs if (told := waiting(each, now)) is not None]
    return {
        "name": name,
        "podSecurity": (there["metadata"].get("labels") or {}).get(f"{LEVEL}/enforce"),
        "contracts": [_contract(each) for each in constraints],
        "waiting": [_waits(each, at) for at, each in sorted(waits, key=lambda pair: pair[0])],
        "unknown": [open_ for each in runs if (open_ := _unknown(each)) is not None],
        "bindings": await _bindings(replace(cluster, namespace=name)),
    }


def _contract(found: Body) -> dict[str, Any]:
    status = found.get("status") or {}
    ready = _condition(found, "Ready")
    current = status.get("observedGeneration") == found["metadata"].get("generation")
    return {
        "name": found["metadata"]["name"],
        "enforced": ready.get("status") == "True" and current,
        "message": str(ready.get("message", "")) if current else "the operator hasn't read it yet",
        "lines": list(status.get("lines") or ()) if current else [],
    }


def _waits(found: Body, created_at: int) -> dict[str, Any]:
    status = found.get("status") or {}
    queue = status.get("queue") or {}
    message = queue.get("reason") or status.get("message") or _condition(found, "Ready").get("message") or ""
    why = {"reason": str(status.get("reason") or ""), "message": str(message)}
    return {"run": found["metadata"]["name"], "since": rfc3339(created_at), **why}


def _unknown(found: Body) -> dict[str, Any] | None:
    told = _condition(found, UNSETTLED)
    if told.get("status") != "False":
        return None
    said = {name: str(told.get(name, "")) for name in ("reason", "message")}
    return {"run": found["metadata"]["name"], **said}


def _condition(found: Body, kind: str) -> dict[str, Any]:
    listed = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in listed if each.get("type") == kind), {})


async def _bindings(cluster: Cluster) -> list[dict[str, str]] | None:
    """None where they may not be read."""
    try:
        found = await asked(cluster.api.items(path_of(RBAC, "rolebindings", cluster.namespace)), "RoleBindings")
    except Denied:
        return None
    return [
        {"role": str(each["roleRef"]["name"]), "kind": str(subject["kind"]), "name": str(subject["name"])}
        for each in found
        for subject in each.get("subjects") or ()
        if subject.get("apiGroup") == RBAC_GROUP
    ]
