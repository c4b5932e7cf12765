"""What the agent writes, on its way to the journal's artifacts: in chunks, at a bounded rate, from bounded memory.

Overflow policy: an attempt's output is kept up to `KEPT_BYTES`; of what comes faster than it can be passed on, at most
`BURST_BYTES` are held. Of what is more, the middle is dropped: the beginning is kept, and the last `TAIL_BYTES`, since
an agent's last words matter most. A mark says how many bytes are missing where. Past the bound for an attempt, the last
bytes are held until its end. The agent is never slowed down by it. Flushes become rarer the more chunks there are, so
that an agent that drips for hours doesn't fill the journal.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

CHUNK_BYTES = 32 * 1024
TAIL_BYTES = 64 * 1024
BURST_BYTES = 1024 * 1024
PRESSING_BYTES = 128 * 1024  # held: no flush is waited for
KEPT_BYTES = 8 * 1024 * 1024
FLUSH_S = 0.5
SLOWEST_FLUSH_S = 5.0
SLOWER_AFTER = 256  # chunks
LONGEST_CHARACTER = 4  # bytes of one in UTF-8

OURS = "moorage"  # the stream of what we say ourselves
FULL = f"\n[{KEPT_BYTES >> 20} MiB of output are kept; the end of it comes last]\n".encode()

Emit = Callable[[str, Mapping[str, Any]], Awaitable[None]]
Piece = tuple[str, bytes]
"""A stream's name, and some of its bytes."""


class Tail:
    """The last `TAIL_BYTES` of what is put in; `dropped` counts the bytes that had to go."""

    def __init__(self) -> None:
        self.size, self.dropped = 0, 0
        self._pieces: deque[Piece] = deque()

    def put(self, stream: str, data: bytes) -> None:
        """The newest; what is too old goes."""
        kept = data[-TAIL_BYTES:]
        self.dropped += len(data) - len(kept)
        self._pieces.append((stream, kept))
        self.size += len(kept)
        while self.size > TAIL_BYTES:
            self._cut(self.size - TAIL_BYTES)

    def take(self) -> tuple[int, list[Piece]]:
        """How many bytes are missing, and what follows them, from the beginning of a line where one is near."""
        if self.dropped and self._pieces:
            self._cut(_torn(self._pieces[0][1]))
        dropped, pieces = self.dropped, [piece for piece in self._pieces if piece[1]]
        self.size, self.dropped = 0, 0
        self._pieces.clear()
        return dropped, pieces

    def _cut(self, most: int) -> None:
        """Drop so many bytes of the oldest piece, or all of it."""
        stream, data = self._pieces.popleft()
        if len(data) > most:
            self._pieces.appendleft((stream, data[most:]))
        self.size -= min(most, len(data))
        self.dropped += min(most, len(data))


class OutputLog:
    """Collects and ships. `seq` counts chunks within the attempt."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._held: list[tuple[str, bytearray]] = []
        self._held_bytes = 0
        self._tail = Tail()
        self._taken = 0  # bytes that were shipped, or are on their way
        self._seq = 0
        self._full = False
        self._pressing = asyncio.Event()
        self._lock = asyncio.Lock()

    @property
    def held(self) -> int:
        """Bytes that wait for a flush."""
        return self._held_bytes + self._tail.size

    def add(self, stream: str, data: bytes) -> None:
        """Take bytes; never waits."""
        kept = data[: self._room()]
        if len(kept) < len(data):
            self._tail.put(stream, data[len(kept) :])
        if not kept:
            return
        if not self._held or self._held[-1][0] != stream:
            self._held.append((stream, bytearray()))
        self._held[-1][1].extend(kept)
        self._held_bytes += len(kept)
        if self._held_bytes >= PRESSING_BYTES:
            self._pressing.set()

    def _room(self) -> int:
        """How much may be held for the next flush; nothing, once something stands in the tail, which comes after."""
        if self._full or self._tail.size:
            return 0
        return max(0, min(BURST_BYTES, KEPT_BYTES - self._taken) - TAIL_BYTES - self._held_bytes)

    async def pump(self) -> None:
        """Ship until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s(self._seq)):
                    await self._pressing.wait()
            self._pressing.clear()
            await self.flush()

    async def flush(self, *, last: bool = False) -> None:
        """Ship all that is held. Past the bound for an attempt, its tail is shipped by the last one only."""
        async with self._lock:
            for stream, data, more in self._take(last=last):
                for chunk in chunks(data):
                    await self._ship(stream, chunk, more)

    def _take(self, *, last: bool) -> list[tuple[str, bytes | bytearray, dict[str, int]]]:
        """What is to be shipped now, in its order: it is all taken at once, since more comes meanwhile."""
        held: list[tuple[str, bytes | bytearray, dict[str, int]]] = [(*piece, {}) for piece in self._held]
        self._taken += self._held_bytes
        self._held, self._held_bytes = [], 0
        full, self._full = self._full, self._full or self._taken + self._tail.size > KEPT_BYTES - TAIL_BYTES
        if self._full and not last:
            return held if full else [*held, (OURS, FULL, {})]
        self._taken += self._tail.size
        dropped, pieces = self._tail.take()
        mark = f"\n[{dropped} bytes of output dropped here]\n".encode()
        marks = [(OURS, mark, {"dropped": dropped})] if dropped else []
        return [*held, *marks, *((*piece, {}) for piece in pieces)]

    async def _ship(self, stream: str, data: bytes, more: Mapping[str, int]) -> None:
        self._seq += 1
        told: dict[str, Any] = {"stream": stream, **content(data), "bytes": len(data), "index": self._seq, **more}
        await self._emit("AGENT_OUTPUT", told)


def _torn(data: bytes) -> int:
    """How much of the beginning of `data` belongs to a line whose beginning is gone; where no line ends within a chunk,
    to a character of which that holds.
    """
    end = data.find(b"\n", 0, CHUNK_BYTES)
    if end >= 0:
        return end + 1
    within = (at for at, byte in enumerate(data[:LONGEST_CHARACTER]) if byte & 0xC0 != 0x80)
    return next(within, 0)


def pause_s(shipped: int) -> float:
    """How long to wait for the next flush after so many chunks."""
    return min(SLOWEST_FLUSH_S, FLUSH_S * float(1 << min(shipped // SLOWER_AFTER, 8)))


def chunks(data: bytes | bytearray) -> Iterator[bytes]:
    """Pieces of at most CHUNK_BYTES, cut between characters where the bytes are UTF-8."""
    at = 0
    while at < len(data):
        end = min(at + CHUNK_BYTES, len(data))
        back = end
        while back < len(data) and end - back < LONGEST_CHARACTER and data[back] & 0xC0 == 0x80:
            back -= 1
        end = back if end - back < LONGEST_CHARACTER else end
        yield bytes(data[at:end])
        at = end


def content(data: bytes) -> dict[str, str]:
    """As text where the bytes are text, else as they are, in base64."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode()}
