"""SQL of the PostgreSQL store: between rows and the port's types."""
# ruff: noqa: S608 -- only this module's own constants are put into SQL; values are bound

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from psycopg import AsyncClientCursor

from moorage.api.wire import Change
from moorage.core.journal.canonical import canonical
from moorage.core.journal.lineage import is_live
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import Record, Stored
from moorage.core.journal.snapshots import Snapshot
from moorage.store import rows as r
from moorage.store.appending import key_of, keys_of
from moorage.store.errors import UnknownRun
from moorage.store.port import (
    PAGE_BYTES,
    PAGE_RECORDS,
    PRUNED_AT_ONCE,
    Execution,
    KeptPush,
    NewExecution,
    Pod,
    Session,
)
from moorage.store.postgres_connection import Db

_COMMIT_LOCK = 0x6D6F6F72_6A726E  # "moorjrn"
_ORDERED = f"SELECT pg_advisory_xact_lock({_COMMIT_LOCK})"
"""Before a cursor is taken: until its commit nobody else takes one, so that readers of changes see them in order."""

_SELECT = f"SELECT {r.EXECUTION} FROM executions WHERE run_uid = %s"
_LOCK = f"SELECT {r.EXECUTION} FROM executions WHERE run_uid = ANY(%s::text[]) ORDER BY run_uid FOR NO KEY UPDATE"
_EXISTING = """
SELECT run_uid, record_id, hash, body
FROM unnest(%s::text[], %s::text[]) AS asked (run_uid, record_id)
JOIN executions USING (run_uid) JOIN execution_events USING (run, record_id)
"""
_BEGIN = f"BEGIN; {_LOCK}; {_EXISTING}"
_BY_KEYS = "SELECT record_id, seq, hash, body FROM execution_events WHERE run = %s AND record_id = ANY(%s)"
_INSERT_EVENTS = """
INSERT INTO execution_events (run, seq, record_id, hash, body)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %b::bytea[])
"""
_INSERT_BLOBS = """
INSERT INTO event_blobs (run, sha256) SELECT * FROM unnest(%s::bigint[], %s::text[]) ON CONFLICT DO NOTHING
"""
_UPDATE = """
UPDATE executions AS e
SET next_seq = n.next_seq, head_hash = n.head_hash, logical_time = n.logical_time, status = n.status,
    version = n.version, fence_epoch = n.fence_epoch, sealed = n.sealed, dropped = n.dropped,
    change_cursor = nextval('change_cursors')
FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::boolean[],
    %s::text[]) AS n (run, next_seq, head_hash, logical_time, status, version, fence_epoch, sealed, dropped)
WHERE e.run = n.run
"""
_PAGE = """
SELECT seq, hash, body FROM (
    SELECT seq, hash, body, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS size_before
    FROM execution_events WHERE run = %s AND seq BETWEEN %s AND %s ORDER BY seq LIMIT %s
) AS counted WHERE size_before < %s ORDER BY seq
"""
_NINE = ", ".join(["%s"] * 9)
_INSERT = f"""
INSERT INTO executions ({r.IDENTITY}, name, spec_hash, created_at, {r.STATE}, change_cursor)
VALUES ({_NINE}, 'RUNNING', 1, 0, 0, NULL, 0, false, NULL, nextval('change_cursors')) RETURNING {r.EXECUTION}
"""
_UPSERT_SESSION = f"""
INSERT INTO sessions ({r.SESSION}) VALUES ({_NINE}, %s)
ON CONFLICT (tenant, session_id) DO UPDATE SET ({r.SESSION}) = ROW (EXCLUDED.*)
"""
_UPSERT_SNAPSHOT = f"""
INSERT INTO snapshots (run, reducer_version, {r.SNAPSHOT}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (run, reducer_version) DO UPDATE SET ({r.SNAPSHOT}) = (
    EXCLUDED.source_offset, EXCLUDED.source_hash, EXCLUDED.schema_version, EXCLUDED.epoch,
    EXCLUDED.state, EXCLUDED.state_hash, EXCLUDED.signature)
"""


@dataclass
class Held:
    """A run whose row a transaction has locked: as it was, and as it is to be written."""

    run: int
    before: Execution
    now: Execution
    events: list[tuple[Record, Stored]] = field(default_factory=list)
    existing: dict[str, Stored] = field(default_factory=dict)
    """What is stored under the record ids that are asked for, and what this transaction adds."""


