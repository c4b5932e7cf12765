"""What the SQLite adapter owes beyond the contract: triggers, durability, other processes, migrations, damage."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import Broken, link, seal
from moorage.core.journal.errors import JournalCorrupted, UnknownCritical
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source, readable
from moorage.store.errors import NotDurable, SchemaMismatch, StoreBusy, StoreFull, StoreUnavailable
from moorage.store.migrations import Migration, migrate, released
from moorage.store.port import NewExecution
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore
from moorage.store.sqlite_connection import begin, check_durable, connect, transaction

LENGTH = 6


def draft(record_id: str, **more: Any) -> Draft:
    facts = {"type": RecordType.CHECKPOINT, "payload": {"n": record_id}} | more
    return Draft(record_id=record_id, recorded_at=1, source=Source.GATEWAY, assurance=Assurance.OBSERVED, **facts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(path, busy_timeout_ms=50) as opened:
        identity = RunIdentity(tenant="t", run_uid="run-1", session_id="s")
        await opened.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1))
        await opened.raise_fence("run-1", 2)
        await opened.append("run-1", 2, [draft(f"r{n}") for n in range(LENGTH)])
        yield opened


@pytest.fixture
def other(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody's own connection, with SQLite's own defaults."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    yield connection
    connection.close()


WHO = "tenant, session_id, workspace, agent_id, fire_id, name, spec_hash"
KEPT = f"{WHO}, created_at, status, version, 0, 0, NULL, 0, sealed"
EVENT = "(place, run, seq, record_id, hash, body) VALUES"
RUN = 2**32  # places of run 1 begin here


def rows(connection: sqlite3.Connection) -> list[Any]:
    tables = ("execution_events", "executions")
    return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


@pytest.mark.rule("J7")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE execution_events SET body = x'00' WHERE seq = 2",
        "UPDATE OR REPLACE execution_events SET seq = 3 WHERE seq = 2",
        "DELETE FROM execution_events WHERE seq = 5",
        "DELETE FROM execution_events",
        f"INSERT OR REPLACE INTO execution_events {EVENT} ({RUN + 2}, 1, 2, 'new', 'h', x'00')",
        f"INSERT OR REPLACE INTO execution_events {EVENT} ({RUN + 99}, 1, 99, 'r2', 'h', x'00')",
        f"REPLACE INTO execution_events {EVENT} ({RUN + 2}, 1, 2, 'r2', 'h', x'00')",
        f"INSERT OR REPLACE INTO execution_events (rowid, run, seq, record_id, hash, body) "
        f"VALUES ({RUN + 2}, 1, 2, 'new', 'h', x'00')",
        f"INSERT INTO execution_events {EVENT} ({RUN + 2}, 1, 2, 'r2', 'h', x'00') "
        "ON CONFLICT DO UPDATE SET body = x'00'",
        f"INSERT OR IGNORE INTO execution_events {EVENT} ({RUN + 2}, 1, 2, 'r2', 'h', x'00')",
        "UPDATE executions SET next_seq = 1",
        "UPDATE executions SET fence_epoch = 1",
        "UPDATE executions SET spec_hash = 'other'",
        "DELETE FROM executions",
        f"INSERT OR REPLACE INTO executions SELECT run, run_uid, {KEPT}, change_cursor + 1, dropped FROM executions",
        f"INSERT OR REPLACE INTO executions SELECT run + 1, 'run-2', {KEPT}, change_cursor, dropped FROM executions",
    ],
)
async def test_history_cant_be_rewritten_by_sql(store: SqliteStore, other: sqlite3.Connection, statement: str) -> None:
    before = rows(other)
    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|only go forward|sealed, never|unique"):
        other.execute(statement)
    assert rows(other) == before
    assert (await store.recover("run-1")).head.offset == LENGTH - 1


@pytest.mark.rule("J7")
async def test_a_seal_cant_be_broken_by_sql(store: SqliteStore, other: sqlite3.Connection) -> None:
    await store.delete("run-1", at=1, reason="gone")
    for statement in ("UPDATE executions SET sealed = 0", "UPDATE executions SET next_seq = next_seq + 1"):
        with pytest.raises(sqlite3.IntegrityError, match="only go forward"):
            other.execute(statement)


@pytest.mark.rule("J7")
def test_a_database_that_a_power_cut_could_take_back_is_refused(path: Path) -> None:
    with pytest.raises(NotDurable, match="journal_mode=memory"):
        SqliteStore(Path(":memory:"))
    connection = connect(path)
    check_durable(connection)
    for level in ("OFF", "NORMAL"):
        connection.execute(f"PRAGMA synchronous = {level}")
        with pytest.raises(NotDurable, match="FULL"):
            check_durable(connection)
    connection.execute("PRAGMA synchronous = EXTRA")
    check_durable(connection)
    connection.execute("PRAGMA journal_mode = DELETE")
    with pytest.raises(NotDurable, match="journal_mode=delete"):
        check_durable(connection)
    connection.close()


async def test_what_was_acknowledged_is_there_after_reopening(store: SqliteStore, path: Path) -> None:
    before = await store.get("run-1"), await store.read("run-1"), await store.changes()
    await store.close()
    async with SqliteStore(path) as again:
        assert (await again.get("run-1"), await again.read("run-1"), await again.changes()) == before
        assert (await again.append("run-1", 2, [draft("more")], LENGTH - 1)).offset == LENGTH


def unlock(connection: sqlite3.Connection) -> None:
    """What somebody with the file in his hands can do."""
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")


@pytest.mark.rule("J5")
@pytest.mark.parametrize(
    ("damage", "offset", "record_id"),
    [
        ("UPDATE execution_events SET body = replace(CAST(body AS TEXT), 'r3', 'x3') WHERE seq = 3", 3, "x3"),
        ("UPDATE execution_events SET body = CAST(body AS BLOB) || x'00' WHERE seq = 3", 3, None),
        ("UPDATE execution_events SET hash = (SELECT hash FROM execution_events WHERE seq = 2) WHERE seq = 3", 3, "r3"),
        ("DELETE FROM execution_events WHERE seq = 3", 3, "r4"),
        ("DELETE FROM execution_events WHERE seq >= 3", 3, None),
        ("DELETE FROM execution_events", 0, None),
        ("UPDATE executions SET head_hash = 'other'", LENGTH, None),
        ("UPDATE executions SET next_seq = 9", LENGTH, None),
        (f"UPDATE execution_events SET place = {2 * RUN}, run = 2, seq = 0 WHERE seq = 0", 0, "r1"),
    ],
)
async def test_damage_is_found_and_refuses_recovery(
    store: SqliteStore, other: sqlite3.Connection, damage: str, offset: int, record_id: str | None
) -> None:
    unlock(other)
    other.execute(damage)
    verdict = await verify_stored(store, "run-1")
    assert isinstance(verdict, Broken)
    assert (verdict.offset, verdict.record_id) == (offset, record_id)
    with pytest.raises(JournalCorrupted, match=f"offset {offset} "):
        await store.recover("run-1")


@pytest.mark.rule("J10")
async def test_recovery_is_refused_on_critical_types_of_a_later_version(store: SqliteStore) -> None:
    await store.append("run-1", 2, [draft("later", type="OF_A_LATER_VERSION")])
    with pytest.raises(UnknownCritical, match="OF_A_LATER_VERSION"):
        await store.recover("run-1")
    assert [r.type for r in await store.read("run-1", LENGTH)] == ["OF_A_LATER_VERSION"]


@pytest.mark.rule("J10")
async def test_an_older_version_goes_on_after_what_a_newer_one_wrote(store: SqliteStore) -> None:
    """The newer version knows a type and fields that this one doesn't; both append in turn."""
    row = await store.get("run-1")
    plain = seal([draft("new", type="NEW_AND_OPTIONAL")], row.head, row.identity, 2)[0]
    newer = orjson.loads(plain.body) | {"criticality": "optional", "schema_version": 2, "of_later": {"x": [1]}}
    body = canonical(newer)
    digest = link(row.head.hash, body)
    store._db.execute(
        f"INSERT INTO execution_events {EVENT} (?, 1, ?, 'new', ?, ?)", (RUN + LENGTH, LENGTH, digest, body)
    )
    store._db.execute("UPDATE executions SET next_seq = next_seq + 1, head_hash = ?, logical_time = 99", (digest,))
    after = await store.append("run-1", 2, [draft("old")], LENGTH)
    assert (after.records[0].prev_hash, after.records[0].logical_time) == (digest, 100)
    assert (await store.recover("run-1")).head.offset == LENGTH + 1
    records = await store.read("run-1", LENGTH)
    assert [(r.type, r.known, r.schema_version) for r in records] == [
        ("NEW_AND_OPTIONAL", False, 2),
        ("CHECKPOINT", True, 1),
    ]
    assert [r.record_id for r in readable(records)] == ["old"]
    bodies = [entry.body async for entry in store.stored("run-1", LENGTH)]
    assert bodies[0] == body


