"""The store in PostgreSQL, for any number of gateways (J11).

Two connections: one reads, one writes. Appends wait for their row's lock in the database, so that of two gateways that
append to one run at once each sees what the other wrote, and only one gets an offset. Nothing is cached.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from moorage.api.wire import Change
from moorage.core.journal.chain import Head
from moorage.core.journal.lineage import live_spans
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import Draft, Record, Stored, decode
from moorage.core.journal.snapshots import Snapshot
from moorage.points import Point, reached
from moorage.store import appending
from moorage.store import postgres_allowances as tenants
from moorage.store import postgres_rows as sql
from moorage.store.allowances import Allowance, Ask, Short, Taken, short_of, summed
from moorage.store.appending import AppendPlan
from moorage.store.errors import SpecConflict, UnknownSession
from moorage.store.migrations import released
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
from moorage.store.postgres_commit import RowChange, Writer
from moorage.store.postgres_connection import Db, Link, migrate
from moorage.store.reading import recover


class PostgresStore:
    """DurableExecutionStore over the database of one connection string; make it with `open`."""

    def __init__(self, reader: Link, writer: Link) -> None:
        self._reader = reader
        self._writer = Writer(writer)

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Connect, and bring the schema up to date.

        `dsn` is a libpq connection string. Raise StoreUnavailable, NotDurable (J7), SchemaMismatch.
        """
        reader, writer = Link(dsn), Link(dsn)
        try:
            await migrate(await writer.get(), released("postgres"))
            await reader.get()
        except BaseException:
            await reader.close()
            await writer.close()
            raise
        return cls(reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def persist(self, new: NewExecution, session: Session | None = None) -> Execution:
        """See the port."""

        async def work(db: Db) -> Execution:
            if session is not None:
                current = await _session(db, session.tenant, session.session_id, lock=True)
                if await sql.find_execution(db, new.identity.run_uid) is None:
                    await sql.put_session(db, appending.plan_session(current, session, session.version))
            return (await _persisted(db, new))[1]

        return await self._writer.transaction(work)

    async def admit(
        self, new: NewExecution, epoch: int | None, drafts: Sequence[Draft], *, guard: Guard | None = None
    ) -> AppendResult:
        """See the port."""
        appending.record_ids(drafts)

        async def work(db: Db) -> AppendResult:
            run, row = await _persisted(db, new)
            plan = appending.plan_admission(row, epoch, drafts, guard)
            reached(Point.APPEND_BEFORE)
            await sql.write(db, [sql.Held(run, row, plan.result.execution, list(plan.rows))])
            reached(Point.APPEND_WITHIN)
            return plan.result

        result = await self._writer.transaction(work)
        reached(Point.APPEND_AFTER)
        return result

    async def get(self, run_uid: str) -> Execution:
        """See the port."""
        return (await self._get(run_uid))[1]

    async def spec(self, run_uid: str) -> Mapping[str, Any]:
        """See the port."""
        run, _ = await self._get(run_uid)
        return await self._reader.read(lambda db: sql.get_spec(db, run))

    async def recover(self, run_uid: str) -> Execution:
        """See the port."""
        return await recover(self, run_uid)

    async def list_pending(self, tenant: str | None = None) -> list[Execution]:
        """See the port."""
        return await self._reader.read(lambda db: sql.pending_executions(db, tenant))

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

        def plan(row: Execution, existing: Mapping[str, Stored]) -> AppendPlan:
            return appending.plan_append(row, epoch, drafts, expected_offset, existing, status=status, guard=guard)

        return await self._writer.change(RowChange(run_uid, drafts, plan))

    async def raise_fence(
        self, run_uid: str, epoch: int, drafts: Sequence[Draft] = (), *, guard: Guard | None = None
    ) -> AppendResult:
        """See the port."""

        def plan(row: Execution, existing: Mapping[str, Stored]) -> AppendPlan:
            raised = appending.plan_fence(row, epoch)
            return appending.plan_append(raised, epoch, drafts, None, existing, guard=guard)

        return await self._writer.change(RowChange(run_uid, drafts, plan))

    async def repair(self, run_uid: str, good: Head, draft: Draft, expected_offset: int) -> AppendResult:
        """See the port."""

        async def work(db: Db) -> AppendResult:
            run, row = await sql.get_execution(db, run_uid, lock=True)
            there = await sql.event_hash(db, run, good.offset)
            plan = appending.plan_repair(row, good, there, draft, expected_offset)
            await sql.write(db, [sql.Held(run, row, plan.result.execution, list(plan.rows))])
            return plan.result

        return await self._writer.transaction(work)

    async def update_status(self, run_uid: str, status: ExecutionStatus, expected_version: int) -> Execution:
        """See the port."""

        def plan(row: Execution, _: Mapping[str, Stored]) -> AppendPlan:
            return AppendPlan((), AppendResult((), appending.plan_status(row, status, expected_version)))

        return (await self._writer.change(RowChange(run_uid, (), plan))).execution

    async def read(self, run_uid: str, from_offset: int = 0, limit: int = 1000) -> list[Record]:
        """See the port."""
        run, row = await self._get(run_uid)
        if await self._gone(run, row):
            return []
        spans = live_spans(row.dropped, from_offset, row.head.offset, limit)
        return [decode(entry) for first, last in spans for entry in await self._events(run, first, last)]

    async def stored(
        self, run_uid: str, from_offset: int = 0, *, dropped: bool = False
    ) -> AsyncGenerator[Stored, None]:
        """See the port."""
        run, row = await self._get(run_uid)
        if await self._gone(run, row):
            return
        for first, last in live_spans(() if dropped else row.dropped, from_offset, row.head.offset):
            at = first
            while at <= last and (page := await self._page(run, at, last)):
                for _, entry in page:
                    yield entry
                at = page[-1][0] + 1

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """See the port."""

        async def work(db: Db) -> None:
            run, row = await sql.get_execution(db, snapshot.run_uid)
            gone = row.sealed and await sql.is_pruned(db, run)
            there = None if gone else await sql.event_hash(db, run, snapshot.source_offset)
            appending.plan_snapshot(row, there, snapshot)
            await sql.put_snapshot(db, run, snapshot)

        await self._writer.transaction(work)

    async def snapshot(self, run_uid: str, reducer_version: int) -> Snapshot | None:
        """See the port."""
        run, _ = await self._get(run_uid)
        return await self._reader.read(lambda db: sql.get_snapshot(db, run, run_uid, reducer_version))

    async def delete(self, run_uid: str, *, at: int, reason: str, actor: str | None = None) -> Execution:
        """See the port."""

        def plan(row: Execution, _: Mapping[str, Stored]) -> AppendPlan:
            return (
                AppendPlan((), AppendResult((), row)) if row.sealed else appending.plan_delete(row, at, reason, actor)
            )

        return (await self._writer.change(RowChange(run_uid, (), plan))).execution

    async def prune(self, pruned: Pruned) -> None:
        """See the port."""

        async def bury(db: Db) -> None:
            run, row = await sql.get_execution(db, pruned.run_uid, lock=True)
            appending.plan_prune(row, pruned)
            if not await sql.is_pruned(db, run):
                await sql.bury(db, run, pruned)

        async def some(db: Db) -> bool:
            run, _ = await sql.get_execution(db, pruned.run_uid, lock=True)
            return await sql.prune_some(db, run)

        await self._writer.transaction(bury)
        reached(Point.PRUNE_WITHIN)
        while await self._writer.transaction(some):
            reached(Point.PRUNE_WITHIN)

    async def pruned(self, run_uid: str) -> Pruned | None:
        """See the port."""
        run, _ = await self._get(run_uid)
        return await self._reader.read(lambda db: sql.find_pruned(db, run))

    async def list_sealed(self) -> list[Execution]:
        """See the port."""
        return await self._reader.read(sql.sealed_executions)

    async def register_pod(self, pod: Pod) -> Pod:
        """See the port."""

        async def work(db: Db) -> Pod:
            run, row = await sql.get_execution(db, pod.run_uid, lock=True)
            existing = await sql.find_pod(db, pod.pod_uid)
            appending.plan_pod(row, existing, pod)
            if existing is None and not await sql.insert_pod(db, run, pod):  # registered meanwhile, for another run
                appending.plan_pod(row, await sql.find_pod(db, pod.pod_uid), pod)
            return pod

        return await self._writer.transaction(work)

    async def find_pod(self, pod_uid: str) -> Pod | None:
        """See the port."""
        return await self._reader.read(lambda db: sql.find_pod(db, pod_uid))

    async def keep_push(self, push: KeptPush) -> None:
        """See the port."""

        async def work(db: Db) -> None:
            run, row = await sql.get_execution(db, push.run_uid, lock=True)
            appending.plan_push(row, await sql.next_push(db, run), push)
            await sql.insert_push(db, run, push)

        await self._writer.transaction(work)

    async def kept_pushes(self, run_uid: str, number: int = 0) -> list[KeptPush]:
        """See the port."""
        return await self._reader.read(lambda db: sql.pushes(db, run_uid, number))

    async def changes(self, after: int = 0, limit: int = 1000) -> list[Change]:
        """See the port."""
        return await self._reader.read(lambda db: sql.changes(db, after, limit))

    async def newest_cursor(self) -> int:
        """See the port."""
        return await self._reader.read(sql.newest_cursor)

    async def referenced_blobs(self, tenant: str) -> set[str]:
        """See the port."""
        return await self._reader.read(lambda db: sql.referenced_blobs(db, tenant))

    async def open_session(self, session: Session) -> Session:
        """See the port."""

        async def work(db: Db) -> Session:
            await sql.open_session(db, replace(session, version=1))
            return await _session(db, session.tenant, session.session_id)

        return await self._writer.transaction(work)

    async def get_session(self, tenant: str, session_id: str) -> Session:
        """See the port."""
        return await self._reader.read(lambda db: _session(db, tenant, session_id))

    async def update_session(self, session: Session, expected_version: int) -> Session:
        """See the port."""

        async def work(db: Db) -> Session:
            current = await _session(db, session.tenant, session.session_id, lock=True)
            after = appending.plan_session(current, session, expected_version)
            await sql.put_session(db, after)
            return after

        return await self._writer.transaction(work)

    async def list_open_sessions(self, tenant: str | None = None, active_since: int = 0) -> list[Session]:
        """See the port."""
        return await self._reader.read(lambda db: sql.open_sessions(db, tenant, active_since))

    async def set_allowance(self, tenant: str, allowance: Allowance) -> None:
        """See the port."""

        async def work(db: Db) -> None:
            await tenants.lock(db, tenant)
            await tenants.set_allowance(db, tenant, allowance)

        await self._writer.transaction(work)

    async def allowances(self) -> dict[str, Allowance]:
        """See the port."""
        return await self._reader.read(tenants.allowances)

    async def take(self, ask: Ask) -> Short | None:
        """See the port."""

        async def work(db: Db) -> Short | None:
            await tenants.lock(db, ask.tenant)
            others = await tenants.under_way(db, ask.tenant)
            if any(each.request_id == ask.request_id for each in others):
                return None
            used = await tenants.used(db, ask.tenant, ask.day)
            if (short := short_of(await tenants.allowance(db, ask.tenant), used, others, ask)) is not None:
                return short
            await tenants.insert(db, ask)
            return None

        return await self._writer.transaction(work)

    async def settle(self, ask: Ask, tokens: int, cost_micros: int) -> None:
        """See the port."""

        async def work(db: Db) -> None:
            await tenants.lock(db, ask.tenant)
            await tenants.settle(db, ask, tokens, cost_micros)

        await self._writer.transaction(work)

    async def give_up(self, tenant: str, gateway: str) -> None:
        """See the port."""

        async def work(db: Db) -> None:
            await tenants.lock(db, tenant)
            for ask in await tenants.under_way(db, tenant):
                if ask.gateway == gateway:
                    await tenants.settle(db, ask, ask.tokens, ask.cost_micros)

        await self._writer.transaction(work)

    async def taken(self, tenant: str, day: int) -> Taken:
        """See the port."""

        async def work(db: Db) -> Taken:
            return summed(day, await tenants.used(db, tenant, day), await tenants.under_way(db, tenant))

        return await self._reader.read(work)

    async def close(self) -> None:
        """See the port."""
        await self._writer.close()
        await self._reader.close()

    async def _get(self, run_uid: str) -> tuple[int, Execution]:
        return await self._reader.read(lambda db: sql.get_execution(db, run_uid))

    async def _gone(self, run: int, row: Execution) -> bool:
        """A tombstone stands for the journal, whatever is left of that."""
        return row.sealed and await self._reader.read(lambda db: sql.is_pruned(db, run))

    async def _page(self, run: int, first: int, last: int) -> list[tuple[int, Stored]]:
        return await self._reader.read(lambda db: sql.page(db, run, first, last))

    async def _events(self, run: int, first: int, last: int) -> list[Stored]:
        return await self._reader.read(lambda db: sql.events(db, run, first, last))


async def _persisted(db: Db, new: NewExecution) -> tuple[int, Execution]:
    """The run's row, locked; a new one is there for others after this transaction."""
    if (found := await sql.find_execution(db, new.identity.run_uid, lock=True)) is None:
        await sql.order(db)  # from here on nobody else adds a run
        found = await sql.find_execution(db, new.identity.run_uid, lock=True)
    if found is None:
        return await sql.insert_execution(db, new)
    if found[1].spec_hash != new.spec_hash:
        raise SpecConflict(new.identity.run_uid)
    return found


async def _session(db: Db, tenant: str, session_id: str, *, lock: bool = False) -> Session:
    if (found := await sql.find_session(db, tenant, session_id, lock=lock)) is None:
        raise UnknownSession(tenant, session_id)
    return found
