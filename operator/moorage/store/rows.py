"""Between rows of the two SQL adapters and the port's types: columns in the order in which both select them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import Head
from moorage.core.journal.lineage import Dropped
from moorage.core.journal.pruning import Pruned, pruned_of
from moorage.core.journal.record import BlobRef, RunIdentity
from moorage.core.journal.snapshots import Snapshot
from moorage.store.port import PENDING, Execution, ExecutionStatus, KeptPush, Pod, Session

IDENTITY = "run_uid, tenant, session_id, workspace, agent_id, fire_id"
STATE = "status, version, fence_epoch, next_seq, head_hash, logical_time, sealed, dropped"
EXECUTION = f"run, {IDENTITY}, name, spec_hash, created_at, {STATE}"
SESSION = "tenant, session_id, created_at, active_at, state, budget, idle_ttl_ms, lineage, end_record, version"
SNAPSHOT = "source_offset, source_hash, schema_version, epoch, state, state_hash, signature"
POD = "pod_uid, run_uid, epoch, role, pod_name, commit_sha"
PUSH = "number, epoch, moves, base, sha256, size, whole"
PENDING_LIST = ", ".join(f"'{status}'" for status in sorted(PENDING))


def execution(row: Sequence[Any]) -> tuple[int, Execution]:
    """Return the short name and the row of a run, from the columns EXECUTION."""
    run, run_uid, tenant, session_id, workspace, agent_id, fire_id, name, spec_hash, created_at, *state = row
    status, version, fence_epoch, next_seq, head_hash, logical_time, sealed, dropped = state
    return run, Execution(
        identity=RunIdentity(
            tenant=tenant,
            run_uid=run_uid,
            session_id=session_id,
            workspace=workspace,
            agent_id=agent_id,
            fire_id=fire_id,
        ),
        name=name,
        spec_hash=spec_hash,
        created_at=created_at,
        status=ExecutionStatus(status),
        version=version,
        fence_epoch=fence_epoch,
        head=Head(next_seq - 1, head_hash, logical_time),
        sealed=bool(sealed),
        dropped=tuple(Dropped(*gap) for gap in orjson.loads(dropped)) if dropped else (),
    )


def dropped_value(row: Execution) -> str | None:
    """Return the column `dropped`."""
    return orjson.dumps([list(gap) for gap in row.dropped]).decode() if row.dropped else None


def session(row: Iterable[Any]) -> Session:
    """Return a session, from the columns SESSION."""
    tenant, session_id, created_at, active_at, state, budget, idle_ttl_ms, lineage, end, version = row
    return Session(
        tenant=tenant,
        session_id=session_id,
        created_at=created_at,
        active_at=active_at,
        state=state,
        budget=orjson.loads(budget) if budget is not None else None,
        idle_ttl_ms=idle_ttl_ms,
        lineage=tuple(orjson.loads(lineage)),
        end=orjson.loads(end) if end is not None else None,
        version=version,
    )


def session_values(session: Session) -> tuple[Any, ...]:
    """Return a session's columns."""
    times = (session.created_at, session.active_at)
    data = (_json(session.budget), session.idle_ttl_ms, _json(session.lineage), _json(session.end))
    return (session.tenant, session.session_id, *times, session.state, *data, session.version)


def snapshot(row: Iterable[Any], run_uid: str, reducer_version: int) -> Snapshot:
    """Return a snapshot, from the columns SNAPSHOT."""
    offset, digest, schema_version, epoch, state, state_hash, signature = row
    return Snapshot(
        run_uid=run_uid,
        source_offset=offset,
        source_hash=digest,
        schema_version=schema_version,
        reducer_version=reducer_version,
        epoch=epoch,
        state=orjson.loads(state),
        state_hash=state_hash,
        signature=signature,
    )


def snapshot_values(snapshot: Snapshot) -> tuple[Any, ...]:
    """Return a snapshot's columns."""
    place = (snapshot.source_offset, snapshot.source_hash, snapshot.schema_version, snapshot.epoch)
    return (*place, canonical(snapshot.state), snapshot.state_hash, snapshot.signature)


def pruned(row: Sequence[Any]) -> Pruned:
    """Return a tombstone, from the columns said and signature."""
    return pruned_of(orjson.loads(row[0]), row[1])


def pod(row: Iterable[Any]) -> Pod:
    """Return a registered pod, from the columns POD."""
    pod_uid, run_uid, epoch, role, pod_name, commit = row
    return Pod(pod_uid=pod_uid, run_uid=run_uid, epoch=epoch, role=role, pod_name=pod_name, commit=commit)


def push(row: Iterable[Any], run_uid: str) -> KeptPush:
    """Return a kept push, from the columns PUSH."""
    number, epoch, moves, base, sha256, size, whole = row
    return KeptPush(
        run_uid=run_uid,
        number=number,
        epoch=epoch,
        moves=tuple((ref, commit) for ref, commit in orjson.loads(moves)),
        base=base,
        pack=BlobRef(sha256, size) if sha256 is not None else None,
        whole=bool(whole),
    )


def push_values(push: KeptPush) -> tuple[Any, ...]:
    """Return a kept push's columns."""
    pack = (push.pack.sha256, push.pack.size) if push.pack is not None else (None, None)
    return (push.number, push.epoch, canonical([list(move) for move in push.moves]), push.base, *pack, push.whole)


def _json(value: Any) -> bytes | None:
    return canonical(value) if value is not None else None