async def test_another_process_that_holds_the_database_is_waited_for_while_the_loop_goes_on(
    path: Path, store: SqliteStore, other: sqlite3.Connection
) -> None:
    async with SqliteStore(path, busy_timeout_ms=20_000) as patient:
        other.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.create_task(patient.append("run-1", 2, [draft(f"late{n}")])) for n in range(3)]
        slowest = 0.0
        for _ in range(50):
            began = time.perf_counter()
            await asyncio.sleep(0.004)
            slowest = max(slowest, time.perf_counter() - began)
        assert not any(task.done() for task in waiting)
        other.execute("COMMIT")
        assert [r.offset for r in await asyncio.gather(*waiting)] == [LENGTH, LENGTH + 1, LENGTH + 2]
    assert slowest < 10, "the loop stood still for as long as the database was waited for"


async def test_what_still_waits_for_another_process_when_the_store_is_closed_is_told(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(store.append("run-1", 2, [draft("late")]))
    await asyncio.sleep(0.02)
    await store.close()
    with pytest.raises(StoreBusy, match="try again"):
        await waiting


async def test_another_process_that_holds_the_database_for_long_is_named(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="try again"):
        await store.append("run-1", 2, [draft("late")])
    assert len(await store.read("run-1")) == LENGTH
    other.execute("COMMIT")
    assert (await store.append("run-1", 2, [draft("late")])).offset == LENGTH


@pytest.mark.rule("J2", "I2")
async def test_two_stores_on_one_file_see_each_others_heads_and_fences(store: SqliteStore, path: Path) -> None:
    async with SqliteStore(path) as second:
        assert (await second.append("run-1", 2, [draft("b")])).offset == LENGTH
        assert (await store.append("run-1", 2, [draft("c")])).offset == LENGTH + 1
        await second.raise_fence("run-1", 3)
        assert (await store.get("run-1")).fence_epoch == 3
        assert [c.run_uid for c in await store.changes()] == ["run-1"]


@pytest.mark.rule("J3")
async def test_a_full_disk_is_told_and_acknowledges_nothing(store: SqliteStore) -> None:
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    acknowledged = LENGTH - 1

    async def fill() -> None:
        nonlocal acknowledged
        for n in range(50):
            acknowledged = (await store.append("run-1", 2, [draft(f"big{n}", payload={"x": "y" * 30_000})])).offset

    with pytest.raises(StoreFull, match="make room"):
        await fill()
    assert (await store.get("run-1")).head.offset == acknowledged
    assert len(await store.read("run-1")) == acknowledged + 1
    store._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    result = await store.append("run-1", 2, [draft("after", payload={"x": "y" * 30_000})])
    assert result.offset == acknowledged + 1
    await store.recover("run-1")


def test_what_isnt_a_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"not a database, but long enough to look like one" * 100)
    for path in (tmp_path / "text", tmp_path / "missing" / "journal.db", tmp_path):
        with pytest.raises(StoreUnavailable, match="can't be used"):
            SqliteStore(path)


