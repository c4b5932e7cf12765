"""M3: what people say to the agent, on the runner's side: asked for when the gateway says that there is something, and
handed to the driver once it is journaled as delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from moorage.api.commands import WaitingMessage, WaitingMessages
from moorage.drivers.port import Kind, Message
from moorage.points import Point, reached
from moorage.runner.client import GatewayError, GatewayLost


class Mailbox:
    """Implements drivers.port.Messages for one attempt. `fetch` may be repeated and `emit` is the reporter's."""

    def __init__(self, fetch: Callable[[], Awaitable[WaitingMessages]], emit: Callable[..., Awaitable[Any]]) -> None:
        self._fetch, self._emit = fetch, emit
        self._held: dict[int, WaitingMessage] = {}  # by the offset of its admission
        self._taken: set[int] = set()
        self._came = asyncio.Condition()
        self._taking = asyncio.Lock()

    def waiting(self, *kinds: Kind) -> bool:
        """See the port."""
        return any(each.type in kinds for each in self._held.values())

    async def arrival(self, *kinds: Kind) -> None:
        """See the port."""
        async with self._came:
            await self._came.wait_for(lambda: self.waiting(*kinds))

    async def take(self, *kinds: Kind, turn: int, fresh: bool = False) -> tuple[Message, ...]:
        """See the port. Raises what a report to the gateway does; what was handed out before stays taken."""
        async with self._taking:
            if fresh:
                await self._look()
            found = [each for _, each in sorted(self._held.items()) if each.type in kinds]
            for each in found:
                await self._deliver(each, turn)
            return tuple(Message(each.command_id, each.type, each.text) for each in found)

    async def _deliver(self, message: WaitingMessage, turn: int) -> None:
        reached(Point.MESSAGE_BEFORE)
        payload = {"command_id": message.command_id, "iteration": turn}
        await self._emit("COMMAND_DELIVERED", payload, record_id=f"message:{message.offset}", turn=turn)
        self._taken.add(message.offset)
        self._held.pop(message.offset, None)
        reached(Point.MESSAGE_AFTER)

    async def follow(self, told: asyncio.Event) -> None:
        """Ask whenever `told` is set. A gateway that refuses is asked again at the next word of it."""
        while True:
            await told.wait()
            told.clear()
            try:
                await self._look()
            except (GatewayError, GatewayLost):
                continue  # the watch hears of a fence or an end by itself

    async def _look(self) -> None:
        found = await self._fetch()
        async with self._came:
            self._held = {each.offset: each for each in found.messages if each.offset not in self._taken}
            self._came.notify_all()