async def begin(db: Db, run_uids: Iterable[str], asked: Sequence[tuple[str, str]]) -> dict[str, Held]:
    """Begin a transaction, lock the rows of these runs, in one order for everybody, and look up (run uid, record id)s.

    One round trip, and as one simple query: psycopg ends a pipeline with a Flush, by which the server stops counting
    for how long the transaction is idle, and a gateway that is frozen here would hold its rows for ever. A uid that
    isn't there is left out.
    """
    uids, record_ids = [uid for uid, _ in asked], [record_id for _, record_id in asked]
    async with AsyncClientCursor(db) as cursor:
        await cursor.execute(_BEGIN, (sorted(filter(storable, run_uids)), uids, record_ids))
        cursor.nextset()
        held = {row.run_uid: Held(run, row, row) for run, row in map(r.execution, await cursor.fetchall())}
        cursor.nextset()
        for run_uid, record_id, digest, body in await cursor.fetchall():
            held[run_uid].existing[record_id] = Stored(digest, body)
    for one in held.values():
        if one.now.generation > 1:
            one.existing = await _live_existing(
                db, one, [record_id for uid, record_id in asked if uid == one.now.run_uid]
            )
    return held


async def _live_existing(db: Db, held: Held, record_ids: Sequence[str]) -> dict[str, Stored]:
    """What a later generation of a journal has under these ids: dropped records are another's (I1)."""
    keys = keys_of(held.now, record_ids)
    found = await db.execute(_BY_KEYS, (held.run, list(keys)))
    rows = [row for row in await found.fetchall() if is_live(held.now.dropped, row[1])]
    return {keys[key]: Stored(digest, body) for key, _, digest, body in rows}


async def commit(db: Db, held: Iterable[Held]) -> None:
    """Write what changed, and commit. One round trip."""
    async with db.pipeline():
        await write(db, held)
        await db.execute("COMMIT")


async def write(db: Db, held: Iterable[Held]) -> None:
    """Write what changed, as the last step of a transaction: it takes the lock that orders commits."""
    changed = [one for one in held if one.now != one.before]
    if changed:
        await _insert_events(db, changed)
        await db.execute(_ORDERED)
        await db.execute(_UPDATE, _states(changed))


async def _insert_events(db: Db, held: Sequence[Held]) -> None:
    events = [
        (one.run, record.seq, key_of(one.now, record.record_id), *stored)
        for one in held
        for record, stored in one.events
    ]
    if events:
        await db.execute(_INSERT_EVENTS, _columns(events))
    blobs = sorted({(one.run, b.sha256) for one in held for record, _ in one.events for b in record.blobs})
    if blobs:
        await db.execute(_INSERT_BLOBS, _columns(blobs))


def _states(held: Sequence[Held]) -> list[list[Any]]:
    states = [
        (
            one.run,
            one.now.head.offset + 1,
            one.now.head.hash,
            one.now.head.logical_time,
            one.now.status.value,
            one.now.version,
            one.now.fence_epoch,
            one.now.sealed,
            r.dropped_value(one.now),
        )
        for one in held
    ]
    return _columns(states)


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


async def order(db: Db) -> None:
    """Let nobody else take a cursor until this transaction's end."""
    await db.execute(_ORDERED)


async def insert_execution(db: Db, new: NewExecution) -> tuple[int, Execution]:
    """Write a run's row and spec, in a transaction that has called `order`; return its short name and its row."""
    who = new.identity
    values = (who.run_uid, who.tenant, who.session_id, who.workspace, who.agent_id, who.fire_id, new.name)
    row = await (await db.execute(_INSERT, (*values, new.spec_hash, new.created_at))).fetchone()
    run, execution = r.execution(row or ())
    await db.execute("INSERT INTO execution_specs (run, spec) VALUES (%s, %b)", (run, canonical(new.spec)))
    return run, execution


async def find_execution(db: Db, run_uid: str, *, lock: bool = False) -> tuple[int, Execution] | None:
    """Return the short name and the row of a run; with `lock`, nobody else changes it until the transaction's end."""
    if not storable(run_uid):
        return None
    row = await (await db.execute(_SELECT + " FOR NO KEY UPDATE" * lock, (run_uid,))).fetchone()
    return r.execution(row) if row else None


async def get_execution(db: Db, run_uid: str, *, lock: bool = False) -> tuple[int, Execution]:
    """Return the short name and the row of a run. Raise UnknownRun."""
    if (found := await find_execution(db, run_uid, lock=lock)) is None:
        raise UnknownRun(run_uid)
    return found


async def get_spec(db: Db, run: int) -> Mapping[str, Any]:
    """Return the spec that a run was persisted with."""
    row = await (await db.execute("SELECT spec FROM execution_specs WHERE run = %s", (run,))).fetchone()
    spec: dict[str, Any] = orjson.loads(row[0]) if row else {}
    return spec


