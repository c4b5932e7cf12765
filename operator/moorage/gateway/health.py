"""Is it alive, can it do its work, and what does it measure. No token is asked: nothing here tells of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from moorage.core.journal.record import Privacy
from moorage.gateway.errors import Unavailable
from moorage.gateway.gate import Gate
from moorage.store.blobs import FileBlobs
from moorage.store.errors import VersionConflict
from moorage.store.port import Session

PROBE_TENANT = "_ready"
"""No namespace can have this name."""
PROVED_MS = 1_000
"""Anybody may ask: a write that old proves enough, so that asking more often costs nothing."""


class HealthRoom:
    """Probes and metrics."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._proving = asyncio.Lock()
        self._proved_at: int | None = None

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        told = [Route("/metrics", self.metrics, methods=["GET"], name="metrics")]
        return [
            Route("/healthz", self.live, methods=["GET"], name="healthz"),
            Route("/readyz", self.ready, methods=["GET"], name="readyz"),
            *([] if self._gate.deps.settings.metrics_apart else told),
        ]

    async def live(self, _: Request) -> Response:
        """The event loop turns; SQLite works on it, so a disk that hangs stops it too."""
        return PlainTextResponse("ok\n")

    async def ready(self, _: Request) -> Response:
        """Store and volume have just taken a write, durably, and effects may be sent off; a refusal becomes 503 like at
        any door. A bucket isn't asked: while it is away, what needs no blob goes on, heartbeats above all (F4).
        """
        now = self._gate.deps.clock.monotonic_ms()
        async with self._proving:
            if self._proved_at is None or now - self._proved_at >= PROVED_MS:
                await self._prove()
                self._proved_at = now
        peers = self._gate.deps.peers
        if not peers.still(peers.me):
            raise Unavailable("others may take this gateway for gone: it is about to come back", reason="CutOff")
        return PlainTextResponse("ok\n")

    async def _prove(self) -> None:
        """One row that is written again and again (a session that has ended, so that no list shows it), and a blob
        where blobs lie on the volume.
        """
        store, blobs, now = self._gate.deps.store, self._gate.deps.blobs, self._gate.deps.clock.now_ms()
        row = Session(tenant=PROBE_TENANT, session_id="gateway", created_at=now, active_at=now, end={"reason": "Probe"})
        found = await store.open_session(row)
        try:
            await store.update_session(replace(found, active_at=now), found.version)
        except VersionConflict:
            return  # another gateway has written it meanwhile: the store takes writes
        if not isinstance(blobs, FileBlobs):
            return
        blob = await blobs.put(PROBE_TENANT, f"ready at {now}".encode(), Privacy.METADATA)
        await blobs.delete(PROBE_TENANT, blob.sha256)

    async def metrics(self, _: Request) -> Response:
        """Prometheus text of this process's own registry."""
        return told(self._gate.deps.metrics.registry)


def told(registry: CollectorRegistry) -> Response:
    """All metrics as Prometheus text."""
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def metrics_app(registry: CollectorRegistry) -> Starlette:
    """/metrics alone, for a port of its own: whoever may come to the doors need not read what all tenants do (T6)."""

    async def metrics(_: Request) -> Response:
        return told(registry)

    return Starlette(routes=[Route("/metrics", metrics, methods=["GET"])])
