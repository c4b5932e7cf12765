"""The last lines of what an agent wrote, without reading all of it: from its end backwards, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass

from moorage.api.streaming import Gap
from moorage.core.journal.record import Record, RecordType
from moorage.gateway.events import Outputs, Source, dropped_bytes, gap_event, output_bytes, output_event
from moorage.store.reading import backwards

MOST_LINES = 100_000
LOOKED_BACK = 4_096
"""Chunks. Lines that begin further back aren't looked for: the answer says so."""
PAGE = 128
"""Records that are read at once: a few milliseconds of the event loop, also where the journal is long."""

Turn = AbstractAsyncContextManager[object]
Found = tuple[bytes, int]


async def tail(source: Source, outputs: Outputs, lines: int, turn: Turn) -> Found:
    """Events with the beginning of the last `lines` lines, and the offset from which the rest follows.

    The last line counts whether or not it has ended. A gap has no lines. Each page is read in a turn of its own.
    """
    row = await source.store.get(source.uid)
    if not lines:
        return b"", row.head.offset + 1
    if row.sealed and await source.store.pruned(source.uid) is not None:
        return b"", 0
    looking = Looking(outputs, Search(lines))
    async with aclosing(backwards(source.store, row, PAGE)) as pages:
        while True:
            async with turn:
                page = await anext(pages, None)
                found = await looking.back([each for each in page or () if each.type == RecordType.AGENT_OUTPUT])
            if found is not None or page is None:
                return found or (b"", 0)
            await asyncio.sleep(0)


@dataclass
class Looking:
    """For where the lines begin, through chunk after chunk. `oldest` is the last one that was looked at."""

    outputs: Outputs
    search: Search
    looked: int = 0
    oldest: int = 0

    async def back(self, chunks: Sequence[Record]) -> Found | None:
        """A page further: what `tail` answers, once that is known."""
        for record in reversed(chunks):
            if self.looked == LOOKED_BACK:
                return gap_event(Gap(reason="Tail", first=0, last=self.oldest - 1)).encoded(), self.oldest
            self.looked, self.oldest = self.looked + 1, record.seq
            payload = await self.outputs.payload(record) or {}
            rest = self.search.back(output_bytes(payload) if dropped_bytes(payload) is None else b"")
            if rest is not None:
                return output_event(record, rest, payload.get("stream")).encoded() if rest else b"", record.seq + 1
        return None


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
