"""Whether a gateway is the only one of its store, and who the others are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from moorage.clock import Clock
from moorage.core.journal.heads import SigningKey
from moorage.store.peers import Alone, Peers


class Reading(Alone):
    """Of a process that reads a store to which the owners of this machine's runs write, and hears of none of it."""

    shared = True


@asynccontextmanager
async def open_peers(dsn: str | None, clock: Clock, key: SigningKey, log: Any = None) -> AsyncIterator[Peers]:
    """Be one of the gateways of that PostgreSQL, until the end; without `dsn`, of a store of one's own.

    Raise SigningKeyMismatch where the others sign by another key (J6), and the store's errors.
    """
    if dsn is None:
        yield Alone()
        return
    from moorage.store.postgres_peers import PostgresPeers  # noqa: PLC0415  its driver costs memory where it isn't used

    async with await PostgresPeers.open(dsn, clock, log) as peers:
        await peers.demand_key(key.verifying.id)
        yield peers
