"""What an append does, decided once for every adapter and without I/O.

An adapter locks the row, looks up the records that the drafts' ids already name, calls `plan_append` and writes what it
says: new rows and the row of the run, in one transaction. Since all refusals come from here, before the first write,
appends of many runs can share a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from moorage.core.journal.chain import Head, check_draft, head_at, same_fact, seal
from moorage.core.journal.lineage import Dropped, is_live
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import Assurance, Draft, Record, RecordType, Source, Stored, decode
from moorage.core.journal.snapshots import Snapshot
from moorage.store.errors import (
    DuplicateMismatch,
    Fenced,
    NothingToRepair,
    NotPrunable,
    OffsetConflict,
    PodConflict,
    PushConflict,
    RunSealed,
    SnapshotRefused,
    VersionConflict,
)
from moorage.store.port import AppendResult, Execution, ExecutionStatus, Guard, KeptPush, Pod, Session

TOMBSTONE_ID = "tombstone"


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The rows to write, each with its record, and what to answer once they are durable."""

    rows: tuple[tuple[Record, Stored], ...]
    result: AppendResult


def plan_append(
    row: Execution,
    epoch: int | None,
    drafts: Sequence[Draft],
    expected_offset: int | None,
    existing: Mapping[str, Stored],
    *,
    status: ExecutionStatus | None = None,
    guard: Guard | None = None,
) -> AppendPlan:
    """Decide an append to the locked `row`; `existing` holds what is stored under the drafts' record ids."""
    refuse_writer(row, epoch)
    known = {record_id: (decode(stored), stored) for record_id, stored in existing.items()}
    fresh, duplicates = _partition(row.run_uid, drafts, known)
    if fresh and expected_offset is not None and expected_offset != row.head.offset:
        raise OffsetConflict(row.run_uid, expected_offset, row.head.offset)
    sealed = seal(fresh, row.head, row.identity, row.fence_epoch)
    rows = tuple((decode(stored), stored) for stored in sealed)
    if guard is not None and rows:
        guard([record for record, _ in rows])
    by_id = {record_id: record for record_id, (record, _) in known.items()}
    by_id |= {record.record_id: record for record, _ in rows}
    after = replace(row, head=head_at(rows[-1][0])) if rows else row
    after = _with_status(after, status or row.status)
    size = sum(len(stored.body) for _, stored in rows)
    return AppendPlan(rows, AppendResult(tuple(by_id[d.record_id] for d in drafts), after, duplicates, size))


def plan_fence(row: Execution, epoch: int) -> Execution:
    """Return the row under a fence at `epoch`; never lower."""
    if row.sealed:
        raise RunSealed(row.run_uid)
    if epoch < row.fence_epoch:
        raise Fenced(row.run_uid, epoch, row.fence_epoch)
    return row if epoch == row.fence_epoch else replace(row, fence_epoch=epoch, version=row.version + 1)


def plan_admission(row: Execution, epoch: int | None, drafts: Sequence[Draft], guard: Guard | None) -> AppendPlan:
    """Decide the first records of a run, and its first fence; nothing where its journal has begun already."""
    if row.head.offset >= 0:
        return AppendPlan((), AppendResult((), row))
    return plan_append(row if epoch is None else plan_fence(row, epoch), epoch, drafts, None, {}, guard=guard)


def plan_snapshot(row: Execution, stored_hash: str | None, snapshot: Snapshot) -> None:
    """Refuse a snapshot of a place that the journal doesn't have; `stored_hash` is what it has there."""
    if stored_hash != snapshot.source_hash or not is_live(row.dropped, snapshot.source_offset):
        raise SnapshotRefused(row.run_uid, snapshot.source_offset)


def plan_repair(row: Execution, good: Head, stored_hash: str | None, draft: Draft, expected_offset: int) -> AppendPlan:
    """Decide a new generation behind `good`, where `stored_hash` is what the store has (None: nothing)."""
    if row.sealed:
        raise RunSealed(row.run_uid)
    if row.head.offset != expected_offset:
        raise OffsetConflict(row.run_uid, expected_offset, row.head.offset)
    if good.offset >= row.head.offset or stored_hash != good.hash or not is_live(row.dropped, good.offset):
        raise NothingToRepair(row.run_uid)
    behind = Head(row.head.offset, good.hash, max(row.head.logical_time, good.logical_time))
    (stored,) = seal([draft], behind, row.identity, row.fence_epoch)
    record = decode(stored)
    dropped = (*row.dropped, Dropped(good.offset + 1, row.head.offset))
    after = replace(row, head=head_at(record), dropped=dropped, version=row.version + 1)
    return AppendPlan(((record, stored),), AppendResult((record,), after, size=len(stored.body)))


