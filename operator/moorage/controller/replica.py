"""F7: one of several operators. It stands by, with no watch and no write, until it leads; it works while it leads; and
where it leads no more its process ends, since what it has in memory is another one's to know by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from moorage.controller.together import together

Work = Callable[[asyncio.Event], Awaitable[None]]
"""Works until the event is set, or until it is cancelled."""


class Leadership(Protocol):
    """The part of an Election that this needs."""

    async def win(self) -> None:
        """Return once this process leads."""

    async def hold(self) -> None:
        """Raise Deposed when it leads no more."""

    async def resign(self) -> None:
        """Let another one lead at once."""


async def take_turns(election: Leadership, work: Work, stop: asyncio.Event) -> None:
    """Until `stop`. Raises Deposed, and whatever the work raises."""
    if not await _won(election, stop):
        return
    stopping = asyncio.Event()  # of the work: it ends before the Lease is let go of

    async def working() -> None:
        await work(stopping)

    async def asked() -> None:
        await stop.wait()

    try:
        await together([working(), election.hold(), asked()], stopping)
    finally:
        await election.resign()


async def _won(election: Leadership, stop: asyncio.Event) -> bool:
    winning, stopped = asyncio.ensure_future(election.win()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((winning, stopped), return_when=asyncio.FIRST_COMPLETED)
        if winning.done():
            winning.result()
        return winning.done()
    finally:
        for each in (winning, stopped):
            each.cancel()
        await asyncio.gather(winning, stopped, return_exceptions=True)
