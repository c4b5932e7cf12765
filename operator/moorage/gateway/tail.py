"""The last lines of what an agent wrote, without reading all of it: from its end backwards, chunk by chunk."""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from dataclasses import dataclass

from moorage.api.streaming import Gap
from moorage.core.journal.record import RecordType, decode
from moorage.gateway.events import Outputs, Source, dropped_bytes, gap_event, output_bytes, output_event

MOST_LINES = 100_000
LOOKED_BACK = 4_096
"""Chunks. Lines that begin further back aren't looked for: the answer says so."""


async def tail(source: Source, outputs: Outputs, lines: int) -> tuple[bytes, int]:
    """Events with the beginning of the last `lines` lines, and the offset from which the rest follows.

    The last line counts whether or not it has ended. A gap has no lines.
    """
    chunks, following = await _chunks(source)
    if not lines:
        return b"", following
    search = Search(lines)
    for seq in reversed(chunks):
        (record,) = await source.store.read(source.uid, seq, 1)
        payload = await outputs.payload(record) or {}
        rest = search.back(output_bytes(payload) if dropped_bytes(payload) is None else b"")
        if rest is not None:
            return output_event(record, rest, payload.get("stream")).encoded() if rest else b"", seq + 1
    if len(chunks) < LOOKED_BACK:
        return b"", 0
    return gap_event(Gap(reason="Tail", first=0, last=chunks[0] - 1)).encoded(), chunks[0]


async def _chunks(source: Source) -> tuple[deque[int], int]:
    """The offsets of the last chunks of output, and that behind the journal's head."""
    chunks, following = deque[int](maxlen=LOOKED_BACK), 0
    async with aclosing(source.store.stored(source.uid)) as entries:
        async for entry in entries:
            record = decode(entry)
            following = record.seq + 1
            if record.type == RecordType.AGENT_OUTPUT:
                chunks.append(record.seq)
    return chunks, following


@dataclass
class Search:
    """On its way back from a log's end: the lines begin behind the `ends`th line end from here on. `last`: nothing that
    was written has been met yet.
    """

    ends: int
    last: bool = True

    def back(self, written: bytes) -> bytes | None:
        """One chunk further: its part of the lines where they begin in it, else None."""
        self.ends += self.last and written.endswith(b"\n")
        self.last = self.last and not written
        found = written.count(b"\n")
        if found >= self.ends:
            return _after(written, self.ends)
        self.ends -= found
        return None


def _after(written: bytes, ends: int) -> bytes:
    """What follows so many line ends, counted from the last one back."""
    at = len(written)
    for _ in range(ends):
        at = written.rindex(b"\n", 0, at)
    return written[at + 1 :]
