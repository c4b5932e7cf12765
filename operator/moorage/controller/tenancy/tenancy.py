"""Contracts in this process: read before the first run is looked at, watched from then on, and done without where an
installation's definitions or roles are older than they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import kopf

from moorage.api.names import API_VERSION, CONSTRAINTS
from moorage.controller.handlers import OURS, watch_contracts
from moorage.controller.tenancy.contracts import Contracts
from moorage.controller.tenancy.reconciler import Live, Reconciler
from moorage.controller.tenancy.rooms import Rooms
from moorage.core.tenancy.rendering import PLURALS, QUOTA
from moorage.sandbox.kube import ApiUnavailable, Body, KubeApi, KubeError, Missing, path_of

PAUSE_S = 1.0
ADVICE = "upgrade the chart's definitions and roles, then restart the operator"


class Tenancy:
    """`changed(namespace)` is called where another contract counts or a quota allows something else, `roomier()`
    where somebody found no room in the quotas of a namespace and would find it now.
    """

    def __init__(
        self,
        api: KubeApi,
        namespaces: Sequence[str],
        contracts: Contracts,
        rooms: Rooms,
        *,
        live: Live,
        changed: Callable[[str], None],
        roomier: Callable[[], None],
        now: Callable[[], int],
        log: Any,
        chance: Random,
    ) -> None:
        self._api, self._namespaces, self._changed, self._log = api, tuple(namespaces), changed, log
        self.contracts, self._rooms, self._roomier = contracts, rooms, roomier
        self.reconciler = Reconciler(
            api, self.contracts, live=live, looked=self._reopen, rendered=self._written, now=now, log=log, chance=chance
        )
        self._watched: list[str] = []

    async def load(self) -> None:
        """All that stands. Returns without what can't be read: it is told, and nobody waits for it."""
        for kind, plural in PLURALS.items():
            for body in await self._read("v1", plural, None if kind == QUOTA else OURS):
                self._rendered(kind, "ADDED", body)
        for body in await self._read(API_VERSION, CONSTRAINTS, None):
            self._constraint("ADDED", body)

    def watch(self, registry: kopf.OperatorRegistry) -> None:
        """Register what could be read."""
        watch_contracts(registry, self._watched, constraint=self._constraint, rendered=self._rendered)

    def _written(self, kind: str, body: Body) -> None:
        if kind == QUOTA:
            self._rooms.heard("MODIFIED", body)

    def _rendered(self, kind: str, event: str | None, body: Any) -> None:
        """A quota of anybody's, or a LimitRange of ours."""
        self.reconciler.heard(kind, event, body)
        if kind == QUOTA:
            namespace = str((body.get("metadata") or {}).get("namespace", ""))
            if self._rooms.heard(event, body):
                self._changed(namespace)
            self._reopen(namespace)

    def _reopen(self, namespace: str) -> None:
        if self._rooms.reopened(namespace):
            self._roomier()

    def _constraint(self, kind: str | None, body: Any) -> None:
        if self.contracts.saw(kind, body):
            namespace = str((body.get("metadata") or {}).get("namespace", ""))
            self.reconciler.constraint_changed(namespace)
            self._changed(namespace)

    async def _read(self, version: str, plural: str, labels: str | None) -> list[Body]:
        while True:
            try:
                found: list[Body] = []
                for namespace in self._namespaces or (None,):
                    found += await self._api.items(path_of(version, plural, namespace), labels=labels)
            except ApiUnavailable as e:
                self._log.warning("api_server_away", reason=e.reason, message=str(e))
            except KubeError as e:
                reason = "DefinitionsMissing" if isinstance(e, Missing) else "Forbidden"
                self._log.warning("contracts_not_enforced", reason=reason, kind=plural, message=str(e), advice=ADVICE)
                return []
            else:
                self._watched.append(plural)
                return found
            await asyncio.sleep(PAUSE_S)
