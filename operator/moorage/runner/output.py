"""What the agent writes, on its way to the journal's artifacts: in chunks, at a bounded rate, from bounded memory.

Overflow policy: of an attempt's output the first `KEPT_BYTES` are kept, of what comes between two flushes at most
`BURST_BYTES`. What is over is dropped and counted, and a mark in the output says how much is missing where; past
`KEPT_BYTES` there is one mark then and one at the end. The agent is never slowed down by it. Flushes become rarer the
more chunks there are, so that an agent that drips for hours doesn't fill the journal.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

CHUNK_BYTES = 32 * 1024
BURST_BYTES = 256 * 1024
KEPT_BYTES = 8 * 1024 * 1024
FLUSH_S = 0.5
SLOWEST_FLUSH_S = 5.0
SLOWER_AFTER = 256  # chunks
LONGEST_CHARACTER = 4  # bytes of one in UTF-8

Emit = Callable[[str, Mapping[str, Any]], Awaitable[None]]


class OutputLog:
    """Collects and ships. `seq` counts chunks within the attempt."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._held: list[tuple[str, bytearray]] = []
        self._held_bytes = 0
        self._dropped = 0
        self._sent = 0
        self._seq = 0
        self._full = False  # and it has been told
        self._lock = asyncio.Lock()

    def add(self, stream: str, data: bytes) -> None:
        """Take bytes; never waits."""
        room = min(BURST_BYTES - self._held_bytes, KEPT_BYTES - self._sent - self._held_bytes)
        kept = data[: max(0, room)]
        self._dropped += len(data) - len(kept)
        if not kept:
            return
        if not self._held or self._held[-1][0] != stream:
            self._held.append((stream, bytearray()))
        self._held[-1][1].extend(kept)
        self._held_bytes += len(kept)

    async def pump(self) -> None:
        """Ship until cancelled."""
        while True:
            await asyncio.sleep(pause_s(self._seq))
            await self.flush()

    async def flush(self, *, last: bool = False) -> None:
        """Ship all that is held; the last one tells what was dropped past KEPT_BYTES."""
        async with self._lock:
            held, self._held, self._held_bytes = self._held, [], 0
            for stream, data in held:
                for chunk in chunks(data):
                    await self._ship(stream, chunk)
            if self._dropped and (last or not self._full):
                self._full = self._sent >= KEPT_BYTES
                dropped, self._dropped = self._dropped, 0
                await self._ship("moorage", f"\n[{dropped} bytes of output dropped here]\n".encode())

    async def _ship(self, stream: str, data: bytes) -> None:
        self._seq += 1
        self._sent += len(data)
        await self._emit("AGENT_OUTPUT", {"stream": stream, **content(data), "bytes": len(data), "index": self._seq})


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