def key_of(row: Execution, record_id: str, generation: int | None = None) -> str:
    """What a record id is kept under: a later generation may use the ids of dropped records again."""
    generation = generation or row.generation
    return record_id if generation == 1 else f"\x1f{generation}\x1f{record_id}"


def keys_of(row: Execution, record_ids: Sequence[str]) -> dict[str, str]:
    """The record id under every key that it may be kept under."""
    return {key_of(row, one, generation): one for one in record_ids for generation in range(1, row.generation + 1)}


def plan_prune(row: Execution, pruned: Pruned) -> None:
    """Refuse a tombstone that isn't of the sealed journal as it ended."""
    if not row.sealed or not pruned.signature or (row.head.offset, row.head.hash) != (pruned.last, pruned.hash):
        raise NotPrunable(row.run_uid)


def plan_status(row: Execution, status: ExecutionStatus, expected_version: int) -> Execution:
    """Return the row with another status (S4)."""
    if row.version != expected_version:
        raise VersionConflict(f"run {row.run_uid}", expected_version, row.version)
    return _with_status(row, status)


def plan_delete(row: Execution, at: int, reason: str, actor: str | None) -> AppendPlan:
    """Seal the row behind a tombstone."""
    tombstone = Draft(
        record_id=TOMBSTONE_ID,
        type=RecordType.TOMBSTONE,
        recorded_at=at,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload={"reason": reason},
        actor=actor,
    )
    plan = plan_append(row, None, [tombstone], None, {})
    after = replace(plan.result.execution, sealed=True, version=row.version + 1)
    return replace(plan, result=replace(plan.result, execution=after))


def plan_pod(row: Execution, existing: Pod | None, pod: Pod) -> None:
    """Refuse a registration that contradicts an earlier one or comes from an older epoch."""
    if existing is not None and existing != pod:
        raise PodConflict(pod.pod_uid)
    if existing is None:
        refuse_writer(row, pod.epoch)


def plan_push(row: Execution, kept: int, push: KeptPush) -> None:
    """Refuse a push that isn't the owner's, or not the next after `kept` ones."""
    refuse_writer(row, push.epoch)
    if push.number != kept:
        raise PushConflict(row.run_uid, push.number, kept)


def plan_session(current: Session, session: Session, expected_version: int) -> Session:
    """Return the session to write; what it was born with stays."""
    if current.version != expected_version:
        raise VersionConflict(f"session {session.session_id}", expected_version, current.version)
    return replace(session, created_at=current.created_at, version=current.version + 1)


def record_ids(drafts: Sequence[Draft]) -> list[str]:
    """Return the ids to look up, each once. Raise InvalidDraft for those that no record can have."""
    for draft in drafts:
        check_draft(draft)
    return list(dict.fromkeys(draft.record_id for draft in drafts))


def refuse_writer(row: Execution, epoch: int | None) -> None:
    """I2: only the owner's epoch commits, and nothing commits to a sealed journal."""
    if row.sealed:
        raise RunSealed(row.run_uid)
    if epoch is not None and epoch != row.fence_epoch:
        raise Fenced(row.run_uid, epoch, row.fence_epoch)


def _partition(
    run_uid: str, drafts: Sequence[Draft], known: Mapping[str, tuple[Record, Stored]]
) -> tuple[list[Draft], frozenset[str]]:
    """The drafts that are new, each once, and the ids of those that aren't."""
    fresh: dict[str, Draft] = {}
    duplicates = set()
    for draft in drafts:
        if draft.record_id in known:
            if not same_fact(draft, *known[draft.record_id]):
                raise DuplicateMismatch(run_uid, draft.record_id)
            duplicates.add(draft.record_id)
        elif fresh.setdefault(draft.record_id, draft) != draft:
            raise DuplicateMismatch(run_uid, draft.record_id)
    return list(fresh.values()), frozenset(duplicates)


def _with_status(row: Execution, status: ExecutionStatus) -> Execution:
    return row if status is row.status else replace(row, status=status, version=row.version + 1)
