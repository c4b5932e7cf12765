"""What the PostgreSQL adapter owes beyond the contract: triggers, durability, other gateways, lost servers, damage."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psycopg
import pytest

from moorage.app.gateway import Environment
from moorage.app.stores import open_stores
from moorage.core.journal.chain import Broken, Intact
from moorage.core.journal.errors import InvalidDraft, JournalCorrupted
from moorage.core.journal.record import Assurance, BlobRef, Draft, RecordType, RunIdentity, Source
from moorage.store.errors import (
    NotDurable,
    OffsetConflict,
    SchemaMismatch,
    StoreBusy,
    StoreUnavailable,
    UnknownRun,
)
from moorage.store.migrations import Migration, released
from moorage.store.port import NewExecution
from moorage.store.postgres import PostgresStore
from moorage.store.postgres_connection import connect, migrate
from moorage.store.reading import verify_stored
from moorage.testing.clock import StepClock
from moorage.testing.postgres import PostgresServer

LENGTH = 6
Connection = psycopg.Connection[Any]


def draft(record_id: str, **more: Any) -> Draft:
    facts = {"type": RecordType.CHECKPOINT, "payload": {"n": record_id}} | more
    return Draft(record_id=record_id, recorded_at=1, source=Source.GATEWAY, assurance=Assurance.OBSERVED, **facts)


async def admitted(store: PostgresStore, run_uid: str = "run-1", epoch: int = 2) -> None:
    identity = RunIdentity(tenant="t", run_uid=run_uid, session_id="s")
    await store.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1))
    await store.raise_fence(run_uid, epoch)


@pytest.fixture
async def store(postgres: str) -> AsyncIterator[PostgresStore]:
    async with await PostgresStore.open(postgres) as opened:
        await admitted(opened)
        await opened.append("run-1", 2, [draft(f"r{n}") for n in range(LENGTH)])
        yield opened


@pytest.fixture
def other(store: PostgresStore, postgres: str) -> Iterator[Connection]:
    """Somebody's own connection, as the database's owner."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        yield connection


def rows(connection: Connection) -> list[Any]:
    tables = ("execution_events", "executions", "execution_specs")
    return [connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]


EVENT = "(run, seq, record_id, hash, body) SELECT run"


@pytest.mark.rule("J7")
@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE execution_events SET body = '' WHERE seq = 2",
        "UPDATE execution_events SET body = '' WHERE seq = 99",
        "DELETE FROM execution_events WHERE seq = 5",
        "DELETE FROM execution_events",
        "TRUNCATE execution_events",
        "TRUNCATE executions CASCADE",
        f"INSERT INTO execution_events {EVENT}, 2, 'new', 'h', '' FROM executions",
        f"INSERT INTO execution_events {EVENT}, 99, 'r2', 'h', '' FROM executions",
        f"INSERT INTO execution_events {EVENT}, 2, 'r2', 'h', '' FROM executions "
        "ON CONFLICT (run, seq) DO UPDATE SET body = ''",
        "MERGE INTO execution_events e USING executions x ON e.run = x.run WHEN MATCHED THEN DELETE",
        "UPDATE execution_specs SET spec = ''",
        "DELETE FROM execution_specs",
        "UPDATE executions SET next_seq = 1",
        "UPDATE executions SET fence_epoch = 1",
        "UPDATE executions SET spec_hash = 'other'",
        "DELETE FROM executions",
    ],
)
async def test_history_cant_be_rewritten_by_sql(
    store: PostgresStore, other: Connection, statement: str, role: str
) -> None:
    before = rows(other)
    other.execute(f"SET session_replication_role = {role}".encode())
    with pytest.raises(psycopg.IntegrityError, match=r"append-only|only go forward|duplicate key"):
        other.execute(statement.encode())
    assert rows(other) == before
    assert (await store.recover("run-1")).head.offset == LENGTH - 1


