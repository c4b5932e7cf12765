"""The net below all events (R7): what the gateway still holds for runs that are gone, ended runs whose time is up, and
namespaces whose last run went. A delete never waits for any of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from moorage.clock import Clock
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.controller.ports import Objects
from moorage.controller.roll import Roll
from moorage.controller.told import Standing
from moorage.core.run.view import RunBrief
from moorage.sandbox.kube import KubeError
from moorage.sandbox.port import NameTaken, Refused, RunKey, Unavailable

SOON_S = 5.0  # after a round that could not finish its work, doubled for each in a row
WAITS = (GatewayAway, GatewayRefused, Unavailable, KubeError, NameTaken)


class Tenants(Protocol):
    """What stands once per namespace."""

    async def ensure(self, namespace: str, *, fresh_ms: int = ...) -> None:
        """Put it there, and back on drift."""

    async def release(self, namespace: str, decided_at: int) -> bool:
        """The last run was gone at that time; nothing happens where one came since. False: ask again soon."""

    async def tenants(self) -> frozenset[str]:
        """Namespaces where it stands."""


class Scan:
    """`look` wakes a run, `gone` hears of one that is no more, `journaled` of all whose journals haven't ended.
    `volumes` lists whose claims stand: asked once, for what a crash may have left behind.
    """

    def __init__(
        self,
        *,
        gateway: GatewayClient,
        objects: Objects,
        roll: Roll,
        clock: Clock,
        tenants: Tenants | None,
        volumes: Callable[[], Awaitable[frozenset[RunKey]]] | None,
        look: Callable[[RunKey], None],
        gone: Callable[[RunKey], None],
        journaled: Callable[[Sequence[RunBrief]], None],
        log: Any,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self._gateway, self._objects, self._roll, self._clock = gateway, objects, roll, clock
        self._tenants, self._volumes = tenants, volumes
        self._look, self._gone, self._journaled = look, gone, journaled
        self._log, self._namespaces = log, namespaces

    async def run(self, every_s: float) -> None:
        """Now and then, until cancelled; sooner for a while after a round that could not finish its work."""
        unfinished = 0
        while True:
            try:
                unfinished = 0 if await self.once() else unfinished + 1
                pause = pause_s(every_s, unfinished)
            except WAITS as e:  # a gateway that comes up a moment after us: runs that are gone hold branches until then
                self._log.info("scan_waits", reason=type(e).__name__, message=str(e))
                pause = min(every_s, SOON_S)
            await asyncio.sleep(pause)

    async def once(self) -> bool:
        """One look at everything; False where a namespace waits for its last sandbox to go.

        The gateway is read first: a run that is admitted meanwhile exists already.
        """
        briefs = [b for b in await self._gateway.pending() if b.placement == "cluster" and self._mine(b)]
        self._journaled(briefs)
        began, known = self._clock.now_ms(), self._roll.keys()
        existing = await self._objects.runs()
        for key in known - existing:  # a watch that began anew doesn't tell of what went meanwhile
            self._gone(key)
        for brief in briefs:
            key = RunKey(brief.uid, brief.tenant, brief.name)
            if key not in existing or (brief.phase.terminal and self._due(key)):
                self._look(key)
        await self._left_behind(existing)
        if self._tenants is None:
            return True
        return await self._tidy(self._tenants, frozenset(key.tenant for key in existing), began)

    def _due(self, key: RunKey) -> bool:
        entry = self._roll.get(key)
        return entry is not None and entry.due_at is not None and entry.due_at <= self._clock.now_ms()

    async def _left_behind(self, existing: frozenset[RunKey]) -> None:
        """Volumes of runs that ended well: an operator died between the last status and their release."""
        if self._volumes is None or not all(self._roll.knows(key) for key in existing):
            return
        for key in await self._volumes():
            entry = self._roll.get(key)
            if entry is not None and entry.standing is Standing.ENDED and entry.succeeded:
                self._look(key)
        self._volumes = None

    def _mine(self, brief: RunBrief) -> bool:
        return not self._namespaces or brief.tenant in self._namespaces

    async def _tidy(self, tenants: Tenants, in_use: frozenset[str], decided_at: int) -> bool:
        done = True
        for namespace in await tenants.tenants():
            try:
                if namespace in in_use:
                    await tenants.ensure(namespace, fresh_ms=0)
                else:
                    done &= await tenants.release(namespace, decided_at)
            except (KubeError, NameTaken, Refused) as e:  # one that refuses keeps no other from being tidied (T3)
                self._log.warning("tenant_not_tidied", tenant=namespace, reason=type(e).__name__, message=str(e))
        return done


def pause_s(every_s: float, unfinished: int) -> float:
    """Seconds to the next look: a sandbox is mostly gone a moment later, and on a lost node it stays for long."""
    return min(every_s, SOON_S * 2 ** min(unfinished - 1, 10)) if unfinished else every_s
