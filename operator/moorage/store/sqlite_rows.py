"""SQL of the SQLite store: between rows and the port's types. Every function runs inside the caller's transaction."""
# ruff: noqa: S608 -- only this module's own constants are put into SQL; values are bound

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson

from moorage.api.wire import Change
from moorage.core.journal.canonical import canonical
from moorage.core.journal.lineage import is_live
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import Stored
from moorage.core.journal.snapshots import Snapshot
from moorage.store import rows as r
from moorage.store.appending import AppendPlan, key_of, keys_of
from moorage.store.errors import UnknownRun
from moorage.store.port import PAGE_BYTES, PAGE_RECORDS, PRUNED_AT_ONCE, Execution, KeptPush, NewExecution, Pod, Session

Db = sqlite3.Connection

_NEXT_CURSOR = "(SELECT coalesce(max(change_cursor), 0) + 1 FROM executions)"
_SELECT_EXECUTION = f"SELECT {r.EXECUTION} FROM executions WHERE run_uid = ?"
_HEAD = f"next_seq = ?, head_hash = ?, logical_time = ?, change_cursor = {_NEXT_CURSOR}"
_UPDATE_HEAD = f"UPDATE executions SET {_HEAD} WHERE run = ?"  # touches no other index: it is in every append
_REST = "status = ?, version = ?, fence_epoch = ?, sealed = ?, dropped = ?"
_UPDATE_ALL = f"UPDATE executions SET {_HEAD}, {_REST} WHERE run = ?"
_INSERT_EVENT = "INSERT INTO execution_events (place, run, seq, record_id, hash, body) VALUES (?, ?, ?, ?, ?, ?)"
_RUN_SPAN = 2**32
_STORED = "CAST(hash AS BLOB), CAST(body AS BLOB)"  # whatever type somebody gave them: verifying judges the bytes
_IDS_AT_ONCE = 500  # SQLite's bound parameters are limited


def insert_execution(db: Db, new: NewExecution) -> None:
    """Write a run's row and spec."""
    who, spec = new.identity, canonical(new.spec)
    values = (who.run_uid, who.tenant, who.session_id, who.workspace, who.agent_id, who.fire_id, new.name)
    cursor = db.execute(
        f"INSERT INTO executions ({r.IDENTITY}, name, spec_hash, created_at, {r.STATE}, change_cursor) "
        f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'RUNNING', 1, 0, 0, NULL, 0, 0, NULL, {_NEXT_CURSOR})",
        (*values, new.spec_hash, new.created_at),
    )
    db.execute("INSERT INTO execution_specs (run, spec) VALUES (?, ?)", (cursor.lastrowid, spec))


def find_execution(db: Db, run_uid: str) -> tuple[int, Execution] | None:
    """Return the short name and the row of a run."""
    found = db.execute(_SELECT_EXECUTION, (run_uid,)).fetchone()
    return r.execution(found) if found else None


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
        f"SELECT {r.EXECUTION} FROM executions WHERE {of_tenant} sealed = 0 AND status IN ({r.PENDING_LIST}) "
        "ORDER BY created_at, run_uid",
        (tenant,) if tenant is not None else (),
    )
    return [r.execution(row)[1] for row in rows]


def update_execution(db: Db, run: int, before: Execution, after: Execution) -> None:
    """Write what changed in a run's row, and tell it to the readers of changes."""
    if after == before:
        return
    head = (after.head.offset + 1, after.head.hash, after.head.logical_time)
    if after.version == before.version:
        db.execute(_UPDATE_HEAD, (*head, run))
    else:
        rest = (after.status, after.version, after.fence_epoch, after.sealed, r.dropped_value(after))
        db.execute(_UPDATE_ALL, (*head, *rest, run))


def insert_events(db: Db, run: int, plan: AppendPlan) -> None:
    """Write new records and the blobs that they need."""
    row = plan.result.execution
    for record, stored in plan.rows:
        place = run * _RUN_SPAN + record.seq
        db.execute(_INSERT_EVENT, (place, run, record.seq, key_of(row, record.record_id), stored.hash, stored.body))
        for blob in record.blobs:
            db.execute("INSERT OR IGNORE INTO event_blobs (run, sha256) VALUES (?, ?)", (run, blob.sha256))