@pytest.mark.rule("J7")
async def test_a_seal_cant_be_broken_by_sql(store: PostgresStore, other: Connection) -> None:
    await store.delete("run-1", at=1, reason="gone")
    for statement in (b"UPDATE executions SET sealed = false", b"UPDATE executions SET next_seq = next_seq + 1"):
        with pytest.raises(psycopg.IntegrityError, match="only go forward"):
            other.execute(statement)


@pytest.mark.rule("J7")
async def test_a_database_that_a_power_cut_could_take_back_is_refused(postgres_server: PostgresServer) -> None:
    dsn = postgres_server.create_database()
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
        with pytest.raises(NotDurable, match="synchronous_commit=off"):
            await PostgresStore.open(dsn)
        owner.execute(f"ALTER DATABASE {name} SET synchronous_commit = local".encode())
    async with await PostgresStore.open(dsn) as opened:
        db = await opened._writer._link.get()
        assert await (await db.execute("SHOW synchronous_commit")).fetchone() == ("local",)
    latin = postgres_server.create_database(ENCODING="'LATIN1'", TEMPLATE="template0")
    with pytest.raises(NotDurable, match="LATIN1"):
        await PostgresStore.open(latin)


@pytest.mark.rule("J7")
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_a_server_that_doesnt_sync_is_refused(setting: str) -> None:
    with PostgresServer({setting: "off"}) as careless, pytest.raises(NotDurable, match=f"{setting}=off"):
        await PostgresStore.open(careless.dsn())


async def test_what_was_acknowledged_is_there_after_reopening(store: PostgresStore, postgres: str) -> None:
    before = await store.get("run-1"), await store.read("run-1"), await store.changes()
    await store.close()
    async with await PostgresStore.open(postgres) as again:
        assert (await again.get("run-1"), await again.read("run-1"), await again.changes()) == before
        assert (await again.append("run-1", 2, [draft("more")], LENGTH - 1)).offset == LENGTH


def unlock(connection: Connection) -> None:
    """What the database's owner can do."""
    for table in ("execution_events", "executions"):
        connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER".encode())


@pytest.mark.rule("J5")
@pytest.mark.parametrize(
    ("damage", "offset", "record_id"),
    [
        (
            "UPDATE execution_events SET body = replace(encode(body, 'escape'), 'r3', 'x3')::bytea WHERE seq = 3",
            3,
            "x3",
        ),
        ("UPDATE execution_events SET body = body || '\\x00' WHERE seq = 3", 3, None),
        ("UPDATE execution_events SET hash = (SELECT hash FROM execution_events WHERE seq = 2) WHERE seq = 3", 3, "r3"),
        ("DELETE FROM execution_events WHERE seq = 3", 3, "r4"),
        ("DELETE FROM execution_events WHERE seq >= 3", 3, None),
        ("DELETE FROM execution_events", 0, None),
        ("UPDATE executions SET head_hash = 'other'", LENGTH, None),
        ("UPDATE executions SET next_seq = 9", LENGTH, None),
    ],
)
async def test_damage_is_found_and_refuses_recovery(
    store: PostgresStore, other: Connection, damage: str, offset: int, record_id: str | None
) -> None:
    unlock(other)
    other.execute(damage.encode())
    verdict = await verify_stored(store, "run-1")
    assert isinstance(verdict, Broken)
    assert (verdict.offset, verdict.record_id) == (offset, record_id)
    with pytest.raises(JournalCorrupted, match=f"offset {offset} "):
        await store.recover("run-1")


# --- other gateways ---------------------------------------------------------------------------------------------------


async def test_another_transaction_that_holds_a_run_is_waited_for_and_then_named(
    store: PostgresStore, other: Connection
) -> None:
    db = await store._writer._link.get()
    await db.execute("SET lock_timeout = 100")
    with other.transaction():
        other.execute("SELECT * FROM executions FOR UPDATE")
        with pytest.raises(StoreBusy, match="try again"):
            await store.append("run-1", 2, [draft("late")])
        assert len(await store.read("run-1")) == LENGTH
    assert (await store.append("run-1", 2, [draft("late")])).offset == LENGTH


