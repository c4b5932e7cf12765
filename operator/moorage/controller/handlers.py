"""kopf's watches: each event becomes a key. No finalizer, no annotation, no state of kopf's on any object.

The handlers are coroutines, though they wait for nothing: kopf takes others to threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import kopf

from moorage.api import names
from moorage.api.names import GROUP, VERSION
from moorage.controller.objects import PLACES
from moorage.controller.operator import Operator
from moorage.core.run.usable import KINDS
from moorage.core.tenancy.rendering import PLURALS

OURS = f"{names.MANAGED_BY}={names.PRODUCT}"
PAGE = 100  # objects of a list that are held at once
WATCH_SECONDS = 300  # the API server ends a watch after that; a dead connection is noticed by kopf itself


def watch(
    registry: kopf.OperatorRegistry,
    operator: Operator,
    *,
    look: Callable[[str, str, str], None],
    heard: Callable[[str | None, Any], bool],
    classes_changed: Callable[[], None] | None,
) -> None:
    """Register the handlers. `look`: a Workspace, Agent or ModelProvider (kind, namespace, name) was seen.
    `heard` is told of each child's change first, and says whether it is news.
    `classes_changed` None: RuntimeClasses may not be watched (namespaced mode).
    """

    @kopf.on.event(GROUP, VERSION, "agentruns", registry=registry)
    async def agentrun(event: Any, **_: Any) -> None:
        operator.run_changed(event["type"], event["object"])

    @kopf.on.event("v1", "pods", registry=registry)
    async def pod(event: Any, **_: Any) -> None:
        if heard(event["type"], event["object"]):
            operator.child_changed(event["type"], event["object"])

    @kopf.on.event("coordination.k8s.io", "v1", "leases", registry=registry)
    async def lease(event: Any, **_: Any) -> None:
        if event["type"] == "DELETED":  # renewals are the gateway's, every 15 s for each live run
            heard("DELETED", event["object"])
            operator.child_changed(None, event["object"])

    for kind, (_, plural) in PLACES.items():
        if kind in KINDS:
            _watch_references(registry, operator, look, kind, plural)

    if classes_changed is not None:
        changed = classes_changed

        @kopf.on.event("node.k8s.io", "v1", "runtimeclasses", registry=registry)
        async def runtime_class(**_: Any) -> None:
            changed()
            operator.reference_changed(None)


def _watch_references(
    registry: kopf.OperatorRegistry, operator: Operator, look: Callable[[str, str, str], None], kind: str, plural: str
) -> None:
    @kopf.on.event(GROUP, VERSION, plural, registry=registry, id=plural)
    async def reference(event: Any, namespace: str | None, name: str | None, **_: Any) -> None:
        operator.reference_changed(namespace)
        if event["type"] != "DELETED":
            look(kind, namespace or "", name or "")


def watch_commands(registry: kopf.OperatorRegistry, seen: Callable[[str | None, Any], None]) -> None:
    """What is asked of runs."""

    @kopf.on.event(GROUP, VERSION, "runcommands", registry=registry)
    async def runcommand(event: Any, **_: Any) -> None:
        seen(event["type"], event["object"])


def watch_contracts(
    registry: kopf.OperatorRegistry,
    plurals: Collection[str],
    *,
    constraint: Callable[[str | None, Any], None],
    rendered: Callable[[str, str | None, Any], None],
) -> None:
    """C5: ResourceConstraints, all ResourceQuotas, and the LimitRanges that are ours; as far as they are in
    `plurals`, since a watch of what may not be read would never begin.
    """
    if names.CONSTRAINTS in plurals:

        @kopf.on.event(GROUP, VERSION, names.CONSTRAINTS, registry=registry)
        async def resource_constraint(event: Any, **_: Any) -> None:
            constraint(event["type"], event["object"])

    for kind, plural in PLURALS.items():
        if plural in plurals:
            _watch_rendered(registry, rendered, kind, plural)


def _watch_rendered(
    registry: kopf.OperatorRegistry, rendered: Callable[[str, str | None, Any], None], kind: str, plural: str
) -> None:
    @kopf.on.event("v1", plural, registry=registry, id=plural)
    async def object_changed(event: Any, **_: Any) -> None:
        rendered(kind, event["type"], event["object"])


def guard_policies(registry: kopf.OperatorRegistry, drifted: Callable[[str], None]) -> None:
    """T3: a changed or deleted NetworkPolicy of ours is put back at once."""

    @kopf.on.event("networking.k8s.io", "v1", "networkpolicies", registry=registry)
    async def policy(event: Any, namespace: str | None, **_: Any) -> None:
        if namespace and event["type"] in {"DELETED", "MODIFIED"}:
            drifted(namespace)


def tune(settings: kopf.OperatorSettings) -> None:
    """kopf only watches here: no Events of its own, no peering, no scanning for namespaces and CRDs."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.queueing.idle_timeout = 0.5  # a handler takes microseconds: an idle worker needs no memory
    settings.queueing.error_delays = (1, 2, 5, 10)
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    settings.watching.chunk_size = PAGE
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 0.1
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 5, 5, 5)
    for resource in (
        ("v1", "pods"),
        ("v1", "limitranges"),
        ("coordination.k8s.io", "leases"),
        ("networking.k8s.io", "networkpolicies"),
    ):
        settings.watching.label_selectors[resource] = OURS


class NoDiffBase(kopf.DiffBaseStorage):
    """Nothing is compared: kopf would copy each object to find out what changed, and keep that copy on it."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:  # noqa: ARG002  kopf's shape
        """Nothing of it."""
        return {}

    def fetch(self, *, body: Any) -> Any:
        """Nothing was kept."""

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Nothing is kept."""


class NoProgress(kopf.ProgressStorage):
    """No handler has a progress: an event is taken note of at once, or not at all."""

    def fetch(self, *, key: Any, body: Any) -> Any:
        """Nothing was kept."""

    def store(self, *, key: Any, record: Any, body: Any, patch: Any) -> None:
        """Nothing is kept."""

    def purge(self, *, key: Any, body: Any, patch: Any) -> None:
        """Nothing was kept."""

    def touch(self, *, body: Any, patch: Any, value: Any) -> None:
        """No object is touched."""

    def clear(self, *, essence: Any) -> Any:
        """There is nothing in it to leave out."""
        return essence
