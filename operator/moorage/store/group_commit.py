"""Group commit: writes that are asked for in one turn of the event loop share a transaction, and so one fsync.

A single writer waits for nothing but its own commit; sixteen of them wait for one commit together. Each write is still
all or nothing, and is acknowledged only once it is durable.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from moorage.store.sqlite_connection import savepoint, transaction, translated

T = TypeVar("T")
Work = Callable[[], Any]

MAX_BATCH = 128
"""Writes in one transaction: a batch runs on the event loop's thread, some tens of microseconds each."""


class GroupCommit:
    """Runs writes on one connection. Every write asked for is answered: with its result, or with an error."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._db, self._path = connection, path
        self._waiting: list[tuple[Work, asyncio.Future[Any]]] = []

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns once its writes are durable; what it raises leaves nothing of it behind."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self.flush)
        return await answer

    def flush(self) -> None:
        """Commit what waits, up to a batch; the rest gets its turn after other tasks had theirs."""
        batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        batch = [(work, answer) for work, answer in batch if not answer.done()]
        if not batch:
            return
        outcomes = self._outcomes([work for work, _ in batch])
        for (_, answer), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

    def _outcomes(self, works: list[Work]) -> list[Any]:
        """Return what each work returned, durable now, or raised, undone now."""
        try:
            with translated(self._path), transaction(self._db):
                return [works[0]()] if len(works) == 1 else [self._attempt(work) for work in works]
        except Exception as e:  # noqa: BLE001 -- relayed to each caller, as it is: nothing of the batch was written
            return [e] * len(works)

    def _attempt(self, work: Work) -> Any:
        try:
            with savepoint(self._db):
                return work()
        except sqlite3.Error:
            raise  # the database is in trouble, and the whole batch with it
        except Exception as e:  # noqa: BLE001 -- a refusal, or what a guard raised: its caller's alone
            return e