async def test_changes_become_visible_in_the_order_of_their_cursors(
    store: PostgresStore, postgres: str, other: Connection
) -> None:
    """A reader that has seen a cursor must not find a lower one later: it would never look for it."""
    await admitted(store, "run-2")
    before = (await store.changes())[-1].cursor
    async with await PostgresStore.open(postgres) as second:
        with other.transaction():  # a commit of a third gateway, on its way
            other.execute("SELECT pg_advisory_xact_lock(%s)", (0x6D6F6F726A726E,))
            other.execute("SELECT nextval('change_cursors')")
            late = asyncio.create_task(second.append("run-2", 2, [draft("late")]))
            await asyncio.sleep(0.2)
            assert await store.changes(before) == []
            assert not late.done()
        await late
        assert [c.cursor for c in await store.changes(before)] == [before + 2]


RACERS, ROUNDS = 2, 60


async def race(dsn: str, racer: int) -> None:
    """Go for each offset of one run, a moment after the one before is seen to be taken; tell how each try ended."""
    pause = random.Random(racer)
    async with await PostgresStore.open(dsn) as store:
        tell("ready")
        await asyncio.to_thread(sys.stdin.readline)
        offset = -1
        while offset < ROUNDS - 1:
            await asyncio.sleep(pause.uniform(0, 0.004))
            try:
                result = await store.append("raced", 1, [draft(f"{racer}:{offset}", payload={"by": racer})], offset)
            except OffsetConflict as lost:
                tell(f"lost {offset + 1}")
                offset = lost.current
            else:
                offset = result.offset
                tell(f"won {offset}")


