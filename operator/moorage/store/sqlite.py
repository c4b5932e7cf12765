"""The store in one SQLite file, for one gateway (J11).

A call runs on the event loop's own thread: an append takes a third of a millisecond, and handing it to a thread would
take longer than that. Whatever is written is on the disk before the call returns; writes of the same turn of the loop
share a commit. Nothing is cached, so that what another process writes to the same file is seen, and a failed commit
leaves no memory that runs ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from moorage.api.wire import Change
from moorage.core.journal.chain import Head
from moorage.core.journal.lineage import live_spans
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import Draft, Record, Stored, decode
from moorage.core.journal.snapshots import Snapshot
from moorage.points import Point, reached
from moorage.store import appending, sqlite_rows
from moorage.store import sqlite_allowances as tenants
from moorage.store.allowances import Allowance, Ask, Short, Taken, short_of, summed
from moorage.store.errors import SpecConflict, UnknownSession
from moorage.store.group_commit import GroupCommit
from moorage.store.port import (
    AppendResult,
    Execution,
    ExecutionStatus,
    Guard,
    KeptPush,
    NewExecution,
    Pod,
    Session,
)
from moorage.store.reading import recover
from moorage.store.sqlite_connection import BUSY_TIMEOUT_MS, LOOP_WAIT_MS, connect, translated

T = TypeVar("T")


class SqliteStore:
    """DurableExecutionStore over one connection that belongs to it, used from the thread that opened it."""

    def __init__(self, path: Path, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        self._path = str(path)
        self._db = connect(path, busy_timeout_ms)
        self._db.execute(f"PRAGMA busy_timeout = {min(busy_timeout_ms, LOOP_WAIT_MS)}")
        self._writes = GroupCommit(self._db, self._path, busy_timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def persist(self, new: NewExecution, session: Session | None = None) -> Execution:
        """See the port."""

        def work() -> Execution:
            if session is not None and sqlite_rows.find_execution(self._db, new.identity.run_uid) is None:
                self._joined(session, session.version)
            return self._persisted(new)[1]

        return await self._writes.run(work)

    async def admit(
        self, new: NewExecution, epoch: int | None, drafts: Sequence[Draft], *, guard: Guard | None = None
    ) -> AppendResult:
        """See the port."""
        appending.record_ids(drafts)

        def work() -> AppendResult:
            run, row = self._persisted(new)
            return self._commit(run, row, appending.plan_admission(row, epoch, drafts, guard))

        return _durable(await self._writes.run(work))

    async def get(self, run_uid: str) -> Execution:
        """See the port."""
        return self._read(lambda: sqlite_rows.get_execution(self._db, run_uid)[1])

    async def spec(self, run_uid: str) -> Mapping[str, Any]:
        """See the port."""
        return self._read(lambda: sqlite_rows.get_spec(self._db, self._run(run_uid)))

    async def recover(self, run_uid: str) -> Execution:
        """See the port."""
        return await recover(self, run_uid)

    async def list_pending(self, tenant: str | None = None) -> list[Execution]:
        """See the port."""
        return self._read(lambda: sqlite_rows.pending_executions(self._db, tenant))

    async def append(
        self,
        run_uid: str,
        epoch: int | None,
        drafts: Sequence[Draft],
        expected_offset: int | None = None,
        *,
        status: ExecutionStatus | None = None,
        guard: Guard | None = None,
    ) -> AppendResult:
        """See the port."""

        def work() -> AppendResult:
            run, row = sqlite_rows.get_execution(self._db, run_uid)
            existing = self._existing(run, row, drafts)
            plan = appending.plan_append(row, epoch, drafts, expected_offset, existing, status=status, guard=guard)
            return self._commit(run, row, plan)

        return _durable(await self._writes.run(work))

    async def raise_fence(
        self, run_uid: str, epoch: int, drafts: Sequence[Draft] = (), *, guard: Guard | None = None
    ) -> AppendResult:
        """See the port."""

        def work() -> AppendResult:
            run, row = sqlite_rows.get_execution(self._db, run_uid)
            raised = appending.plan_fence(row, epoch)
            plan = appending.plan_append(raised, epoch, drafts, None, self._existing(run, row, drafts), guard=guard)
            return self._commit(run, row, plan)

        return _durable(await self._writes.run(work))

    async def repair(self, run_uid: str, good: Head, draft: Draft, expected_offset: int) -> AppendResult:
        """See the port."""

        def work() -> AppendResult:
            run, row = sqlite_rows.get_execution(self._db, run_uid)
            there = sqlite_rows.event_hash(self._db, run, good.offset)
            return self._commit(run, row, appending.plan_repair(row, good, there, draft, expected_offset))

        return _durable(await self._writes.run(work))

    async def update_status(self, run_uid: str, status: ExecutionStatus, expected_version: int) -> Execution:
        """See the port."""

        def work() -> Execution:
            run, row = sqlite_rows.get_execution(self._db, run_uid)
            after = appending.plan_status(row, status, expected_version)
            sqlite_rows.update_execution(self._db, run, row, after)
            return after

        return await self._writes.run(work)

    async def read(self, run_uid: str, from_offset: int = 0, limit: int = 1000) -> list[Record]:
        """See the port."""

        def work() -> list[Stored]:
            run, row = sqlite_rows.get_execution(self._db, run_uid)
            if self._gone(run, row):
                return []
            spans = live_spans(row.dropped, from_offset, row.head.offset, limit)
            return [entry for first, last in spans for entry in sqlite_rows.events(self._db, run, first, last)]

        return [decode(entry) for entry in self._read(work)]

    async def stored(
        self, run_uid: str, from_offset: int = 0, *, dropped: bool = False
    ) -> AsyncGenerator[Stored, None]:
        """See the port."""
        run, row = self._read(lambda: sqlite_rows.get_execution(self._db, run_uid))
        if self._read(lambda: self._gone(run, row)):
            return
        for first, last in live_spans(() if dropped else row.dropped, from_offset, row.head.offset):
            at = first
            while at <= last and (page := self._page(run, at, last)):
                for _, entry in page:
                    yield entry
                at = page[-1][0] + 1
                await asyncio.sleep(0)

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """See the port."""

        def work() -> None:
            run, row = sqlite_rows.get_execution(self._db, snapshot.run_uid)
            gone = self._gone(run, row)
            there = None if gone else sqlite_rows.event_hash(self._db, run, snapshot.source_offset)
            appending.plan_snapshot(row, there, snapshot)
            sqlite_rows.put_snapshot(self._db, run, snapshot)

        await self._writes.run(work)

    async def snapshot(self, run_uid: str, reducer_version: int) -> Snapshot | None:
        """See the port."""
        return self._read(lambda: sqlite_rows.get_snapshot(self._db, self._run(run_uid), run_uid, reducer_version))

    async def delete(self, run_uid: str, *, at: int, reason: str, actor: str | None = None) -> Execution:
        """See the port."""

        def work() -> Execution:
            run, row = sqlite_rows.get_execution(self._db, run_uid)
            if row.sealed:
                return row
            return self._commit(run, row, appending.plan_delete(row, at, reason, actor)).execution

        return await self._writes.run(work)

    async def prune(self, pruned: Pruned) -> None:
        """See the port."""

        def bury() -> int:
            run, row = sqlite_rows.get_execution(self._db, pruned.run_uid)
            appending.plan_prune(row, pruned)
            if not sqlite_rows.is_pruned(self._db, run):
                sqlite_rows.bury(self._db, run, pruned)
            return run

        run = await self._writes.run(bury)
        reached(Point.PRUNE_WITHIN)
        while await self._writes.run(lambda: sqlite_rows.prune_some(self._db, run)):
            reached(Point.PRUNE_WITHIN)
            await asyncio.sleep(0)

    async def pruned(self, run_uid: str) -> Pruned | None:
        """See the port."""
        return self._read(lambda: sqlite_rows.find_pruned(self._db, self._run(run_uid)))

    async def list_sealed(self) -> list[Execution]:
        """See the port."""
        return self._read(lambda: sqlite_rows.sealed_executions(self._db))

    async def register_pod(self, pod: Pod) -> Pod:
        """See the port."""

        def work() -> Pod:
            run, row = sqlite_rows.get_execution(self._db, pod.run_uid)
            existing = sqlite_rows.find_pod(self._db, pod.pod_uid)
            appending.plan_pod(row, existing, pod)
            if existing is None:
                sqlite_rows.insert_pod(self._db, run, pod)
            return pod

        return await self._writes.run(work)

    async def find_pod(self, pod_uid: str) -> Pod | None:
        """See the port."""
        return self._read(lambda: sqlite_rows.find_pod(self._db, pod_uid))

    async def keep_push(self, push: KeptPush) -> None:
        """See the port."""

        def work() -> None:
            run, row = sqlite_rows.get_execution(self._db, push.run_uid)
            appending.plan_push(row, sqlite_rows.next_push(self._db, run), push)
            sqlite_rows.insert_push(self._db, run, push)

        await self._writes.run(work)

    async def kept_pushes(self, run_uid: str, number: int = 0) -> list[KeptPush]:
        """See the port."""
        return self._read(lambda: sqlite_rows.pushes(self._db, self._run(run_uid), run_uid, number))

    async def changes(self, after: int = 0, limit: int = 1000) -> list[Change]:
        """See the port."""
        return self._read(lambda: sqlite_rows.changes(self._db, after, limit))

    async def newest_cursor(self) -> int:
        """See the port."""
        return self._read(lambda: sqlite_rows.newest_cursor(self._db))

    async def referenced_blobs(self, tenant: str) -> set[str]:
        """See the port."""
        return self._read(lambda: sqlite_rows.referenced_blobs(self._db, tenant))

    async def open_session(self, session: Session) -> Session:
        """See the port."""

        def work() -> Session:
            if (existing := sqlite_rows.find_session(self._db, session.tenant, session.session_id)) is not None:
                return existing
            fresh = replace(session, version=1)
            sqlite_rows.put_session(self._db, fresh)
            return fresh

        return await self._writes.run(work)

    async def get_session(self, tenant: str, session_id: str) -> Session:
        """See the port."""
        return self._read(lambda: self._session(tenant, session_id))

    async def update_session(self, session: Session, expected_version: int) -> Session:
        """See the port."""
        return await self._writes.run(lambda: self._joined(session, expected_version))

    async def list_open_sessions(self, tenant: str | None = None, active_since: int = 0) -> list[Session]:
        """See the port."""
        return self._read(lambda: sqlite_rows.open_sessions(self._db, tenant, active_since))

    async def set_allowance(self, tenant: str, allowance: Allowance) -> None:
        """See the port."""
        await self._writes.run(lambda: tenants.set_allowance(self._db, tenant, allowance))

    async def allowances(self) -> dict[str, Allowance]:
        """See the port."""
        return self._read(lambda: tenants.allowances(self._db))

    async def take(self, ask: Ask) -> Short | None:
        """See the port."""

        def work() -> Short | None:
            others = tenants.under_way(self._db, ask.tenant)
            if any(each.request_id == ask.request_id for each in others):
                return None
            used = tenants.used(self._db, ask.tenant, ask.day)
            if (short := short_of(tenants.allowance(self._db, ask.tenant), used, others, ask)) is not None:
                return short
            tenants.insert(self._db, ask)
            return None

        return await self._writes.run(work)

    async def settle(self, ask: Ask, tokens: int, cost_micros: int) -> None:
        """See the port."""
        await self._writes.run(lambda: tenants.settle(self._db, ask, tokens, cost_micros))

    async def give_up(self, tenant: str, gateway: str) -> None:
        """See the port."""

        def work() -> None:
            for ask in tenants.under_way(self._db, tenant):
                if ask.gateway == gateway:
                    tenants.settle(self._db, ask, ask.tokens, ask.cost_micros)

        await self._writes.run(work)

    async def taken(self, tenant: str, day: int) -> Taken:
        """See the port."""
        return self._read(lambda: summed(day, tenants.used(self._db, tenant, day), tenants.under_way(self._db, tenant)))

    async def close(self) -> None:
        """See the port."""
        self._writes.close()
        self._db.close()

    def _read(self, work: Callable[[], T]) -> T:
        with translated(self._path):
            return work()

    def _commit(self, run: int, row: Execution, plan: appending.AppendPlan) -> AppendResult:
        reached(Point.APPEND_BEFORE)
        sqlite_rows.insert_events(self._db, run, plan)
        sqlite_rows.update_execution(self._db, run, row, plan.result.execution)
        reached(Point.APPEND_WITHIN)
        return plan.result

    def _persisted(self, new: NewExecution) -> tuple[int, Execution]:
        if (found := sqlite_rows.find_execution(self._db, new.identity.run_uid)) is None:
            sqlite_rows.insert_execution(self._db, new)
            return sqlite_rows.get_execution(self._db, new.identity.run_uid)
        if found[1].spec_hash != new.spec_hash:
            raise SpecConflict(new.identity.run_uid)
        return found

    def _existing(self, run: int, row: Execution, drafts: Sequence[Draft]) -> dict[str, Stored]:
        return sqlite_rows.events_by_id(self._db, run, row, appending.record_ids(drafts))

    def _page(self, run: int, first: int, last: int) -> list[tuple[int, Stored]]:
        return self._read(lambda: sqlite_rows.page(self._db, run, first, last))

    def _gone(self, run: int, row: Execution) -> bool:
        """A tombstone stands for the journal, whatever is left of that."""
        return row.sealed and sqlite_rows.is_pruned(self._db, run)

    def _run(self, run_uid: str) -> int:
        return sqlite_rows.get_execution(self._db, run_uid)[0]

    def _joined(self, session: Session, expected_version: int) -> Session:
        current = self._session(session.tenant, session.session_id)
        after = appending.plan_session(current, session, expected_version)
        sqlite_rows.put_session(self._db, after)
        return after

    def _session(self, tenant: str, session_id: str) -> Session:
        if (session := sqlite_rows.find_session(self._db, tenant, session_id)) is None:
            raise UnknownSession(tenant, session_id)
        return session


def _durable(result: AppendResult) -> AppendResult:
    reached(Point.APPEND_AFTER)
    return result