@pytest.mark.rule("J11")
@pytest.mark.parametrize("version", range(len(released("sqlite")) + 1))
async def test_every_released_schema_comes_up_to_date_with_its_data(path: Path, version: int) -> None:
    steps = released("sqlite")
    old = sqlite3.connect(path, isolation_level=None)
    assert migrate(old, steps[:version]) == version
    if version:
        old.execute(
            "INSERT INTO executions (run_uid, tenant, session_id, name, spec_hash, created_at, status, version, "
            "fence_epoch, next_seq, logical_time, sealed, change_cursor) "
            "VALUES ('u', 't', 's', 'n', 'h', 1, 'PAUSED', 4, 7, 0, 0, 0, 1)"
        )
    old.close()
    async with SqliteStore(path) as store:
        pending = await store.list_pending()
        assert [(row.run_uid, row.version, row.fence_epoch) for row in pending] == [("u", 4, 7)][:version]
        assert migrate(store._db, steps) == 0


def test_a_database_of_another_or_a_newer_version_is_refused(path: Path) -> None:
    connect(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    known = released("sqlite")
    edited = Migration(1, known[0].name, known[0].sql + "-- changed")
    with pytest.raises(SchemaMismatch, match=r"another 0001_executions\.sql"):
        migrate(db, [edited, *known[1:]])
    with pytest.raises(SchemaMismatch, match=r"at migration \d+, this version knows 0"):
        migrate(db, [])
    db.close()


def test_a_migration_is_whole_or_not_there(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    good = Migration(1, "0001_a.sql", "CREATE TABLE a (x);\n-- a comment; with a semicolon\nCREATE TABLE b (x);\n")
    bad = Migration(2, "0002_b.sql", "CREATE TABLE c (x);\nCREATE TABLE a (x);\n")
    torn = Migration(2, "0002_b.sql", "CREATE TABLE c (x);\nCREATE TABLE d (x\n")
    for broken in (bad, torn):
        with pytest.raises((sqlite3.OperationalError, SchemaMismatch)):
            migrate(db, [good, broken])
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == []
    assert migrate(db, [good]) == 1
    assert {name for (name,) in db.execute("SELECT name FROM sqlite_master")} == {"a", "b", "schema_migrations"}
    db.close()


def _open_and_append(path: str, number: int) -> None:
    connection = connect(Path(path), busy_timeout_ms=20_000)
    begin(connection)
    with transaction(connection):
        connection.execute(
            "INSERT INTO pods (pod_uid, run, epoch, role, pod_name) SELECT ?, 1, 1, 'r', 'p' WHERE 0", (str(number),)
        )
    connection.close()


def test_many_processes_may_open_a_fresh_database_at_once(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_open_and_append, args=(str(path), n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0] * 4
