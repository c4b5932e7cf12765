"""Group commit over PostgreSQL: changes of runs that are asked for while a commit is on its way share the next one.

A group takes two round trips, whatever its size: one locks the rows and looks up what is there, one writes and commits.
Between them everything is decided in memory, so that a refusal leaves nothing to undo and needs no savepoint. Rows are
locked in one order by everybody, and the lock that orders commits is taken last: no two gateways wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import Draft, Stored
from moorage.points import Point, reached
from moorage.store import postgres_rows as sql
from moorage.store.appending import AppendPlan, record_ids
from moorage.store.errors import StoreUnavailable, UnknownRun
from moorage.store.port import AppendResult, Execution
from moorage.store.postgres_connection import Db, Link, translated

T = TypeVar("T")
MAX_GROUP = 128
"""Changes in one transaction: deciding them takes the event loop some milliseconds."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What is to be done to one run: `plan` decides it, given the locked row and what its drafts' ids name already."""

    run_uid: str
    drafts: Sequence[Draft]
    plan: Callable[[Execution, Mapping[str, Stored]], AppendPlan]


class Writer:
    """All writes of one store, over one connection. Every one is answered: with its result, or with an error."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: list[tuple[RowChange, asyncio.Future[AppendResult]]] = []
        self._turn = asyncio.Lock()
        self._committing: asyncio.Task[None] | None = None

    async def change(self, change: RowChange) -> AppendResult:
        """Return what the plan says once it is durable.

        Raise what the plan raises, UnknownRun, StoreBusy, and StoreUnavailable: then nothing was acknowledged, and
        asking again is harmless, since a record that was written after all is found by its id.
        """
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, answer))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._commit_all())
        return await answer

    async def transaction(self, work: Callable[[Db], Awaitable[T]]) -> T:
        """Return what `work` returns once its writes are durable; what it raises undoes them."""
        async with self._turn:
            db = await self._link.get()
            try:
                async with translated(), db.transaction():
                    return await work(db)
            finally:
                if db.closed:
                    await self._link.drop(db)

    async def close(self) -> None:
        """Commit what waits, and let go of the connection."""
        if self._committing is not None:
            await self._committing
        await self._link.close()

    async def _commit_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
            group = [(change, answer) for change, answer in group if not answer.done()]
            if group:
                outcomes = await self._outcomes([change for change, _ in group])
                for (_, answer), outcome in zip(group, outcomes, strict=True):
                    _settle(answer, outcome)

    async def _outcomes(self, group: Sequence[RowChange]) -> list[AppendResult | Exception]:
        try:
            async with self._turn:
                return await self._commit(group)
        except Exception as e:  # noqa: BLE001 -- relayed to each caller, as it is: nothing of the group is acknowledged
            return [e] * len(group)

    async def _commit(self, group: Sequence[RowChange]) -> list[AppendResult | Exception]:
        db, held = await self._begin(group)
        done = False
        try:
            async with translated():
                reached(Point.APPEND_BEFORE)
                outcomes = [_planned(change, held.get(change.run_uid)) for change in group]
                reached(Point.APPEND_WITHIN)
                await sql.commit(db, held.values())
            done = True
            reached(Point.APPEND_AFTER)
        finally:
            if not done:
                await self._link.drop(db)
        return outcomes

    async def _begin(self, group: Sequence[RowChange]) -> tuple[Db, dict[str, sql.Held]]:
        """Lock the group's rows. A connection that turns out to be lost has written nothing: another one is tried."""
        asked = [(change.run_uid, record_id) for change in group for record_id in _ids(change)]
        for last in (False, True):
            db = await self._link.get()
            done = False
            try:
                async with translated():
                    held = await sql.begin(db, {change.run_uid for change in group}, asked)
                done = True
            except StoreUnavailable:
                if last:
                    raise
            else:
                return db, held
            finally:
                if not done:
                    await self._link.drop(db)
        raise AssertionError("unreachable")


def _planned(change: RowChange, held: sql.Held | None) -> AppendResult | Exception:
    """Decide one change on top of those before it in the group."""
    if held is None:
        return UnknownRun(change.run_uid)
    try:
        ids = record_ids(change.drafts)
        existing = {record_id: held.existing[record_id] for record_id in ids if record_id in held.existing}
        plan = change.plan(held.now, existing)
    except Exception as e:  # noqa: BLE001 -- a refusal, or what a guard raised: its caller's alone
        return e
    held.now = plan.result.execution
    held.events += plan.rows
    held.existing.update((record.record_id, stored) for record, stored in plan.rows)
    return plan.result


def _ids(change: RowChange) -> list[str]:
    """The record ids to look up; where one is impossible, its change is refused when its turn comes."""
    try:
        return record_ids(change.drafts) if sql.storable(change.run_uid) else []
    except JournalError:
        return []


def _settle(answer: asyncio.Future[Any], outcome: AppendResult | Exception) -> None:
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
