"""Which runs still ask for somebody: read once, then kept up by what changed, so that old runs cost nothing."""

from __future__ import annotations

import asyncio

from moorage.store.port import DurableExecutionStore, Execution

PAGE = 1_000


class Roll:
    """The rows of all runs that aren't sealed, in memory; brought up to date whenever it is asked."""

    def __init__(self, store: DurableExecutionStore) -> None:
        self._store = store
        self._rows: dict[str, Execution] = {}
        self._cursor = 0
        self._reading = asyncio.Lock()

    async def unsealed(self) -> list[Execution]:
        """Oldest first: pending runs, and ended ones that nobody has released."""
        async with self._reading:
            while page := await self._store.changes(self._cursor, PAGE):
                for change in page:
                    await self._take(change.run_uid)
                self._cursor = page[-1].cursor
        return sorted(self._rows.values(), key=lambda row: (row.created_at, row.run_uid))

    async def _take(self, run_uid: str) -> None:
        row = await self._store.get(run_uid)
        if row.sealed:
            self._rows.pop(run_uid, None)
        else:
            self._rows[run_uid] = row


async def all_rows(store: DurableExecutionStore) -> list[Execution]:
    """Every run that the store knows, sealed ones too."""
    rows: list[Execution] = []
    cursor = 0
    while page := await store.changes(cursor, PAGE):
        rows += [await store.get(change.run_uid) for change in page]
        cursor = page[-1].cursor
    return rows
