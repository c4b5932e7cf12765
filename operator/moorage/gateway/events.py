"""From a run's journal to the events of its streams, in order, a page of it in memory at a time."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, get_args

from moorage.api.sse import Event
from moorage.api.streaming import Gap, Output, Stream, StreamEnd, StreamKind
from moorage.core.journal.export import record_line
from moorage.core.journal.record import Record, RecordType, Stored, decode
from moorage.core.run.state import RunState
from moorage.store.blobs import BlobStore, payload_of
from moorage.store.port import DurableExecutionStore

Render = Callable[[Stored], Awaitable[tuple[int, Event | None]]]
"""The offset of a record, and its event, where it has one."""


@dataclass(frozen=True)
class Source:
    """One of a run's streams, read from the store. `kind` names which of them it is."""

    kind: str
    store: DurableExecutionStore
    uid: str
    render: Render

    async def read(self, first: int) -> AsyncGenerator[tuple[int, Event | None], None]:
        """Offset and event of each record from `first` on, up to the head at the first step."""
        async with aclosing(self.store.stored(self.uid, first)) as entries:
            async for entry in entries:
                yield await self.render(entry)


async def record_event(stored: Stored) -> tuple[int, Event | None]:
    """A record as a line of the exported journal; chunks of output have a stream of their own."""
    record = decode(stored)
    if record.type == RecordType.AGENT_OUTPUT:
        return record.seq, None
    return record.seq, Event(StreamKind.RECORD, record_line(stored)[:-1], record.seq)


async def any_record_event(stored: Stored) -> tuple[int, Event | None]:
    """The same, chunks of output too: then the chain can be followed from the first record on."""
    seq = decode(stored).seq
    return seq, Event(StreamKind.RECORD, record_line(stored)[:-1], seq)


@dataclass(frozen=True)
class Outputs:
    """Renders what agents of one tenant wrote."""

    blobs: BlobStore
    tenant: str

    async def event(self, stored: Stored) -> tuple[int, Event | None]:
        """The event of an AGENT_OUTPUT; others have none here."""
        record = decode(stored)
        if record.type != RecordType.AGENT_OUTPUT:
            return record.seq, None
        payload = await self.payload(record)
        if payload is None:
            return record.seq, gap_event(Gap(reason="Erased", first=record.seq, last=record.seq, size=_size(record)))
        return record.seq, _said(record, payload)

    async def payload(self, record: Record) -> Mapping[str, Any] | None:
        """The payload of an AGENT_OUTPUT; None where it was erased."""
        return {} if record.payload_ref is None else await payload_of(record, self.blobs, self.tenant)


def _said(record: Record, payload: Mapping[str, Any]) -> Event | None:
    """What a sandbox reported may have any shape: what is no output is passed over."""
    dropped = dropped_bytes(payload)
    if dropped is not None:
        return gap_event(Gap(reason="Dropped", first=record.seq, last=record.seq, size=dropped))
    written = output_bytes(payload)
    return output_event(record, written, payload.get("stream")) if written else None


def dropped_bytes(payload: Mapping[str, Any]) -> int | None:
    """Of a mark, how much is missing there; None where the payload is none."""
    dropped = payload.get("dropped")
    return max(0, dropped) if isinstance(dropped, int) else None


def output_event(record: Record, written: bytes, stream: object) -> Event:
    """One chunk of output."""
    known: Stream = next((name for name in get_args(Stream) if name == stream), "stdout")
    output = Output(at=record.recorded_at, epoch=record.epoch, stream=known)
    try:
        output = output.model_copy(update={"text": written.decode()})
    except UnicodeDecodeError:
        output = output.model_copy(update={"data": base64.b64encode(written).decode()})
    return Event(StreamKind.OUTPUT, output.model_dump_json(exclude_none=True).encode(), record.seq)


def output_bytes(payload: Mapping[str, Any]) -> bytes:
    """What the agent wrote, from the payload of an AGENT_OUTPUT; nothing where it has another shape."""
    text, data = payload.get("text"), payload.get("data")
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    except ValueError:  # no base64
        return b""


def gap_event(gap: Gap) -> Event:
    """What is missing, at the place where it is."""
    return Event(StreamKind.GAP, gap.model_dump_json(exclude_none=True).encode(), gap.last)


def end_event(state: RunState) -> Event | None:
    """The last one; None while the run goes on."""
    if state.end is None:
        return None
    end = StreamEnd(phase=state.phase.value, reason=state.end.reason, message=state.end.message, offset=state.offset)
    return Event(StreamKind.END, end.model_dump_json().encode(), state.offset)


def _size(record: Record) -> int | None:
    told = (record.payload or {}).get("bytes")
    return told if isinstance(told, int) else None
