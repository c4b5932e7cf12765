"""SQL of the SQLite store: between rows and the port's types. Every function runs inside the caller's transaction."""
# ruff: noqa: S608 -- only this module's own constants are put into SQL; values are bound

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from moorage.api.wire import Change
from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import Head
from moorage.core.journal.record import RunIdentity, Stored
from moorage.store.appending import AppendPlan
from moorage.store.errors import UnknownRun
from moorage.store.port import PENDING, Execution, ExecutionStatus, NewExecution, Pod, Session, Snapshot

Db = sqlite3.Connection

_IDENTITY = "run_uid, tenant, session_id, workspace, agent_id, fire_id"
_STATE = "status, version, fence_epoch, next_seq, head_hash, logical_time, sealed"
_EXECUTION = f"run, {_IDENTITY}, name, spec_hash, created_at, {_STATE}"
_PENDING = ", ".join(f"'{status}'" for status in sorted(PENDING))
_NEXT_CURSOR = "(SELECT coalesce(max(change_cursor), 0) + 1 FROM executions)"
_SELECT_EXECUTION = f"SELECT {_EXECUTION} FROM executions WHERE run_uid = ?"
_HEAD = f"next_seq = ?, head_hash = ?, logical_time = ?, change_cursor = {_NEXT_CURSOR}"
_UPDATE_HEAD = f"UPDATE executions SET {_HEAD} WHERE run = ?"  # touches no other index: it is in every append
_UPDATE_ALL = f"UPDATE executions SET {_HEAD}, status = ?, version = ?, fence_epoch = ?, sealed = ? WHERE run = ?"
_INSERT_EVENT = "INSERT INTO execution_events (place, run, seq, record_id, hash, body) VALUES (?, ?, ?, ?, ?, ?)"
_RUN_SPAN = 2**32
_SESSION = "tenant, session_id, created_at, active_at, state, budget, idle_ttl_ms, lineage, end_record, version"
_STORED = "CAST(hash AS BLOB), CAST(body AS BLOB)"  # whatever type somebody gave them: verifying judges the bytes
_SNAPSHOT = "source_offset, source_hash, schema_version, epoch, state, state_hash"
_IDS_AT_ONCE = 500  # SQLite's bound parameters are limited


def insert_execution(db: Db, new: NewExecution) -> None:
    """Write a run's row and spec."""
    who, spec = new.identity, canonical(new.spec)
    values = (who.run_uid, who.tenant, who.session_id, who.workspace, who.agent_id, who.fire_id, new.name)
    cursor = db.execute(
        f"INSERT INTO executions ({_IDENTITY}, name, spec_hash, created_at, {_STATE}, change_cursor) "
        f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'RUNNING', 1, 0, 0, NULL, 0, 0, {_NEXT_CURSOR})",
        (*values, new.spec_hash, new.created_at),
    )
    db.execute("INSERT INTO execution_specs (run, spec) VALUES (?, ?)", (cursor.lastrowid, spec))


def find_execution(db: Db, run_uid: str) -> tuple[int, Execution] | None:
    """Return the short name and the row of a run."""
    found = db.execute(_SELECT_EXECUTION, (run_uid,)).fetchone()
    return (found[0], _execution(found)) if found else None


def get_execution(db: Db, run_uid: str) -> tuple[int, Execution]:
    """Return the short name and the row of a run. Raise UnknownRun."""
    if (found := find_execution(db, run_uid)) is None:
        raise UnknownRun(run_uid)
    return found


def get_spec(db: Db, run: int) -> dict[str, Any]:
    """Return the spec that a run was persisted with."""
    found = db.execute("SELECT spec FROM execution_specs WHERE run = ?", (run,)).fetchone()
    spec: dict[str, Any] = orjson.loads(found[0])
    return spec


def pending_executions(db: Db, tenant: str | None) -> list[Execution]:
    """Return the rows that somebody must still push on."""
    of_tenant = "tenant = ? AND" if tenant is not None else ""
    rows = db.execute(
        f"SELECT {_EXECUTION} FROM executions WHERE {of_tenant} sealed = 0 AND status IN ({_PENDING}) "
        "ORDER BY created_at, run_uid",
        (tenant,) if tenant is not None else (),
    )
    return [_execution(row) for row in rows]


def update_execution(db: Db, run: int, before: Execution, after: Execution) -> None:
    """Write what changed in a run's row, and tell it to the readers of changes."""
    if after == before:
        return
    head = (after.head.offset + 1, after.head.hash, after.head.logical_time)
    if after.version == before.version:
        db.execute(_UPDATE_HEAD, (*head, run))
    else:
        db.execute(_UPDATE_ALL, (*head, after.status, after.version, after.fence_epoch, after.sealed, run))


def insert_events(db: Db, run: int, plan: AppendPlan) -> None:
    """Write new records and the blobs that they need."""
    for record, stored in plan.rows:
        place = run * _RUN_SPAN + record.seq
        db.execute(_INSERT_EVENT, (place, run, record.seq, record.record_id, stored.hash, stored.body))
        for blob in record.blobs:
            db.execute("INSERT OR IGNORE INTO event_blobs (run, sha256) VALUES (?, ?)", (run, blob.sha256))


