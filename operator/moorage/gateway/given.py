"""Which answers were heard to their end, as far as this process knows. What was asked by one that died, nobody does.

So an agent that asks for the same again, whatever its program, gets the answer that it may have missed (R2), while one
that had it and asks for another gets another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

KEPT: Final = 16_384
"""Ids: far more than all live runs have answers since their safe points in practice."""


class Given:
    """One object per process."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()

    def begin(self, request_id: str) -> None:
        """It is being answered here, and its agent listens."""
        self._known[request_id] = None
        while len(self._known) > KEPT:
            self._known.popitem(last=False)

    def missed(self, request_id: str) -> None:
        """Its agent didn't hear all of it."""
        self._known.pop(request_id, None)

    async def sent(self, request_id: str, gone: Callable[[], Awaitable[bool]]) -> None:
        """All of it was sent, and heard unless the agent was gone by then."""
        if await gone():
            self.missed(request_id)

    def heard(self, request_id: str) -> bool:
        """An agent has it, or is getting it now."""
        return request_id in self._known
