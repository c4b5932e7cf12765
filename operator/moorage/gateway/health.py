"""Is it alive, can it do its work, and what does it measure. No token is asked: nothing here tells of a run."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from moorage.core.journal.record import Privacy
from moorage.gateway.gate import Gate

PROBE_TENANT = "_ready"
"""No namespace can have this name. One blob, written again and again."""


class HealthRoom:
    """Probes and metrics."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        return [
            Route("/healthz", self.live, methods=["GET"], name="healthz"),
            Route("/readyz", self.ready, methods=["GET"], name="readyz"),
            Route("/metrics", self.metrics, methods=["GET"], name="metrics"),
        ]

    async def live(self, _: Request) -> Response:
        """The event loop turns."""
        return PlainTextResponse("ok\n")

    async def ready(self, _: Request) -> Response:
        """The store answers and the disk takes writes; a refusal becomes 503 like at any door."""
        await self._gate.deps.store.changes(0, 1)
        await self._gate.deps.blobs.put(PROBE_TENANT, b"ready", Privacy.METADATA)
        return PlainTextResponse("ok\n")

    async def metrics(self, _: Request) -> Response:
        """Prometheus text of this process's own registry."""
        return Response(generate_latest(self._gate.deps.metrics.registry), media_type=CONTENT_TYPE_LATEST)