def events_by_id(db: Db, run: int, record_ids: Sequence[str]) -> dict[str, Stored]:
    """Return what is stored under these record ids."""
    found: dict[str, Stored] = {}
    for start in range(0, len(record_ids), _IDS_AT_ONCE):
        some = record_ids[start : start + _IDS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        rows = db.execute(
            f"SELECT record_id, {_STORED} FROM execution_events WHERE run = ? AND record_id IN ({marks})", (run, *some)
        )
        found.update((record_id, _stored(digest, body)) for record_id, digest, body in rows)
    return found


def events(db: Db, run: int, from_offset: int, limit: int) -> list[Stored]:
    """Return stored records in order."""
    first = run * _RUN_SPAN + max(from_offset, 0)
    rows = db.execute(
        f"SELECT {_STORED} FROM execution_events WHERE place >= ? AND place < ? ORDER BY place LIMIT ?",
        (first, (run + 1) * _RUN_SPAN, limit),
    )
    return [_stored(digest, body) for digest, body in rows]


def event_hash(db: Db, run: int, offset: int) -> str | None:
    """Return the chain's hash at a record."""
    found = db.execute(
        "SELECT hash FROM execution_events WHERE place = ? AND run = ?", (run * _RUN_SPAN + offset, run)
    ).fetchone()
    return found[0] if found else None


def put_snapshot(db: Db, run: int, snapshot: Snapshot) -> None:
    """Keep the latest snapshot of each reducer."""
    place = (snapshot.source_offset, snapshot.source_hash, snapshot.schema_version, snapshot.epoch)
    db.execute(
        f"INSERT OR REPLACE INTO snapshots (run, reducer_version, {_SNAPSHOT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (run, snapshot.reducer_version, *place, canonical(snapshot.state), snapshot.state_hash),
    )


def get_snapshot(db: Db, run: int, run_uid: str, reducer_version: int) -> Snapshot | None:
    """Return the snapshot that a reducer made."""
    found = db.execute(
        f"SELECT {_SNAPSHOT} FROM snapshots WHERE run = ? AND reducer_version = ?",
        (run, reducer_version),
    ).fetchone()
    if found is None:
        return None
    offset, digest, schema_version, epoch, state, state_hash = found
    return Snapshot(
        run_uid=run_uid,
        source_offset=offset,
        source_hash=digest,
        schema_version=schema_version,
        reducer_version=reducer_version,
        epoch=epoch,
        state=orjson.loads(state),
        state_hash=state_hash,
    )


def find_pod(db: Db, pod_uid: str) -> Pod | None:
    """Return a registered pod."""
    found = db.execute(
        "SELECT run_uid, epoch, role, pod_name, commit_sha FROM pods JOIN executions USING (run) WHERE pod_uid = ?",
        (pod_uid,),
    ).fetchone()
    if found is None:
        return None
    run_uid, epoch, role, pod_name, commit = found
    return Pod(pod_uid=pod_uid, run_uid=run_uid, epoch=epoch, role=role, pod_name=pod_name, commit=commit)


def insert_pod(db: Db, run: int, pod: Pod) -> None:
    """Register a pod."""
    db.execute(
        "INSERT INTO pods (pod_uid, run, epoch, role, pod_name, commit_sha) VALUES (?, ?, ?, ?, ?, ?)",
        (pod.pod_uid, run, pod.epoch, pod.role, pod.pod_name, pod.commit),
    )


def changes(db: Db, after: int, limit: int) -> list[Change]:
    """Return the runs that changed, by their latest cursor."""
    rows = db.execute(
        "SELECT change_cursor, tenant, name, run_uid FROM executions WHERE change_cursor > ? "
        "ORDER BY change_cursor LIMIT ?",
        (after, limit),
    )
    return [Change(cursor=cursor, tenant=tenant, name=name, run_uid=uid) for cursor, tenant, name, uid in rows]


def referenced_blobs(db: Db, tenant: str) -> set[str]:
    """Return the blobs that a tenant's records need."""
    rows = db.execute("SELECT DISTINCT sha256 FROM event_blobs JOIN executions USING (run) WHERE tenant = ?", (tenant,))
    return {sha for (sha,) in rows}


def find_session(db: Db, tenant: str, session_id: str) -> Session | None:
    """Return a session."""
    found = db.execute(
        f"SELECT {_SESSION} FROM sessions WHERE tenant = ? AND session_id = ?", (tenant, session_id)
    ).fetchone()
    return _session(found) if found else None


def put_session(db: Db, session: Session) -> None:
    """Write a session's row."""
    times = (session.created_at, session.active_at)
    data = (_json(session.budget), session.idle_ttl_ms, _json(session.lineage), _json(session.end))
    db.execute(
        f"INSERT OR REPLACE INTO sessions ({_SESSION}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (session.tenant, session.session_id, *times, session.state, *data, session.version),
    )


def open_sessions(db: Db, tenant: str | None, active_since: int) -> list[Session]:
    """Return sessions without an end record."""
    of_tenant = "AND tenant = ?" if tenant is not None else ""
    rows = db.execute(
        f"SELECT {_SESSION} FROM sessions WHERE end_record IS NULL AND active_at >= ? {of_tenant} "
        "ORDER BY created_at, session_id",
        (active_since, tenant) if tenant is not None else (active_since,),
    )
    return [_session(row) for row in rows]


def _stored(digest: bytes, body: bytes) -> Stored:
    return Stored(digest.decode("latin-1"), body)


def _execution(row: Sequence[Any]) -> Execution:
    _, run_uid, tenant, session_id, workspace, agent_id, fire_id, name, spec_hash, created_at, *state = row
    status, version, fence_epoch, next_seq, head_hash, logical_time, sealed = state
    return Execution(
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
    )


def _session(row: Iterable[Any]) -> Session:
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


def _json(value: Any) -> bytes | None:
    return canonical(value) if value is not None else None
