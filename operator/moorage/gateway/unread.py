"""An answer that comes as fast as its source gives it, however slowly it is read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator


class Unread:
    """What has come and isn't read yet. One writes, one reads. `limit`: how many bytes may wait. `begun`: some came."""

    def __init__(self, limit: int) -> None:
        self._pieces, self._size, self._limit = deque[bytes](), 0, limit
        self._ended, self._news = False, asyncio.Event()
        self.begun = False

    @property
    def over(self) -> bool:
        """More waits than may: whoever writes has to stop."""
        return self._size > self._limit

    def put(self, piece: bytes) -> None:
        """Never waits."""
        self.begun = True
        self._pieces.append(piece)
        self._size += len(piece)
        self._news.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._news.set()

    async def beginning(self) -> bool:
        """Wait for the first piece; False where it ended without any."""
        while not self.begun and not self._ended:
            self._news.clear()
            await self._news.wait()
        return self.begun

    async def pieces(self) -> AsyncIterator[bytes]:
        """Piece by piece, as they came, up to the end."""
        while self._pieces or not self._ended:
            if self._pieces:
                piece = self._pieces.popleft()
                self._size -= len(piece)
                yield piece
            else:
                self._news.clear()
                await self._news.wait()
