"""The ASGI application: rooms, their doors, and how refusals of all kinds become answers.

    app = create_app(GatewayDeps(store=…, blobs=…, mirrors=…, …))

No stack trace and no word of an unforeseen error reaches a client: it gets `Internal` and the log gets the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.core.journal import errors as journal_errors
from moorage.gateway.bases import Bases
from moorage.gateway.calls import Calls
from moorage.gateway.changes import ChangesRoom
from moorage.gateway.commands import CommandsRoom
from moorage.gateway.delivery import Delivery
from moorage.gateway.egress import EgressRoom
from moorage.gateway.errors import Invalid, Refusal, TooLarge, Unavailable, UnknownRun
from moorage.gateway.evidence import EvidenceRoom
from moorage.gateway.gate import Gate, GatewayDeps
from moorage.gateway.git import GitRoom
from moorage.gateway.health import HealthRoom
from moorage.gateway.housekeeping import Housekeeping
from moorage.gateway.http import refusal
from moorage.gateway.model import ModelRoom
from moorage.gateway.overview import OverviewRoom
from moorage.gateway.questions import Questions
from moorage.gateway.readers import ReadersRoom
from moorage.gateway.repair import RepairRoom
from moorage.gateway.resolve import ResolveRoom
from moorage.gateway.runs import RunsRoom
from moorage.gateway.sandbox import SandboxRoom
from moorage.gateway.spawning import SpawningRoom
from moorage.gateway.spending import SpendingRoom
from moorage.gateway.streams import Streaming, StreamsRoom
from moorage.gateway.tenants import TenantsRoom
from moorage.gateway.tunnel import TunnelRoom
from moorage.gateway.underway import UnderWay
from moorage.gateway.upstream import refusal_of
from moorage.store import errors as store_errors
from moorage.telemetry.metrics import GatewayMetrics
from moorage.workspace.errors import WorkspaceError

__all__ = ["GatewayDeps", "create_app"]


WHO = frozenset({401, 403})
"""Refused for who asks."""


def create_app(deps: GatewayDeps) -> Starlette:
    """Build the gateway. It opens nothing and closes nothing of what it is given."""
    return app_of(Gate(deps))


def app_of(gate: Gate) -> Starlette:
    """The same, around what all its rooms share."""
    deps = gate.deps
    under_way = UnderWay(deps.peers)
    questions = Questions(gate)
    bases, calls, streaming = Bases(gate), Calls(gate, under_way), Streaming(deps)
    rooms = (
        RunsRoom(gate, bases, Delivery(gate, calls, under_way), questions),
        ReadersRoom(gate),
        StreamsRoom(gate, streaming),
        OverviewRoom(gate, streaming),
        EvidenceRoom(gate),
        CommandsRoom(gate),
        ResolveRoom(gate),
        RepairRoom(gate),
        ChangesRoom(gate),
        SandboxRoom(gate, bases),
        SpawningRoom(gate),
        GitRoom(gate),
        ModelRoom(gate, questions),
        SpendingRoom(gate),
        TenantsRoom(gate),
        EgressRoom(gate, calls),
        TunnelRoom(gate, under_way),
        HealthRoom(gate),
    )
    routes: list[BaseRoute] = [route for room in rooms for route in room.routes()]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        rounds = asyncio.create_task(Housekeeping(gate).forever())
        yield
        rounds.cancel()
        await asyncio.gather(rounds, return_exceptions=True)
        await bases.close()
        await gate.refs.close()
        await gate.heartbeats.close()

    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Measured, metrics=deps.metrics)],
        exception_handlers=_handlers(deps.log, deps.metrics),
    )


def _handlers(log: Any, metrics: GatewayMetrics) -> Any:
    """One way out for each kind of error."""

    def said(translate: Callable[[Any], Refusal]) -> Any:
        async def handle(request: Request, error: Exception) -> Response:
            refused = translate(error)
            say = log.debug if refused.status == 425 else log.info  # each sandbox asks a few times before its turn
            door = door_of(request.scope)
            say("refused", door=door, status=refused.status, reason=refused.reason)
            if refused.status in WHO:
                metrics.refusals.labels(door, refused.reason).inc()
            return refusal(refused)

        return handle

    async def broken(request: Request, error: Exception) -> Response:
        log.error("internal_error", door=door_of(request.scope), exc_info=error)
        return refusal(Refusal("the gateway failed; its log says why", status=500, reason="Internal"))

    return {
        Refusal: said(lambda error: error),
        HTTPException: said(_routing),
        WorkspaceError: said(refusal_of),
        store_errors.StoreError: said(from_store),
        journal_errors.JournalError: said(from_journal),
        Exception: broken,
    }


def _routing(error: HTTPException) -> Refusal:
    reason = "NoSuchDoor" if error.status_code == 404 else "MethodNotAllowed"
    return Refusal(str(error.detail), status=error.status_code, reason=reason, headers=dict(error.headers or {}))


def from_store(error: store_errors.StoreError) -> Refusal:
    """What to tell of a store's refusal."""
    match error:
        case store_errors.UnknownRun():
            return UnknownRun(str(error))
        case store_errors.BlobMissing():
            return Refusal("the content was erased or never stored", status=410, reason="BlobMissing")
        case store_errors.StoreBusy() | store_errors.StoreUnavailable():
            full = isinstance(error, store_errors.StoreFull)
            return Unavailable(str(error), reason="DiskFull" if full else "StoreUnavailable")
        case (
            store_errors.Fenced()
            | store_errors.SpecConflict()
            | store_errors.SpecUnreadable()
            | store_errors.OffsetConflict()
            | store_errors.DuplicateMismatch()
            | store_errors.RunSealed()
            | store_errors.VersionConflict()
            | store_errors.PodConflict()
            | store_errors.NothingToRepair()
        ):
            return Refusal(str(error), status=409, reason=type(error).__name__)
        case store_errors.BlobCorrupted():
            return Refusal(str(error), status=500, reason="BlobCorrupted")
        case _:
            return Unavailable("the store can't serve this now; ask again", reason="StoreUnavailable")


def from_journal(error: journal_errors.JournalError) -> Refusal:
    """What to tell of a journal's refusal."""
    match error:
        case journal_errors.PayloadTooLarge():
            return TooLarge(str(error))
        case journal_errors.JournalPruned():
            return Refusal(str(error), status=410, reason="JournalPruned")
        case journal_errors.JournalCorrupted() | journal_errors.UnknownCritical():
            return Refusal(str(error), status=500, reason=type(error).__name__)
        case journal_errors.Malformed():
            return Refusal(str(error), status=500, reason="JournalCorrupted")
        case _:
            return Invalid(str(error))


def door_of(scope: Scope) -> str:
    """The route's name: a bounded label."""
    route = scope.get("route")
    return str(getattr(route, "name", None) or "none")


class Measured:
    """Counts answers and times their start, per door."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and look at the first message of the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                door = door_of(scope)
                self._metrics.requests.labels(door, scope["method"], str(message["status"])).inc()
                self._metrics.request_seconds.labels(door).observe(perf_counter() - began)
            await send(message)

        await self._app(scope, receive, watched)
