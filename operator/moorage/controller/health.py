"""Probes that prove progress, and metrics. Alive means that the loop turns and that no pass is stuck."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from moorage.serving import configured

STUCK_MS = 300_000  # a push upstream may take 180 s; nothing may take longer
TICK_S = 1.0
SILENT_S = 10.0
NEVER_S = 1e9


class Pulse:
    """Beats while the loop turns."""

    def __init__(self) -> None:
        self._at: float | None = None

    async def beat(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._at = loop.time()
            await asyncio.sleep(TICK_S)

    def silent_s(self) -> float:
        """How long the last beat is ago; before the first one, long."""
        return asyncio.get_running_loop().time() - self._at if self._at is not None else NEVER_S


class Duty:
    """What this process is at, for its probes; whoever does the work says so here."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        """`ready`: what being ready means while no work has begun."""
        self.ready = ready
        self.oldest_ms: Callable[[], int] = lambda: 0

    def works(self, oldest_ms: Callable[[], int], watches: asyncio.Event) -> None:
        """The work has begun: `oldest_ms` is how long its slowest piece takes; it is ready once it watches."""
        self.oldest_ms, self.ready = oldest_ms, watches.is_set


def health_app(pulse: Pulse, duty: Duty, registry: CollectorRegistry) -> Starlette:
    """/healthz, /readyz and /metrics."""

    async def healthz(_: Request) -> Response:
        oldest_ms = duty.oldest_ms()
        state = {"silent_s": round(pulse.silent_s(), 1), "oldest_pass_ms": oldest_ms}
        alive = pulse.silent_s() < SILENT_S and oldest_ms < STUCK_MS
        return JSONResponse(state, status_code=200 if alive else 503)

    async def readyz(_: Request) -> Response:
        ready = duty.ready()
        return JSONResponse({"ready": ready}, status_code=200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    return Starlette(routes=routes)


async def serve_probes(listener: socket.socket, duty: Duty, registry: CollectorRegistry) -> None:
    """Serve probes and metrics until cancelled."""
    pulse = Pulse()
    config = configured(health_app(pulse, duty, registry), log_level="critical", lifespan="off")
    async with asyncio.TaskGroup() as group:
        group.create_task(pulse.beat())
        group.create_task(uvicorn.Server(config).serve([listener]))
