"""Waking waiters at once: a bell rings for all who armed it before. No count is kept, so that none can be lost: a
waiter arms the bell, then looks, then waits."""

from __future__ import annotations

import asyncio


class Bell:
    """One thing that may change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def arm(self) -> asyncio.Event:
        """The event that the next ring sets. Arm before looking at what may have changed."""
        return self._event

    def ring(self) -> None:
        """Wake all who armed it."""
        rung, self._event = self._event, asyncio.Event()
        rung.set()


async def rung_within(event: asyncio.Event, timeout_ms: int) -> bool:
    """Whether the bell rang in time."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        return False
    return True
