"""Sends the spans of what this process appends to an OpenTelemetry collector: beside the work, never in its way.

What it is told waits in a bounded queue; what doesn't fit is counted and left out. The exporter is OpenTelemetry's own
and is set up by its `OTEL_*` variables.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from moorage.core.journal.record import Record
from moorage.telemetry.metrics import GatewayMetrics
from moorage.telemetry.spans import Named, Span, Weaver

SCOPE = InstrumentationScope("moorage")
MAX_WAITING = 4_096  # appends; at ten a second and run, that is minutes of a busy gateway
MAX_RUNS = 2_048
NANOSECONDS = 1_000_000
ODD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what a payload's shape can lead to

Read = Callable[[str, int], AsyncIterator[Record]]
"""The records of a run from an offset on. Raises Unread."""


class Unread(Exception):
    """The journal can't be read now; the reason in a word."""


@dataclass(frozen=True)
class _Told:
    run: Named
    records: tuple[Record, ...]


class Tracer:
    """One per process. `appended` never waits; `run` is the background task that weaves and hands on."""

    def __init__(self, sink: SpanProcessor, resource: Resource, read: Read, metrics: GatewayMetrics, log: Any) -> None:
        self._sink, self._resource, self._read = sink, resource, read
        self._metrics, self._log = metrics, log
        self._waiting: asyncio.Queue[_Told] = asyncio.Queue(MAX_WAITING)
        self._weavers: OrderedDict[str, Weaver] = OrderedDict()

    def appended(self, run: Named, records: Sequence[Record]) -> None:
        """This process has made these records durable, and nobody else tells of them."""
        if not records:
            return
        try:
            self._waiting.put_nowait(_Told(run, tuple(records)))
        except asyncio.QueueFull:
            self._metrics.spans_left_out.inc(len(records))

    async def run(self) -> None:
        """Until cancelled. What can't be read is told in the log and left out: a trace is no evidence."""
        while True:
            told = await self._waiting.get()
            try:
                await self._weave(told)
            except Unread as error:
                self._leave_out(told, str(error))
            except Exception as error:  # noqa: BLE001  this task's outermost: one run must not end the spans of all
                self._leave_out(told, type(error).__name__)
            finally:
                self._waiting.task_done()

    def _leave_out(self, told: _Told, reason: str) -> None:
        """Its run is woven anew with the next append, from the journal."""
        self._metrics.spans_left_out.inc(len(told.records))
        self._weavers.pop(told.run.uid, None)
        self._log.warning("spans_left_out", run_uid=told.run.uid, reason=reason)

    async def drained(self) -> None:
        """Return once everything that was told has been woven."""
        await self._waiting.join()

    async def _weave(self, told: _Told) -> None:
        weaver = self._weaver(told.run)
        first = told.records[0].seq
        if weaver.next_seq < first:  # another gateway wrote, or another process before this one: it told of that
            await self._catch_up(weaver, told.run.uid, first)
        for record in told.records:
            if record.seq >= weaver.next_seq:
                for span in self._fed(weaver, record):
                    self._sink.on_end(_readable(span, self._resource))

    async def _catch_up(self, weaver: Weaver, uid: str, until: int) -> None:
        async for record in self._read(uid, weaver.next_seq):
            if record.seq >= until:
                return
            self._fed(weaver, record)

    def _fed(self, weaver: Weaver, record: Record) -> Sequence[Span]:
        """A payload of another shape than ours costs its own spans: what a journal holds once, it holds for ever."""
        try:
            return list(weaver.feed(record))
        except ODD as error:
            self._metrics.spans_left_out.inc()
            reason = f"{record.type} at {record.seq}: {type(error).__name__}"
            self._log.warning("spans_left_out", run_uid=record.run_uid, reason=reason)
            return ()

    def _weaver(self, run: Named) -> Weaver:
        weaver = self._weavers.setdefault(run.uid, Weaver(run))
        self._weavers.move_to_end(run.uid)
        while len(self._weavers) > MAX_RUNS:
            self._weavers.popitem(last=False)
        return weaver


def _context(span: Span, span_id: int) -> SpanContext:
    return SpanContext(span.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        context=_context(span, span.span_id),
        parent=None if span.parent_id is None else _context(span, span.parent_id),
        resource=resource,
        attributes=dict(span.attributes),
        kind=SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
        instrumentation_scope=SCOPE,
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.start * NANOSECONDS,
        end_time=span.end * NANOSECONDS,
    )
