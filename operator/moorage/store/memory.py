"""The store in memory: for tests and for looking at a journal that is kept elsewhere. Nothing outlives the process."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moorage.api.wire import Change
from moorage.core.journal.chain import Head
from moorage.core.journal.lineage import live_spans
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import Draft, Record, Stored, decode
from moorage.core.journal.snapshots import Snapshot
from moorage.store import appending
from moorage.store.allowances import KEPT_DAYS, Allowance, Ask, Short, Taken, short_of, summed
from moorage.store.appending import AppendPlan
from moorage.store.errors import SpecConflict, UnknownRun, UnknownSession
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

LOST = Stored("", b"")
"""In the place of a record that isn't there any more."""


@dataclass
class _Run:
    row: Execution
    spec: Mapping[str, Any]
    cursor: int
    events: list[Stored] = field(default_factory=list)
    by_id: dict[str, int] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    pushes: list[KeptPush] = field(default_factory=list)
    pruned: Pruned | None = None


class MemoryStore:
    """DurableExecutionStore without durability. No call waits, so calls of one event loop never interleave."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._pods: dict[str, Pod] = {}
        self._sessions: dict[tuple[str, str], Session] = {}
        self._allowances: dict[str, Allowance] = {}
        self._days: dict[tuple[str, int], tuple[int, int]] = {}
        self._asked: dict[tuple[str, str], Ask] = {}
        self._cursor = 0

    async def persist(self, new: NewExecution, session: Session | None = None) -> Execution:
        """See the port."""
        run = self._found_or_new(new)
        if session is not None and new.identity.run_uid not in self._runs:
            await self.update_session(session, session.version)
        return self._runs.setdefault(run.row.run_uid, run).row

    async def admit(
        self, new: NewExecution, epoch: int | None, drafts: Sequence[Draft], *, guard: Guard | None = None
    ) -> AppendResult:
        """See the port."""
        appending.record_ids(drafts)
        run = self._found_or_new(new)
        plan = appending.plan_admission(run.row, epoch, drafts, guard)
        return self._write(self._runs.setdefault(run.row.run_uid, run), plan)

    def _found_or_new(self, new: NewExecution) -> _Run:
        """The run, which is not kept yet where it is new."""
        run = self._runs.get(new.identity.run_uid)
        if run is None:
            row = Execution(identity=new.identity, name=new.name, spec_hash=new.spec_hash, created_at=new.created_at)
            return _Run(row, copy.deepcopy(dict(new.spec)), self._next_cursor())
        if run.row.spec_hash != new.spec_hash:
            raise SpecConflict(new.identity.run_uid)
        return run

    async def get(self, run_uid: str) -> Execution:
        """See the port."""
        return self._run(run_uid).row

    async def spec(self, run_uid: str) -> Mapping[str, Any]:
        """See the port."""
        return copy.deepcopy(self._run(run_uid).spec)

    async def recover(self, run_uid: str) -> Execution:
        """See the port."""
        return await recover(self, run_uid)

    async def list_pending(self, tenant: str | None = None) -> list[Execution]:
        """See the port."""
        rows = [run.row for run in self._runs.values() if run.row.pending]
        return sorted((r for r in rows if tenant in {None, r.tenant}), key=lambda r: (r.created_at, r.run_uid))

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
        run = self._run(run_uid)
        existing = self._existing(run, drafts)
        plan = appending.plan_append(run.row, epoch, drafts, expected_offset, existing, status=status, guard=guard)
        return self._write(run, plan)

    async def raise_fence(
        self, run_uid: str, epoch: int, drafts: Sequence[Draft] = (), *, guard: Guard | None = None
    ) -> AppendResult:
        """See the port."""
        run = self._run(run_uid)
        row = appending.plan_fence(run.row, epoch)
        plan = appending.plan_append(row, epoch, drafts, None, self._existing(run, drafts), guard=guard)
        return self._write(run, plan)

    async def repair(self, run_uid: str, good: Head, draft: Draft, expected_offset: int) -> AppendResult:
        """See the port."""
        run = self._run(run_uid)
        plan = appending.plan_repair(run.row, good, _hash_at(run, good.offset), draft, expected_offset)
        run.by_id = {record_id: at for record_id, at in run.by_id.items() if at <= good.offset}
        run.events += [LOST] * (run.row.head.offset + 1 - len(run.events))
        return self._write(run, plan)

    async def update_status(self, run_uid: str, status: ExecutionStatus, expected_version: int) -> Execution:
        """See the port."""
        run = self._run(run_uid)
        self._change(run, appending.plan_status(run.row, status, expected_version))
        return run.row

    async def read(self, run_uid: str, from_offset: int = 0, limit: int = 1000) -> list[Record]:
        """See the port."""
        run = self._run(run_uid)
        return [decode(entry) for entry in _live(run, from_offset, limit)]

    async def stored(
        self, run_uid: str, from_offset: int = 0, *, dropped: bool = False
    ) -> AsyncGenerator[Stored, None]:
        """See the port."""
        run = self._run(run_uid)
        for entry in run.events[max(from_offset, 0) :] if dropped else _live(run, from_offset):
            yield entry

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """See the port."""
        run = self._run(snapshot.run_uid)
        appending.plan_snapshot(run.row, _hash_at(run, snapshot.source_offset), snapshot)
        run.snapshots[snapshot.reducer_version] = copy.deepcopy(snapshot)

    async def snapshot(self, run_uid: str, reducer_version: int) -> Snapshot | None:
        """See the port."""
        return copy.deepcopy(self._run(run_uid).snapshots.get(reducer_version))

    async def delete(self, run_uid: str, *, at: int, reason: str, actor: str | None = None) -> Execution:
        """See the port."""
        run = self._run(run_uid)
        if not run.row.sealed:
            self._write(run, appending.plan_delete(run.row, at, reason, actor))
            run.pushes.clear()
        return run.row

    async def prune(self, pruned: Pruned) -> None:
        """See the port."""
        run = self._run(pruned.run_uid)
        appending.plan_prune(run.row, pruned)
        run.pruned = run.pruned or copy.deepcopy(pruned)
        for kept in (run.events, run.by_id, run.blobs, run.snapshots):
            kept.clear()

    async def pruned(self, run_uid: str) -> Pruned | None:
        """See the port."""
        return copy.deepcopy(self._run(run_uid).pruned)

    async def list_sealed(self) -> list[Execution]:
        """See the port."""
        rows = [run.row for run in self._runs.values() if run.row.sealed and run.pruned is None]
        return sorted(rows, key=lambda row: (row.created_at, row.run_uid))

    async def register_pod(self, pod: Pod) -> Pod:
        """See the port."""
        appending.plan_pod(self._run(pod.run_uid).row, self._pods.get(pod.pod_uid), pod)
        return self._pods.setdefault(pod.pod_uid, pod)

    async def find_pod(self, pod_uid: str) -> Pod | None:
        """See the port."""
        return self._pods.get(pod_uid)

    async def keep_push(self, push: KeptPush) -> None:
        """See the port."""
        run = self._run(push.run_uid)
        appending.plan_push(run.row, run.pushes[-1].number + 1 if run.pushes else 0, push)
        run.pushes = [push] if push.whole else [*run.pushes, push]

    async def kept_pushes(self, run_uid: str, number: int = 0) -> list[KeptPush]:
        """See the port."""
        return [push for push in self._run(run_uid).pushes if push.number >= number]

    async def changes(self, after: int = 0, limit: int = 1000) -> list[Change]:
        """See the port."""
        changed = sorted((r for r in self._runs.values() if r.cursor > after), key=lambda r: r.cursor)
        return [
            Change(cursor=r.cursor, tenant=r.row.tenant, name=r.row.name, run_uid=r.row.run_uid)
            for r in changed[:limit]
        ]

    async def newest_cursor(self) -> int:
        """See the port."""
        return max((run.cursor for run in self._runs.values()), default=0)

    async def referenced_blobs(self, tenant: str) -> set[str]:
        """See the port."""
        runs = [run for run in self._runs.values() if run.row.tenant == tenant]
        packs = {push.pack.sha256 for run in runs for push in run.pushes if push.pack is not None}
        return packs.union(*(run.blobs for run in runs))

    async def open_session(self, session: Session) -> Session:
        """See the port."""
        return self._sessions.setdefault((session.tenant, session.session_id), replace(session, version=1))

    async def get_session(self, tenant: str, session_id: str) -> Session:
        """See the port."""
        if (session := self._sessions.get((tenant, session_id))) is None:
            raise UnknownSession(tenant, session_id)
        return session

    async def update_session(self, session: Session, expected_version: int) -> Session:
        """See the port."""
        current = await self.get_session(session.tenant, session.session_id)
        after = appending.plan_session(current, session, expected_version)
        self._sessions[session.tenant, session.session_id] = after
        return after

    async def list_open_sessions(self, tenant: str | None = None, active_since: int = 0) -> list[Session]:
        """See the port."""
        found = [s for s in self._sessions.values() if s.end is None and s.active_at >= active_since]
        return sorted((s for s in found if tenant in {None, s.tenant}), key=lambda s: (s.created_at, s.session_id))

    async def close(self) -> None:
        """Nothing is held."""

    async def set_allowance(self, tenant: str, allowance: Allowance) -> None:
        """See the port."""
        self._allowances.pop(tenant, None)
        if allowance.bounds:
            self._allowances[tenant] = allowance

    async def allowances(self) -> dict[str, Allowance]:
        """See the port."""
        return dict(self._allowances)

    async def take(self, ask: Ask) -> Short | None:
        """See the port."""
        others = self._under_way(ask.tenant)
        if ask in others:
            return None
        used = self._days.get((ask.tenant, ask.day), (0, 0))
        short = short_of(self._allowances.get(ask.tenant), used, others, ask)
        if short is None:
            self._asked[ask.tenant, ask.request_id] = ask
        return short

    async def settle(self, ask: Ask, tokens: int, cost_micros: int) -> None:
        """See the port."""
        if self._asked.pop((ask.tenant, ask.request_id), None) is None:
            return
        used = self._days.get((ask.tenant, ask.day), (0, 0))
        self._days[ask.tenant, ask.day] = (used[0] + tokens, used[1] + cost_micros)
        for at in [at for at in self._days if at[0] == ask.tenant and at[1] < ask.day - KEPT_DAYS]:
            del self._days[at]

    async def give_up(self, tenant: str, gateway: str) -> None:
        """See the port."""
        for ask in [ask for ask in self._under_way(tenant) if ask.gateway == gateway]:
            await self.settle(ask, ask.tokens, ask.cost_micros)

    async def taken(self, tenant: str, day: int) -> Taken:
        """See the port."""
        return summed(day, self._days.get((tenant, day), (0, 0)), self._under_way(tenant))

    def _under_way(self, tenant: str) -> list[Ask]:
        return [ask for ask in self._asked.values() if ask.tenant == tenant]

    def _run(self, run_uid: str) -> _Run:
        if (run := self._runs.get(run_uid)) is None:
            raise UnknownRun(run_uid)
        return run

    def _existing(self, run: _Run, drafts: Sequence[Draft]) -> dict[str, Stored]:
        ids = appending.record_ids(drafts)
        return {record_id: run.events[run.by_id[record_id]] for record_id in ids if record_id in run.by_id}

    def _write(self, run: _Run, plan: AppendPlan) -> AppendResult:
        for record, stored in plan.rows:
            run.by_id[record.record_id] = len(run.events)
            run.events.append(stored)
            run.blobs.update(ref.sha256 for ref in record.blobs)
        self._change(run, plan.result.execution)
        return plan.result

    def _change(self, run: _Run, row: Execution) -> None:
        if row != run.row:
            run.row, run.cursor = row, self._next_cursor()

    def _next_cursor(self) -> int:
        self._cursor += 1
        return self._cursor


def _live(run: _Run, first: int, limit: int | None = None) -> list[Stored]:
    spans = live_spans(run.row.dropped, first, run.row.head.offset, limit)
    return [entry for start, end in spans for entry in run.events[start : end + 1]]


def _hash_at(run: _Run, offset: int) -> str | None:
    return run.events[offset].hash if 0 <= offset < len(run.events) else None