async def pending_executions(db: Db, tenant: str | None) -> list[Execution]:
    """Return the rows that somebody must still push on."""
    found = await db.execute(
        f"SELECT {r.EXECUTION} FROM executions WHERE (%s::text IS NULL OR tenant = %s) AND NOT sealed "
        f'AND status IN ({r.PENDING_LIST}) ORDER BY created_at, run_uid COLLATE "C"',
        (tenant, tenant),
    )
    return [r.execution(row)[1] for row in await found.fetchall()]


async def events(db: Db, run: int, first: int, last: int) -> list[Stored]:
    """Return stored records in order, from `first` to `last`."""
    found = await db.execute(
        "SELECT hash, body FROM execution_events WHERE run = %s AND seq BETWEEN %s AND %s ORDER BY seq",
        (run, first, last),
        binary=True,
    )
    return [Stored(digest, body) for digest, body in await found.fetchall()]


async def page(db: Db, run: int, first: int, last: int) -> list[tuple[int, Stored]]:
    """Return stored records with their offsets, from `first` to `last` at most, as many as a page holds."""
    found = await db.execute(_PAGE, (run, first, last, PAGE_RECORDS, PAGE_BYTES), binary=True)
    return [(seq, Stored(digest, body)) for seq, digest, body in await found.fetchall()]


async def event_hash(db: Db, run: int, offset: int) -> str | None:
    """Return the chain's hash at a record."""
    found = await db.execute("SELECT hash FROM execution_events WHERE run = %s AND seq = %s", (run, offset))
    row = await found.fetchone()
    return row[0] if row else None


async def put_snapshot(db: Db, run: int, snapshot: Snapshot) -> None:
    """Keep the latest snapshot of each reducer."""
    await db.execute(_UPSERT_SNAPSHOT, (run, snapshot.reducer_version, *r.snapshot_values(snapshot)))


async def get_snapshot(db: Db, run: int, run_uid: str, reducer_version: int) -> Snapshot | None:
    """Return the snapshot that a reducer made."""
    found = await db.execute(
        f"SELECT {r.SNAPSHOT} FROM snapshots WHERE run = %s AND reducer_version = %s", (run, reducer_version)
    )
    row = await found.fetchone()
    return r.snapshot(row, run_uid, reducer_version) if row else None


async def bury(db: Db, run: int, pruned: Pruned) -> None:
    """Put the tombstone in the place of the records, which may go from now on."""
    await db.execute(
        "INSERT INTO journal_tombstones (run, first_seq, last_seq, hash, said, signature) "
        "VALUES (%s, 0, %s, %s, %b, %s)",
        (run, pruned.last, pruned.hash, canonical(pruned.said()), pruned.signature),
    )
    await db.execute("DELETE FROM snapshots WHERE run = %s", (run,))


async def prune_some(db: Db, run: int) -> bool:
    """Remove some of what a tombstone stands for, claims on blobs first; return whether there may be more. A statement
    that removes no record is refused like any other without a tombstone.
    """
    some = "SELECT sha256 FROM event_blobs WHERE run = %s LIMIT %s"
    gone = f"DELETE FROM event_blobs WHERE run = %s AND sha256 IN ({some})"
    if (await db.execute(gone, (run, run, PRUNED_AT_ONCE))).rowcount == PRUNED_AT_ONCE:
        return True
    last = "SELECT seq FROM execution_events WHERE run = %s ORDER BY seq DESC LIMIT %s"
    found = await db.execute(last, (run, PRUNED_AT_ONCE))
    seqs = [seq for (seq,) in await found.fetchall()]
    if seqs:
        await db.execute("DELETE FROM execution_events WHERE run = %s AND seq >= %s", (run, seqs[-1]))
    return len(seqs) == PRUNED_AT_ONCE


async def is_pruned(db: Db, run: int) -> bool:
    """Whether a tombstone stands there, readable or not."""
    found = await db.execute("SELECT 1 FROM journal_tombstones WHERE run = %s", (run,))
    return await found.fetchone() is not None


async def find_pruned(db: Db, run: int) -> Pruned | None:
    """Return what stands for a journal that was pruned."""
    found = await db.execute("SELECT said, signature FROM journal_tombstones WHERE run = %s", (run,))
    row = await found.fetchone()
    return r.pruned(row) if row else None


async def sealed_executions(db: Db) -> list[Execution]:
    """Return the rows whose journals are sealed and still there."""
    found = await db.execute(
        f"SELECT {r.EXECUTION} FROM executions WHERE sealed AND (NOT EXISTS (SELECT 1 FROM journal_tombstones t "
        "WHERE t.run = executions.run) OR EXISTS (SELECT 1 FROM execution_events e WHERE e.run = executions.run)) "
        'ORDER BY created_at, run_uid COLLATE "C"'
    )
    return [r.execution(row)[1] for row in await found.fetchall()]


