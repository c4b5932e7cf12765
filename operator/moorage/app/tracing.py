"""Traces, where OpenTelemetry's own variables say where to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import moorage
from moorage.api.wire import ResolvedRun
from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import Record, decode
from moorage.gateway.ledger import Appended
from moorage.store.errors import StoreError
from moorage.store.port import DurableExecutionStore
from moorage.telemetry.metrics import GatewayMetrics
from moorage.telemetry.spans import Named

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
LAST_WORDS_S = 2.0
"""At the end, what is woven still gets this long to be sent."""


def wanted(env: Mapping[str, str]) -> bool:
    """Whether there is somewhere to send traces to, and nobody has turned them off."""
    off = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(env.get(name) for name in ENDPOINTS)


def named(spec: ResolvedRun) -> Named:
    """What a run's spans say of it."""
    model = spec.agent.model
    asked = (model.protocol, model.name) if model else ("", "")
    return Named(spec.tenant, spec.name, spec.uid, spec.session_id, spec.agent.driver, *asked)


@asynccontextmanager
async def open_tracing(
    env: Mapping[str, str], store: DurableExecutionStore, metrics: GatewayMetrics, log: Any
) -> AsyncIterator[Appended | None]:
    """What is to be told of this process's appends, for as long as it is open; None where nobody listens."""
    if not wanted(env):
        yield None
        return
    # imported here: it costs 15 MB and a tenth of a second where nobody wants it
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from moorage.telemetry.tracing import Tracer, Unread  # noqa: PLC0415

    exporter = OTLPSpanExporter()
    sink = BatchSpanProcessor(exporter)
    resource = Resource.create({"service.name": "moorage-gateway", "service.version": moorage.__version__})

    async def read(uid: str, start: int) -> AsyncIterator[Record]:
        try:
            async for stored in store.stored(uid, start):
                yield decode(stored)
        except (StoreError, JournalError) as error:
            raise Unread(type(error).__name__) from error

    tracer = Tracer(sink, resource, read, metrics, log)
    weaving = asyncio.create_task(tracer.run())

    def appended(spec: ResolvedRun, records: Sequence[Record]) -> None:
        tracer.appended(named(spec), records)

    try:
        yield appended
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await tracer.drained()
                await asyncio.to_thread(sink.force_flush)
        weaving.cancel()
        await asyncio.gather(weaving, return_exceptions=True)
        exporter.shutdown()  # whoever tries again at a collector that is away stops
        await asyncio.to_thread(sink.shutdown)
