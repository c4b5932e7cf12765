"""The last lines of what an agent wrote, without reading all of it: from its end backwards, chunk by chunk."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing

from moorage.api.streaming import Gap
from moorage.core.journal.record import Record, RecordType, decode
from moorage.gateway.events import Outputs, Source, dropped_bytes, gap_event, output_bytes, output_event

MOST_LINES = 100_000
LOOKED_BACK = 4_096
"""Chunks. Lines that begin further back aren't looked for: the answer says so."""


async def tail(source: Source, outputs: Outputs, lines: int) -> tuple[bytes, int]:
    """Events with the beginning of the last `lines` lines, and the offset from which the rest follows.

    The last line counts whether or not it has ended.
    """
    chunks, following = await _chunks(source)
    if not lines:
        return b"", following
    ends, last = lines, True  # how many line ends from here back the first one begins behind
    for record in reversed(chunks):
        written = await _written(outputs, record)
        ends += last and written.endswith(b"\n")
        last = last and not written
        found = written.count(b"\n")
        if found >= ends:
            return _rest(record, _after(written, ends)), record.seq + 1
        ends -= found
    if len(chunks) < LOOKED_BACK:
        return b"", 0
    return gap_event(Gap(reason="Tail", first=0, last=chunks[0].seq - 1)).encoded(), chunks[0].seq


async def _chunks(source: Source) -> tuple[deque[Record], int]:
    """The last chunks of output, and the offset behind the journal's head."""
    chunks, following = deque[Record](maxlen=LOOKED_BACK), 0
    async with aclosing(source.store.stored(source.uid)) as entries:
        async for entry in entries:
            record = decode(entry)
            following = record.seq + 1
            if record.type == RecordType.AGENT_OUTPUT:
                chunks.append(record)
    return chunks, following


async def _written(outputs: Outputs, record: Record) -> bytes:
    """Nothing where it is a gap."""
    payload = await outputs.payload(record) or {}
    return output_bytes(payload) if dropped_bytes(payload) is None else b""


def _after(written: bytes, ends: int) -> bytes:
    """What follows so many line ends, counted from the last one back."""
    at = len(written)
    for _ in range(ends):
        at = written.rindex(b"\n", 0, at)
    return written[at + 1 :]


def _rest(record: Record, written: bytes) -> bytes:
    """The end of a chunk as its event."""
    return output_event(record, written, (record.payload or {}).get("stream")).encoded() if written else b""
