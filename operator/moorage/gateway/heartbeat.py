"""F4: heartbeats are shared among the gateways of a store, and written down nowhere that lasts; what lasts of them is
the renewed Lease.

Whoever is asked answers the same of a run, whichever gateway heard it. A restart of the only one forgets them all, and
the operator knows it by `up_since`: expiry starts no takeover until heartbeats had a full period to come back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from moorage.api import work
from moorage.clock import Clock
from moorage.core.run.observed import Heartbeat
from moorage.gateway.errors import Unavailable
from moorage.gateway.ports import LeaseRenewer
from moorage.points import Point, reached
from moorage.store.peers import Peers
from moorage.telemetry.metrics import GatewayMetrics


@dataclass(frozen=True)
class LeaseTarget:
    """Which Lease a run's heartbeats keep."""

    namespace: str
    name: str
    epoch: int


class Heartbeats:
    """Heartbeats that came here, and the renewals that follow from them."""

    def __init__(
        self, peers: Peers, leases: LeaseRenewer, clock: Clock, metrics: GatewayMetrics, log: Any, *, every_ms: int
    ) -> None:
        self._leases, self._clock, self._metrics, self._log, self._every = leases, clock, metrics, log, every_ms
        self._peers = peers
        self._renewed: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def last(self, run_uid: str) -> Heartbeat | None:
        """What any gateway heard last, None when nothing was. Raise StoreUnavailable."""
        return await self._peers.heartbeat(run_uid)

    def hear(self, run_uid: str, beat: work.Heartbeat, lease: LeaseTarget | None) -> None:
        """Keep the heartbeat; renew the Lease beside, so that a slow API server holds up no runner."""
        now = self._clock.now_ms()
        self._peers.hear(run_uid, Heartbeat(beat.epoch, beat.progress_seq, heard_at=now, progress_at=now))
        self._metrics.heartbeats.inc()
        if lease is not None and self._due(run_uid):
            task = asyncio.create_task(self._renew(run_uid, lease, now))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def forget(self, run_uid: str) -> None:
        """The run has ended."""
        self._peers.forget(run_uid)
        self._renewed.pop(run_uid, None)

    async def close(self) -> None:
        """Stop renewals that are still on their way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _due(self, run_uid: str) -> bool:
        now = self._clock.monotonic_ms()
        before = self._renewed.get(run_uid)
        if before is not None and now - before < self._every:
            return False
        self._renewed[run_uid] = now
        return True

    async def _renew(self, run_uid: str, lease: LeaseTarget, now: int) -> None:
        reached(Point.RENEWAL_BEFORE)
        try:
            kept = await self._leases.renew(lease.namespace, lease.name, lease.epoch, now)
        except Unavailable as error:
            self._renewed.pop(run_uid, None)  # the next heartbeat tries again at once
            self._metrics.lease_renewals.labels("unavailable").inc()
            self._log.warning("lease_renewal_failed", run=run_uid, lease=lease.name, why=error.message)
            return
        reached(Point.RENEWAL_AFTER)
        self._metrics.lease_renewals.labels("renewed" if kept else "lost").inc()
        if not kept:
            self._log.warning("lease_lost", run=run_uid, lease=lease.name, epoch=lease.epoch)