async def find_pod(db: Db, pod_uid: str) -> Pod | None:
    """Return a registered pod."""
    if not storable(pod_uid):
        return None
    found = await db.execute(f"SELECT {r.POD} FROM pods JOIN executions USING (run) WHERE pod_uid = %s", (pod_uid,))
    row = await found.fetchone()
    return r.pod(row) if row else None


async def insert_pod(db: Db, run: int, pod: Pod) -> bool:
    """Register a pod; False where somebody has registered that UID meanwhile."""
    added = await db.execute(
        "INSERT INTO pods (pod_uid, run, epoch, role, pod_name, commit_sha) VALUES (%s, %s, %s, %s, %s, %s) "
        "ON CONFLICT DO NOTHING",
        (pod.pod_uid, run, pod.epoch, pod.role, pod.pod_name, pod.commit),
    )
    return added.rowcount == 1


async def next_push(db: Db, run: int) -> int:
    """Return the number of a run's next push."""
    found = await db.execute("SELECT coalesce(max(number) + 1, 0) FROM kept_pushes WHERE run = %s", (run,))
    row = await found.fetchone()
    return row[0] if row else 0


async def insert_push(db: Db, run: int, push: KeptPush) -> None:
    """Keep a push; a whole one in the place of those before it."""
    if push.whole:
        await db.execute("DELETE FROM kept_pushes WHERE run = %s", (run,))
    await db.execute(
        f"INSERT INTO kept_pushes (run, {r.PUSH}) VALUES (%s, %s, %s, %b, %s, %s, %s, %s)", (run, *r.push_values(push))
    )


async def pushes(db: Db, run_uid: str, number: int) -> list[KeptPush]:
    """Return what is kept from that number on. Raise UnknownRun."""
    run, _ = await get_execution(db, run_uid)
    found = await db.execute(
        f"SELECT {r.PUSH} FROM kept_pushes WHERE run = %s AND number >= %s ORDER BY number", (run, number)
    )
    return [r.push(row, run_uid) for row in await found.fetchall()]


async def changes(db: Db, after: int, limit: int) -> list[Change]:
    """Return the runs that changed, by their latest cursor."""
    found = await db.execute(
        "SELECT change_cursor, tenant, name, run_uid FROM executions WHERE change_cursor > %s "
        "ORDER BY change_cursor LIMIT %s",
        (after, limit),
    )
    rows = await found.fetchall()
    return [Change(cursor=cursor, tenant=tenant, name=name, run_uid=uid) for cursor, tenant, name, uid in rows]


async def newest_cursor(db: Db) -> int:
    """Return the cursor of the latest change."""
    found = await (await db.execute("SELECT coalesce(max(change_cursor), 0) FROM executions")).fetchone()
    return int(found[0]) if found else 0


async def referenced_blobs(db: Db, tenant: str) -> set[str]:
    """Return the blobs that a tenant's records and kept pushes need."""
    found = await db.execute(
        "SELECT sha256 FROM event_blobs JOIN executions USING (run) WHERE tenant = %s "
        "UNION SELECT sha256 FROM kept_pushes JOIN executions USING (run) WHERE tenant = %s AND sha256 IS NOT NULL",
        (tenant, tenant),
    )
    return {sha for (sha,) in await found.fetchall()}


async def find_session(db: Db, tenant: str, session_id: str, *, lock: bool = False) -> Session | None:
    """Return a session; with `lock`, nobody else changes it until the transaction's end."""
    query = f"SELECT {r.SESSION} FROM sessions WHERE tenant = %s AND session_id = %s" + " FOR UPDATE" * lock
    row = await (await db.execute(query, (tenant, session_id))).fetchone()
    return r.session(row) if row else None


async def open_session(db: Db, session: Session) -> None:
    """Write a new session's row; one that is there stays."""
    await db.execute(
        f"INSERT INTO sessions ({r.SESSION}) VALUES ({_NINE}, %s) ON CONFLICT DO NOTHING", r.session_values(session)
    )


async def put_session(db: Db, session: Session) -> None:
    """Write a session's row."""
    await db.execute(_UPSERT_SESSION, r.session_values(session))


async def open_sessions(db: Db, tenant: str | None, active_since: int) -> list[Session]:
    """Return sessions without an end record."""
    found = await db.execute(
        f"SELECT {r.SESSION} FROM sessions WHERE end_record IS NULL AND active_at >= %s "
        'AND (%s::text IS NULL OR tenant = %s) ORDER BY created_at, session_id COLLATE "C"',
        (active_since, tenant, tenant),
    )
    return [r.session(row) for row in await found.fetchall()]


def storable(text: str) -> bool:
    """Whether PostgreSQL can hold a text at all: what it can't hold isn't there."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text))
