"""Who may ask a provider next, where only so many may at once: one request of each run in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

Waiting = asyncio.Future[None]


@dataclass
class _Provider:
    """What is under way at one provider, and who waits: runs in the order of their turns, each with its requests."""

    limit: int
    active: int = 0
    runs: OrderedDict[str, deque[Waiting]] = field(default_factory=OrderedDict)

    def grant(self) -> None:
        """Let in whoever is next, while there is room."""
        while self.active < self.limit and self.runs:
            run, waiting = self.runs.popitem(last=False)
            turn = waiting.popleft()
            if waiting:
                self.runs[run] = waiting
            if not turn.done():
                turn.set_result(None)
                self.active += 1


class Turns:
    """One object per process: each gateway counts its own requests."""

    def __init__(self) -> None:
        self._providers: dict[Hashable, _Provider] = {}

    async def take(self, provider: Hashable, run: str, limit: int, patience_s: float) -> bool:
        """Wait for a turn; whether it came in time. Who got one gives it back. The last `limit` that was said holds."""
        at = self._providers.setdefault(provider, _Provider(limit))
        at.limit = limit
        turn: Waiting = asyncio.get_running_loop().create_future()
        at.runs.setdefault(run, deque()).append(turn)
        at.grant()
        try:
            async with asyncio.timeout(patience_s):
                await turn
        except TimeoutError:
            return self._left(provider, turn)
        except asyncio.CancelledError:
            if self._left(provider, turn):
                self.give_back(provider)
            raise
        return True

    def _left(self, provider: Hashable, turn: Waiting) -> bool:
        """Whether the turn came while its owner stopped waiting."""
        came = turn.done() and not turn.cancelled()
        turn.cancel()
        self._forget(provider)
        return came

    def give_back(self, provider: Hashable) -> None:
        """The request is over."""
        at = self._providers[provider]
        at.active -= 1
        at.grant()
        self._forget(provider)

    def _forget(self, provider: Hashable) -> None:
        """Nothing is kept of a provider that nobody asks."""
        at = self._providers.get(provider)
        if at is not None and not at.active and not any(not t.done() for queue in at.runs.values() for t in queue):
            del self._providers[provider]
