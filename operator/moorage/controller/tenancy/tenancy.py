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
from moorage.controller.gateway_client import GatewayAway, GatewayRefused
from moorage.controller.handlers import OURS, watch_contracts
from moorage.controller.tenancy.contracts import Contracts
from moorage.controller.tenancy.news import News
from moorage.controller.tenancy.reconciler import Allowances, Live, Reconciler
from moorage.controller.tenancy.rooms import Rooms
from moorage.core.tenancy.rendering import PLURALS, QUOTA, RANGE
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
        gateway: Allowances,
        now: Callable[[], int],
        log: Any,
        chance: Random,
    ) -> None:
        self._gateway = gateway
        self._api, self._namespaces, self._changed, self._log = api, tuple(namespaces), changed, log
        self.contracts, self._rooms, self._roomier = contracts, rooms, roomier
        self.reconciler = Reconciler(
            api,
            self.contracts,
            live=live,
            looked=self._reopen,
            answered=self._answered,
            gateway=gateway,
            now=now,
            log=log,
            chance=chance,
        )
        self._watched: list[str] = []
        self._news = {plural: News() for plural in (CONSTRAINTS, *PLURALS.values())}

    async def load(self) -> None:
        """All that stands. Returns without what can't be read: it is told, and nobody waits for it."""
        for kind, plural in PLURALS.items():
            for body in await self._read(plural):
                self._rendered(kind, "ADDED", body)
        for body in await self._read(CONSTRAINTS):
            self._constraint("ADDED", body)

    async def run(self, every_s: float) -> None:
        """Compare what is known with what stands, now and then, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.compare()
            except (KubeError, GatewayAway, GatewayRefused) as e:
                self._log.info("contracts_not_compared", reason=type(e).__name__, message=str(e))

    async def compare(self) -> None:
        """A watch that began anew may have told neither of what came nor of what went. Raises KubeError,
        GatewayAway, GatewayRefused.
        """
        for kind, plural in (*PLURALS.items(), (None, CONSTRAINTS)):
            if plural not in self._watched:
                continue
            before = self._news[plural].standing()
            listed = await self._list(plural)
            for event, bodies in (("MODIFIED", listed), ("DELETED", self._news[plural].missing(before, listed))):
                for body in bodies:
                    if kind is None:
                        self._constraint(event, body)
                    else:
                        self._rendered(kind, event, body)

        for namespace in await self._gateway.allowed():  # also of a contract that went while nobody looked
            if not self._namespaces or namespace in self._namespaces:
                self.reconciler.allowed(namespace)

    def watch(self, registry: kopf.OperatorRegistry) -> None:
        """Register what could be read."""
        watch_contracts(registry, self._watched, constraint=self._constraint, rendered=self._rendered)

    def _answered(self, kind: str | None, body: Body) -> None:
        """The answer to a write of ours: of a constraint's status (None), or of what is rendered from one."""
        if kind is not None:
            self._rendered(kind, "MODIFIED", body)
        elif self._news[CONSTRAINTS].knows(body):  # else it was deleted before this answer came
            self._constraint("MODIFIED", body)

    def _rendered(self, kind: str, event: str | None, body: Any) -> None:
        """A quota of anybody's, or a LimitRange of ours."""
        if not self._news[PLURALS[kind]].take(event, body):
            return
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
        if self._news[CONSTRAINTS].take(kind, body) and self.contracts.saw(kind, body):
            namespace = str((body.get("metadata") or {}).get("namespace", ""))
            self.reconciler.constraint_changed(namespace)
            self._changed(namespace)

    async def _list(self, plural: str) -> list[Body]:
        version = API_VERSION if plural == CONSTRAINTS else "v1"
        labels = OURS if plural == PLURALS[RANGE] else None
        found: list[Body] = []
        for namespace in self._namespaces or (None,):
            found += await self._api.items(path_of(version, plural, namespace), labels=labels)
        return found

    async def _read(self, plural: str) -> list[Body]:
        while True:
            try:
                found = await self._list(plural)
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