def tell(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def races(dsn: str) -> list[list[str]]:
    """Start the racers together, and return what each told."""
    command = [sys.executable, __file__, dsn]
    racers = [subprocess.Popen([*command, str(n)], stdin=PIPE, stdout=PIPE, text=True) for n in range(RACERS)]
    assert [racer.stdout.readline() for racer in racers if racer.stdout] == ["ready\n"] * RACERS
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate()[0].splitlines() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * RACERS
    return said


@pytest.mark.rule("J2", "J3")
async def test_of_two_gateways_that_append_to_one_run_at_once_exactly_one_wins_each_offset(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as store:
        await admitted(store, "raced", 1)
        said = await asyncio.to_thread(races, postgres)
        won = [{int(line.split()[1]) for line in lines if line.startswith("won")} for lines in said]
        assert sorted(offset for offsets in won for offset in offsets) == list(range(ROUNDS))
        by = [(record.payload or {})["by"] for record in await store.read("raced")]
        assert [offset in won[racer] for offset, racer in enumerate(by)] == [True] * ROUNDS
        assert all(won), f"one of them never won: nothing was raced for: {by}"
        assert any(line.startswith("lost") for lines in said for line in lines)
        assert isinstance(await verify_stored(store, "raced"), Intact)


@pytest.mark.rule("J2", "I2")
async def test_two_stores_see_each_others_heads_and_fences(store: PostgresStore, postgres: str) -> None:
    async with await PostgresStore.open(postgres) as second:
        assert (await second.append("run-1", 2, [draft("b")])).offset == LENGTH
        assert (await store.append("run-1", 2, [draft("c")])).offset == LENGTH + 1
        await second.raise_fence("run-1", 3)
        assert (await store.get("run-1")).fence_epoch == 3
        calls = [s.append("run-1", 3, [draft(f"{n}-{k}")]) for n in range(20) for k, s in enumerate((store, second))]
        await asyncio.gather(*calls)
        assert [r.seq for r in await store.read("run-1")] == list(range(LENGTH + 42))
        assert isinstance(await verify_stored(second, "run-1"), Intact)


async def test_two_stores_that_persist_one_run_make_one(postgres: str) -> None:
    async with await PostgresStore.open(postgres) as first, await PostgresStore.open(postgres) as second:
        identity = RunIdentity(tenant="t", run_uid="u", session_id="s")
        new = NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1)
        made = await asyncio.gather(*(s.persist(new) for _ in range(5) for s in (first, second)))
        assert made == [made[0]] * 10
        assert len(await first.changes()) == 1


# --- group commit -----------------------------------------------------------------------------------------------------


async def test_writers_of_one_moment_share_a_commit_and_a_refusal_is_its_callers_alone(
    store: PostgresStore, other: Connection
) -> None:
    for n in range(16):
        await admitted(store, f"w{n}", 1)
    before = other.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()

    def refuse(_: object) -> None:
        raise LookupError("the guard's own")

    calls = [store.append(f"w{n}", 1, [draft("a")]) for n in range(16)]
    calls += [store.append("w0", 1, [draft("b")], guard=refuse), store.append("w0", 1, [draft("c")])]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    after = other.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert [getattr(o, "offset", o) for o in outcomes[:16]] == [0] * 16
    assert isinstance(outcomes[16], LookupError)
    assert getattr(outcomes[17], "offset", None) == 1
    assert before is not None
    assert after is not None
    assert after[0] - before[0] <= 2 + 1, "two transactions took a number: the group's, and this question's own"


async def test_what_the_database_cant_hold_harms_nobody_beside_it(store: PostgresStore) -> None:
    calls: list[Any] = [
        store.append("run-1", 2, [draft("good")]),
        store.append("run-1", 2, [draft("a", attachments={"x": BlobRef("\0" * 64, 1)})]),
        store.append("run\0", 2, [draft("a")]),
        store.append("run\ud800", 2, [draft("a")]),
        store.append("run-1", 2, [draft("a\0")]),
        store.get("run\0"),
    ]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert getattr(outcomes[0], "offset", outcomes[0]) == LENGTH
    assert [type(o) for o in outcomes[1:]] == [InvalidDraft, UnknownRun, UnknownRun, InvalidDraft, UnknownRun]
    assert await store.find_pod("p\0") is None


async def test_closing_commits_what_waits_and_a_closed_store_says_so(store: PostgresStore, postgres: str) -> None:
    waiting = asyncio.create_task(store.append("run-1", 2, [draft("a")]))
    await asyncio.sleep(0)
    await store.close()
    assert (await waiting).offset == LENGTH
    for call in (store.append("run-1", 2, [draft("b")]), store.get("run-1")):
        with pytest.raises(StoreUnavailable, match="closed"):
            await call


# --- a server that is lost --------------------------------------------------------------------------------------------


def backends(connection: Connection) -> list[int]:
    """Processes that serve the store."""
    found = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'moorage'").fetchall()
    return [pid for (pid,) in found]


async def test_a_connection_that_was_ended_is_opened_again(store: PostgresStore, other: Connection) -> None:
    for pid in backends(other):
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    assert len(await store.read("run-1")) == LENGTH
    assert (await store.append("run-1", 2, [draft("a")])).offset == LENGTH
    for pid in backends(other):
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    identity = RunIdentity(tenant="t", run_uid="run-2", session_id="s")
    new = NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1)
    assert (await until_there(lambda: store.persist(new))).run_uid == "run-2"


async def until_there(call: Callable[[], Any]) -> Any:
    """Ask again as the gateway's callers do: on 503, for a while."""
    for _ in range(400):
        try:
            return await call()
        except (StoreUnavailable, StoreBusy):
            await asyncio.sleep(0.05)
    return await call()


