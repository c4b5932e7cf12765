"""Which effects are under way at this moment: nobody else settles those, or sends them again.

Each is journaled with the gateway that sends it. What another one has under way is its own for as long as that one
lives; what died with its gateway is anybody's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from moorage.gateway.ledger import Run
from moorage.store.peers import Peers


def settling(run: Run) -> str:
    """What one gateway at a time claims, to settle and deliver."""
    return f"settle:{run.uid}"


class UnderWay:
    """One object per process: knows its own, and asks after the others'."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._here: set[str] = set()

    def begin(self, effect_id: str) -> None:
        """This process is at it."""
        self._here.add(effect_id)

    def end(self, effect_id: str) -> None:
        """It is so no more, whatever it came to."""
        self._here.discard(effect_id)

    @contextlib.contextmanager
    def here(self, effect_id: str) -> Iterator[None]:
        """This process is at it until the end."""
        self.begin(effect_id)
        try:
            yield
        finally:
            self.end(effect_id)

    async def of(self, run: Run) -> frozenset[str]:
        """The ids of a run's effects under way, and of others that are here. Raise StoreUnavailable."""
        senders = {s.gateway for s in run.facts.senders if s.effect_id not in self._here} - {self._peers.me}
        alive = {name for name in senders if not await self._peers.gone(name)}
        return frozenset(self._here) | {s.effect_id for s in run.facts.senders if s.gateway in alive}
