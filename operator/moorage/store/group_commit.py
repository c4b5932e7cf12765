"""Group commit: writes that are asked for in one turn of the event loop share a transaction, and so one fsync.

A single writer waits for nothing but its own commit; sixteen of them wait for one commit together. Each write is still
all or nothing, and is acknowledged only once it is durable. While another process holds the database, writes wait for
it and the loop goes on.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from moorage.store.errors import StoreBusy
from moorage.store.sqlite_connection import BUSY_TIMEOUT_MS, begin, savepoint, transaction, translated

T = TypeVar("T")
Work = Callable[[], Any]
Asked = tuple[Work, "asyncio.Future[Any]"]

MAX_BATCH = 128
"""Writes in one transaction: a batch runs on the event loop's thread, some tens of microseconds each."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


class _LeftWritesError(Exception):
    """A write of several failed after its first statement: what it did must be told apart from the others'."""


class GroupCommit:
    """Runs writes on one connection. Every write asked for is answered: with its result, or with an error.

    A write may be run again, after a transaction that it shared with others was undone.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, patience_ms: int = BUSY_TIMEOUT_MS) -> None:
        self._db, self._path, self._patience_s = connection, path, patience_ms / 1000
        self._waiting: list[Asked] = []
        self._busy_since: float | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns once its writes are durable; what it raises leaves nothing of it behind.

        Raise StoreBusy where another process has held the database for longer than our patience.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting.append((work, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._flush)
        return await answer

    def close(self) -> None:
        """Commit what waits; what another process keeps from being committed is answered with StoreBusy."""
        self._patience_s = 0
        while self._waiting:
            self._flush()

    def _flush(self) -> None:
        """Commit what waits, up to a batch; the rest gets its turn after other tasks had theirs."""
        batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        batch = [(work, answer) for work, answer in batch if not answer.done()]
        if not batch:
            return
        try:
            with translated(self._path):
                begin(self._db)
        except StoreBusy as e:
            self._wait(batch, e)
            return
        except Exception as e:  # noqa: BLE001 -- relayed to each caller: nothing was written
            self._answer(batch, [e] * len(batch))
            return
        self._busy_since = None
        self._answer(batch, self._outcomes([work for work, _ in batch]))

    def _wait(self, batch: list[Asked], busy: StoreBusy) -> None:
        """Try again a little later, unless that was done for long enough."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._busy_since = self._busy_since or now
        waited = now - self._busy_since
        if waited >= self._patience_s:
            self._busy_since = None
            self._answer(batch, [busy] * len(batch))
            return
        if not self._waiting:  # else the rest's turn is coming, and brings these along
            loop.call_later(min(max(waited, _FIRST_PAUSE_S), _LONGEST_PAUSE_S), self._flush)
        self._waiting = batch + self._waiting

    def _answer(self, batch: list[Asked], outcomes: list[Any]) -> None:
        for (_, answer), outcome in zip(batch, outcomes, strict=True):
            if answer.done():
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

    def _outcomes(self, works: list[Work]) -> list[Any]:
        """Return what each work returned, durable now, or raised, undone now. A transaction has begun.

        A refusal comes before its work's first write, so that works need no savepoints; where one failed half way, all
        are done again with savepoints.
        """
        alone = len(works) == 1
        try:
            with translated(self._path):
                try:
                    with transaction(self._db):
                        return [works[0]()] if alone else [self._attempt(work) for work in works]
                except _LeftWritesError:
                    begin(self._db)
                    with transaction(self._db):
                        return [self._attempt(work, guarded=True) for work in works]
        except Exception as e:  # noqa: BLE001 -- relayed to each caller, as it is: nothing of the batch was written
            return [e] * len(works)

    def _attempt(self, work: Work, *, guarded: bool = False) -> Any:
        before = self._db.total_changes
        try:
            with savepoint(self._db) if guarded else nullcontext():
                return work()
        except sqlite3.Error:
            raise  # the database is in trouble, and the whole batch with it
        except Exception as e:  # a refusal, or what a guard raised: its caller's alone
            if not guarded and self._db.total_changes != before:
                raise _LeftWritesError from e
            return e