async def test_a_server_that_isnt_there_is_told_without_its_password(tmp_path: Path) -> None:
    for dsn in (
        f"host={tmp_path} user=moorage password=hunter2",
        "host=127.0.0.1 port=1 password=hunter2",
        "postgresql://moorage:hunter2@[broken",
        "password=hunter2 nonsense",
    ):
        with pytest.raises(StoreUnavailable) as told:
            await PostgresStore.open(dsn)
        assert "hunter2" not in str(told.value)
        assert told.value.__cause__ is None


# --- migrations -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("J11")
@pytest.mark.parametrize("version", range(len(released("postgres")) + 1))
async def test_every_released_schema_comes_up_to_date_with_its_data(postgres: str, version: int) -> None:
    steps = released("postgres")
    old = await connect(postgres)
    assert await migrate(old, steps[:version]) == version
    if version:
        await old.execute(
            "INSERT INTO executions (run_uid, tenant, session_id, name, spec_hash, created_at, status, version, "
            "fence_epoch, next_seq, logical_time, sealed, change_cursor) "
            "VALUES ('u', 't', 's', 'n', 'h', 1, 'PAUSED', 4, 7, 0, 0, false, nextval('change_cursors'))"
        )
    await old.close()
    async with await PostgresStore.open(postgres) as store:
        pending = await store.list_pending()
        assert [(row.run_uid, row.version, row.fence_epoch) for row in pending] == [("u", 4, 7)][:version]
        assert await migrate(await store._writer._link.get(), steps) == 0


async def test_a_database_of_another_or_a_newer_version_is_refused(store: PostgresStore) -> None:
    db = await store._writer._link.get()
    known = released("postgres")
    edited = Migration(1, known[0].name, known[0].sql + "-- changed")
    with pytest.raises(SchemaMismatch, match=r"another 0001_executions\.sql"):
        await migrate(db, [edited, *known[1:]])
    with pytest.raises(SchemaMismatch, match=r"at migration \d+, this version knows 0"):
        await migrate(db, [])


async def test_a_migration_is_whole_or_not_there(postgres: str) -> None:
    db = await connect(postgres)
    good = Migration(
        1, "0001_a.sql", "CREATE TABLE a (x int);\n-- a comment; with a semicolon\nCREATE TABLE b (x int);"
    )
    bad = Migration(2, "0002_b.sql", "CREATE TABLE c (x int);\nCREATE TABLE a (x int);\n")
    with pytest.raises(StoreUnavailable, match="DuplicateTable"):
        await migrate(db, [good, bad])
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema ORDER BY 1"
    assert await (await db.execute(tables)).fetchall() == []
    assert await migrate(db, [good]) == 1
    assert await (await db.execute(tables)).fetchall() == [("a",), ("b",), ("schema_migrations",)]
    await db.close()


async def test_many_gateways_may_open_a_fresh_database_at_once(postgres: str) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(postgres) for _ in range(6)))
    for store in stores:
        await store.close()


# --- the gateway's process --------------------------------------------------------------------------------------------


async def test_a_gateway_that_is_given_a_connection_string_keeps_no_journal_on_its_volume(
    postgres: str, tmp_path: Path
) -> None:
    variables = {"MOORAGE_DATA_DIR": str(tmp_path), "MOORAGE_OPERATOR_ACCOUNT": "operator"}
    assert Environment.read(variables).store_dsn is None
    assert Environment.read(variables | {"MOORAGE_JOURNAL_RETENTION": ""}).journal_retention_ms is None
    assert Environment.read(variables | {"MOORAGE_JOURNAL_RETENTION": "48h"}).journal_retention_ms == 48 * 3_600_000
    env = Environment.read(variables | {"MOORAGE_STORE_DSN": f"{postgres} password=hunter2"})
    assert "hunter2" not in repr(env)
    async with open_stores(env.data, StepClock(), env.store_dsn) as kept:
        assert isinstance(kept.store, PostgresStore)
        await admitted(kept.store)
    assert not (tmp_path / "moorage.db").exists()


if __name__ == "__main__":
    asyncio.run(race(sys.argv[1], int(sys.argv[2])))
