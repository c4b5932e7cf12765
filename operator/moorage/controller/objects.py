"""The objects that users write, at the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from moorage.api.names import API_VERSION
from moorage.controller.ports import Body, Unwritable
from moorage.controller.told import key_of
from moorage.sandbox.kube import METADATA_ONLY, ApiUnavailable, Exists, KubeApi, KubeError, Missing, Stale, path_of
from moorage.sandbox.pods import refusal
from moorage.sandbox.port import Conflict, Refused, RunKey, Unavailable

PLACES = {
    "AgentRun": (API_VERSION, "agentruns"),
    "Workspace": (API_VERSION, "workspaces"),
    "Agent": (API_VERSION, "agents"),
    "ModelProvider": (API_VERSION, "modelproviders"),
    "RunCommand": (API_VERSION, "runcommands"),
    "ConfigMap": ("v1", "configmaps"),
}
PAGE = 200  # objects of a list that are held at once
INVALID = 422
UNTAKEN = frozenset({400, 413, INVALID})
"""Statuses of what the API server will never take as it is."""


class KubeObjects:
    """`namespaces` empty: all of them."""

    def __init__(self, api: KubeApi, namespaces: Sequence[str] = ()) -> None:
        self._api, self._namespaces = api, tuple(namespaces)
        self._classes: frozenset[str] | None = None
        self._classes_known = False
        self._classes_seen = 0  # how often they changed: what is listed meanwhile may lack the change

    async def run(self, tenant: str, name: str) -> Body | None:
        """The AgentRun, live."""
        return await self.get("AgentRun", tenant, name)

    async def get(self, kind: str, tenant: str, name: str) -> Body | None:
        """The object, live; None also where it may not be read, since to the run it isn't there then."""
        with _away():
            try:
                return await self._api.get(path_of(*PLACES[kind], tenant, name))
            except ApiUnavailable:
                raise
            except KubeError as e:
                if e.status == 403:
                    return None
                raise

    async def runtime_classes(self) -> frozenset[str] | None:
        """Listed once, and again after `classes_changed`."""
        if not self._classes_known:
            seen = self._classes_seen
            with _away():
                self._classes = await self._list_classes()
            self._classes_known = self._classes is not None and seen == self._classes_seen
        return self._classes

    async def _list_classes(self) -> frozenset[str] | None:
        try:
            items = await self._api.items(path_of("node.k8s.io/v1", "runtimeclasses"), accept=_LIST)
        except ApiUnavailable:
            raise
        except KubeError:
            return None
        return frozenset(str(item["metadata"]["name"]) for item in items)

    def classes_changed(self) -> None:
        """A RuntimeClass came or went."""
        self._classes_known = False
        self._classes_seen += 1

    async def write_status(self, run: RunKey, status: Mapping[str, Any], version: str) -> Body | None:
        """A merge patch of the status subresource, only of that very object in that very version."""
        path = f"{path_of(*PLACES['AgentRun'], run.tenant, run.name)}/status"
        with _away():
            try:
                meta = {"uid": run.uid, "resourceVersion": version}
                return await self._api.patch(path, {"metadata": meta, "status": status})
            except Missing:
                return None
            except Stale as e:
                raise Conflict(str(e)) from e
            except KubeError as e:
                if e.status == INVALID:
                    raise Unwritable(str(e)) from e
                raise

    async def delete(self, run: RunKey) -> None:
        """By UID."""
        with _away():
            await self._api.delete(path_of(*PLACES["AgentRun"], run.tenant, run.name), run.uid)

    async def create_run(self, body: Body) -> None:
        """By its name."""
        path = path_of(*PLACES["AgentRun"], str(body["metadata"]["namespace"]))
        with _away(), _refused(), suppress(Exists):
            await self._api.create(path, body)

    async def bodies(self) -> AsyncIterator[Body]:
        """Every AgentRun, whole."""
        with _away():
            for namespace in self._namespaces or (None,):
                async for page in self._api.pages(path_of(*PLACES["AgentRun"], namespace), limit=PAGE):
                    for body in page:
                        yield body

    async def runs(self) -> frozenset[RunKey]:
        """Keys of all AgentRuns; only their metadata is sent."""
        found: list[Mapping[str, Any]] = []
        with _away():
            for namespace in self._namespaces or (None,):
                found += await self._api.items(path_of(*PLACES["AgentRun"], namespace), accept=_LIST)
        return frozenset(key_of(item) for item in found)


_LIST = METADATA_ONLY.replace("PartialObjectMetadata", "PartialObjectMetadataList")


@contextmanager
def _refused() -> Iterator[None]:
    """Not taken: as it is by its words, or not now."""
    try:
        yield
    except ApiUnavailable:
        raise
    except KubeError as e:
        if e.status in UNTAKEN:
            raise Refused("ChildInvalid", str(e), permanent=True) from e
        raise refusal(e) from e


@contextmanager
def _away() -> Iterator[None]:
    try:
        yield
    except ApiUnavailable as e:
        raise Unavailable(str(e)) from e