def events_by_id(db: Db, run: int, row: Execution, record_ids: Sequence[str]) -> dict[str, Stored]:
    """Return what the present generation has under these record ids."""
    found: dict[str, Stored] = {}
    keys = keys_of(row, record_ids)
    names = list(keys)
    for start in range(0, len(names), _IDS_AT_ONCE):
        some = names[start : start + _IDS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        query = f"SELECT record_id, seq, {_STORED} FROM execution_events WHERE run = ? AND record_id IN ({marks})"
        rows = db.execute(query, (run, *some))
        live = (each for each in rows if is_live(row.dropped, each[1]))
        found.update((keys[key], _stored(digest, body)) for key, _, digest, body in live)
    return found


def events(db: Db, run: int, first: int, last: int) -> list[Stored]:
    """Return stored records in order, from `first` to `last`."""
    base = run * _RUN_SPAN
    query = f"SELECT {_STORED} FROM execution_events WHERE place BETWEEN ? AND ? ORDER BY place"
    return [_stored(digest, body) for digest, body in db.execute(query, (base + first, base + last))]


def page(db: Db, run: int, first: int, last: int) -> list[tuple[int, Stored]]:
    """Return stored records with their offsets, from `first` to `last` at most, as many as a page holds."""
    base = run * _RUN_SPAN
    rows = db.execute(
        f"SELECT seq, {_STORED} FROM execution_events WHERE place BETWEEN ? AND ? ORDER BY place LIMIT ?",
        (base + first, base + last, PAGE_RECORDS),
    )
    found, size = [], 0
    for seq, digest, body in rows:
        found.append((seq, _stored(digest, body)))
        size += len(body)
        if size >= PAGE_BYTES:
            break
    return found


def event_hash(db: Db, run: int, offset: int) -> str | None:
    """Return the chain's hash at a record."""
    found = db.execute(
        "SELECT hash FROM execution_events WHERE place = ? AND run = ?", (run * _RUN_SPAN + offset, run)
    ).fetchone()
    return found[0] if found else None


def put_snapshot(db: Db, run: int, snapshot: Snapshot) -> None:
    """Keep the latest snapshot of each reducer."""
    db.execute(
        f"INSERT OR REPLACE INTO snapshots (run, reducer_version, {r.SNAPSHOT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (run, snapshot.reducer_version, *r.snapshot_values(snapshot)),
    )


def get_snapshot(db: Db, run: int, run_uid: str, reducer_version: int) -> Snapshot | None:
    """Return the snapshot that a reducer made."""
    found = db.execute(
        f"SELECT {r.SNAPSHOT} FROM snapshots WHERE run = ? AND reducer_version = ?",
        (run, reducer_version),
    ).fetchone()
    return r.snapshot(found, run_uid, reducer_version) if found else None


def bury(db: Db, run: int, pruned: Pruned) -> None:
    """Put the tombstone in the place of the records, which may go from now on."""
    db.execute(
        "INSERT INTO journal_tombstones (run, first_seq, last_seq, hash, said, signature) VALUES (?, 0, ?, ?, ?, ?)",
        (run, pruned.last, pruned.hash, canonical(pruned.said()), pruned.signature),
    )
    db.execute("DELETE FROM snapshots WHERE run = ?", (run,))


def prune_some(db: Db, run: int) -> bool:
    """Remove some of what a tombstone stands for, claims on blobs first; return whether there may be more."""
    some = "SELECT sha256 FROM event_blobs WHERE run = ? LIMIT ?"
    claims = db.execute(f"DELETE FROM event_blobs WHERE run = ? AND sha256 IN ({some})", (run, run, PRUNED_AT_ONCE))
    if claims.rowcount == PRUNED_AT_ONCE:
        return True
    some = "SELECT place FROM execution_events WHERE place BETWEEN ? AND ? ORDER BY place DESC LIMIT ?"
    span = (run * _RUN_SPAN, (run + 1) * _RUN_SPAN - 1, PRUNED_AT_ONCE)
    records = db.execute(f"DELETE FROM execution_events WHERE place IN ({some})", span)
    return records.rowcount == PRUNED_AT_ONCE


def is_pruned(db: Db, run: int) -> bool:
    """Whether a tombstone stands there, readable or not."""
    return db.execute("SELECT 1 FROM journal_tombstones WHERE run = ?", (run,)).fetchone() is not None


def find_pruned(db: Db, run: int) -> Pruned | None:
    """Return what stands for a journal that was pruned."""
    found = db.execute("SELECT said, signature FROM journal_tombstones WHERE run = ?", (run,)).fetchone()
    return r.pruned(found) if found else None


def sealed_executions(db: Db) -> list[Execution]:
    """Return the rows whose journals are sealed and still there."""
    rows = db.execute(
        f"SELECT {r.EXECUTION} FROM executions WHERE sealed = 1 AND (run NOT IN (SELECT run FROM journal_tombstones) "
        "OR EXISTS (SELECT 1 FROM execution_events e WHERE e.run = executions.run)) ORDER BY created_at, run_uid"
    )
    return [r.execution(row)[1] for row in rows]


def find_pod(db: Db, pod_uid: str) -> Pod | None:
    """Return a registered pod."""
    found = db.execute(f"SELECT {r.POD} FROM pods JOIN executions USING (run) WHERE pod_uid = ?", (pod_uid,)).fetchone()
    return r.pod(found) if found else None


def insert_pod(db: Db, run: int, pod: Pod) -> None:
    """Register a pod."""
    db.execute(
        "INSERT INTO pods (pod_uid, run, epoch, role, pod_name, commit_sha) VALUES (?, ?, ?, ?, ?, ?)",
        (pod.pod_uid, run, pod.epoch, pod.role, pod.pod_name, pod.commit),
    )


def next_push(db: Db, run: int) -> int:
    """Return the number of a run's next push."""
    number: int = db.execute("SELECT coalesce(max(number) + 1, 0) FROM kept_pushes WHERE run = ?", (run,)).fetchone()[0]
    return number


def insert_push(db: Db, run: int, push: KeptPush) -> None:
    """Keep a push; a whole one in the place of those before it."""
    if push.whole:
        db.execute("DELETE FROM kept_pushes WHERE run = ?", (run,))
    db.execute(f"INSERT INTO kept_pushes (run, {r.PUSH}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (run, *r.push_values(push)))


def pushes(db: Db, run: int, run_uid: str, number: int) -> list[KeptPush]:
    """Return what is kept from that number on."""
    rows = db.execute(f"SELECT {r.PUSH} FROM kept_pushes WHERE run = ? AND number >= ? ORDER BY number", (run, number))
    return [r.push(row, run_uid) for row in rows]


def changes(db: Db, after: int, limit: int) -> list[Change]:
    """Return the runs that changed, by their latest cursor."""
    rows = db.execute(
        "SELECT change_cursor, tenant, name, run_uid FROM executions WHERE change_cursor > ? "
        "ORDER BY change_cursor LIMIT ?",
        (after, limit),
    )
    return [Change(cursor=cursor, tenant=tenant, name=name, run_uid=uid) for cursor, tenant, name, uid in rows]


def newest_cursor(db: Db) -> int:
    """Return the cursor of the latest change."""
    cursor: int = db.execute("SELECT coalesce(max(change_cursor), 0) FROM executions").fetchone()[0]
    return cursor


def referenced_blobs(db: Db, tenant: str) -> set[str]:
    """Return the blobs that a tenant's records and kept pushes need."""
    rows = db.execute(
        "SELECT sha256 FROM event_blobs JOIN executions USING (run) WHERE tenant = ? "
        "UNION SELECT sha256 FROM kept_pushes JOIN executions USING (run) WHERE tenant = ? AND sha256 IS NOT NULL",
        (tenant, tenant),
    )
    return {sha for (sha,) in rows}


def find_session(db: Db, tenant: str, session_id: str) -> Session | None:
    """Return a session."""
    found = db.execute(
        f"SELECT {r.SESSION} FROM sessions WHERE tenant = ? AND session_id = ?", (tenant, session_id)
    ).fetchone()
    return r.session(found) if found else None


def put_session(db: Db, session: Session) -> None:
    """Write a session's row."""
    db.execute(
        f"INSERT OR REPLACE INTO sessions ({r.SESSION}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        r.session_values(session),
    )


def open_sessions(db: Db, tenant: str | None, active_since: int) -> list[Session]:
    """Return sessions without an end record."""
    of_tenant = "AND tenant = ?" if tenant is not None else ""
    rows = db.execute(
        f"SELECT {r.SESSION} FROM sessions WHERE end_record IS NULL AND active_at >= ? {of_tenant} "
        "ORDER BY created_at, session_id",
        (active_since, tenant) if tenant is not None else (active_since,),
    )
    return [r.session(row) for row in rows]


def _stored(digest: bytes, body: bytes) -> Stored:
    return Stored(digest.decode("latin-1"), body)
