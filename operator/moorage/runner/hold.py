"""P6: requests of the agent's to its model that wait here, in the relay, until its driver lets them leave.

Nothing waits unless a driver listens, and nothing for longer than it does: who stops listening refuses what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

MAX_BODY = 32 * 1024 * 1024  # as the gateway's model doors
ENDING = b"Stopping: the agent is being stopped"


@dataclass(eq=False)
class Request:
    """Implements drivers.port.Held."""

    path: str
    body: bytes | None
    since: float = field(default_factory=time.monotonic)
    refused: bytes = b""
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def pass_on(self) -> None:
        """It may leave."""
        self._settled.set()

    def refuse(self, answer: bytes) -> None:
        """It never leaves; `answer` is what the agent gets. Without effect where it was passed on."""
        if not self._settled.is_set():
            self.refused = answer
            self._settled.set()

    async def settled(self) -> None:
        """Wait for the driver's word."""
        await self._settled.wait()


class Hold:
    """One per relay."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Request] | None = None
        self._waiting: set[Request] = set()

    @property
    def listened(self) -> bool:
        """Somebody decides."""
        return self._queue is not None

    @contextlib.contextmanager
    def requests(self) -> Iterator[AsyncIterator[Request]]:
        """All requests in their order, each for the caller to settle; what isn't settled at the end is refused."""
        queue = self._queue = asyncio.Queue[Request]()
        try:
            yield _each(queue)
        finally:
            self._queue = None
            for request in self._waiting:
                request.refuse(ENDING)

    async def ask(self, path: str, body: bytes | None) -> bytes:
        """Wait for the driver's word: empty where the request may leave, else why it may not."""
        if self._queue is None:
            return b""
        request = Request(path, body)
        self._waiting.add(request)
        self._queue.put_nowait(request)
        try:
            await request.settled()
        finally:
            self._waiting.discard(request)
        return request.refused


async def _each(queue: asyncio.Queue[Request]) -> AsyncIterator[Request]:
    while True:
        yield await queue.get()
