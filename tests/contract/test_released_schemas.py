"""J11: databases that every released schema's own code wrote are opened, believed and gone on with by this version.

tests/released has them, and the script that makes them. What is there is taken as it comes.
"""

import json
import lzma
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.contract.test_gateway_snapshots import Gateway
from tests.contract.test_journal_repair import Damaged
from tests.released.write_runs import draft as told_again
from tests.released.write_runs import state_hash

from moorage.core.journal.chain import Broken, Intact
from moorage.core.journal.errors import JournalCorrupted
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.pruning import KIND_OF_STATEMENT, Pruned
from moorage.core.journal.record import Assurance, Draft, RecordType, Source
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import replay
from moorage.store.errors import Fenced, RunSealed, SchemaMismatch
from moorage.store.migrations import released
from moorage.store.port import DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore
from moorage.testing.postgres import PostgresServer

pytestmark = pytest.mark.timeout(240)  # some cases start a process for each statement of all migrations
FOLDER = Path(__file__).parents[1] / "released"
KEPT = [(path.stem.split("-")[0], int(path.stem.split("-")[1])) for path in sorted(FOLDER.glob("*-*.json"))]
OLDEST = [("postgres", 1), ("sqlite", 1)]
Rows = list[tuple[Any, ...]]

SCHEMA = {
    "sqlite": ["SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2"],
    "postgres": [
        "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default "
        "FROM information_schema.columns WHERE table_schema = current_schema ORDER BY 1, 3",
        "SELECT tablename, replace(indexdef, current_schema || '.', '') FROM pg_indexes "
        "WHERE schemaname = current_schema ORDER BY 1, 2",
        "SELECT c.relname, t.tgname, t.tgenabled, replace(pg_get_triggerdef(t.oid), current_schema || '.', '') "
        "FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "WHERE c.relnamespace = current_schema::regnamespace AND NOT t.tgisinternal ORDER BY 1, 2",
        "SELECT c.relname, s.conname, replace(pg_get_constraintdef(s.oid), current_schema || '.', '') "
        "FROM pg_constraint s JOIN pg_class c ON c.oid = s.conrelid "
        "WHERE c.relnamespace = current_schema::regnamespace ORDER BY 1, 2",
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = current_schema::regnamespace ORDER BY 1",
    ],
}


@dataclass
class Old:
    """A database as that version left it."""

    dialect: str
    where: str
    runs: dict[str, dict[str, Any]]

    async def open(self) -> Any:
        return SqliteStore(Path(self.where)) if self.dialect == "sqlite" else await PostgresStore.open(self.where)

    def ask(self, *statements: str) -> Rows:
        """What somebody sees who opens the database without Moorage."""
        with raw(self.dialect, self.where) as db:
            return [tuple(row) for statement in statements for row in db.execute(statement).fetchall()]

    def tell(self, statement: str) -> None:
        with raw(self.dialect, self.where) as db:
            db.execute(statement)

    def migrations(self) -> list[int]:
        return [number for (number,) in self.ask("SELECT number FROM schema_migrations ORDER BY 1")]


@contextmanager
def raw(dialect: str, where: str) -> Iterator[Any]:
    opened: Any = sqlite3.connect(where) if dialect == "sqlite" else psycopg.connect(where)
    with closing(opened), opened:
        yield opened


def unpack(dialect: str, number: int, folder: Path, server: PostgresServer | None) -> Old:
    kept = lzma.decompress((FOLDER / f"{dialect}-{number:04}.{'db' if dialect == 'sqlite' else 'sql'}.xz").read_bytes())
    runs = json.loads((FOLDER / f"{dialect}-{number:04}.json").read_text())
    if server is None:
        path = folder / "journal.db"
        path.write_bytes(kept)
        return Old(dialect, str(path), runs)
    dsn = server.create_database()
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(kept)
    return Old(dialect, dsn, runs)


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path, dialect: str, number: int) -> Old:
    server = request.getfixturevalue("postgres_server") if dialect == "postgres" else None
    return unpack(dialect, number, tmp_path, server)


@pytest.fixture
async def store(old: Old) -> AsyncIterator[DurableExecutionStore]:
    async with await old.open() as opened:
        yield opened


of_every_version = pytest.mark.parametrize(("dialect", "number"), KEPT)
of_the_oldest = pytest.mark.parametrize(("dialect", "number"), OLDEST)


def draft(record_id: str) -> Draft:
    return Draft(record_id=record_id, type=RecordType.AGENT_OUTPUT, recorded_at=1, source=Source.RUNNER,
                 assurance=Assurance.REPORTED, payload={"text": "after"})  # fmt: skip


def test_the_first_released_schemas_have_their_databases() -> None:
    assert set(OLDEST) < set(KEPT)


@of_every_version
async def test_a_database_is_what_its_version_left(old: Old, number: int) -> None:
    assert old.migrations() == list(range(1, number + 1))


@pytest.mark.rule("J11", "J5", "P4")
@of_every_version
async def test_its_runs_verify_and_replay_to_the_state_that_they_had(old: Old, store: DurableExecutionStore) -> None:
    assert old.migrations() == list(range(1, len(released(old.dialect)) + 1))
    for uid, was in old.runs.items():
        row = await store.get(uid)
        told = (row.status.value, row.sealed, row.fence_epoch, row.head.offset, row.head.hash)
        assert told == (was["status"], was["sealed"], was["fence"], was["offset"], was["hash"])
        if was["records"]:
            assert isinstance(await verify_stored(store, uid), Intact)
            records = await store.read(uid)
            assert len(records) == was["records"]
            assert state_hash(replay(records)) == was["state"]
        else:
            gone = await store.pruned(uid)
            assert gone is not None
            assert (gone.last, gone.hash) == (was["offset"], was["hash"])


@of_every_version
async def test_what_hangs_on_its_runs_is_there(old: Old, store: DurableExecutionStore) -> None:
    for uid in old.runs:
        pod = await store.find_pod(f"pod-{uid}")
        assert pod is not None
        assert (pod.run_uid, pod.epoch, pod.role) == (uid, 1, "runner")
    assert (await store.spec("live"))["goal"] == "make the tests pass"
    assert (await store.get_session("local", "session-live")).lineage == ("live",)
    pending = {uid for uid, was in old.runs.items() if was["status"] == "RUNNING" and not was["sealed"]}
    assert {row.run_uid for row in await store.list_pending()} == pending
    assert {change.run_uid for change in await store.changes()} == set(old.runs)
    assert await store.referenced_blobs("local")
    for uid, was in old.runs.items():
        assert len(await store.kept_pushes(uid)) == was.get("pushes", 0)


@pytest.mark.rule("P1")
@of_every_version
async def test_a_gateway_recovers_its_run_and_takes_no_word_of_an_unsigned_snapshot(
    store: DurableExecutionStore,
) -> None:
    run = await Gateway(store).ledger.open("live")
    assert (run.state.phase, run.state.offset) == (RunPhase.RUNNING, 12)


@pytest.mark.rule("J11", "J3", "F3")
@of_every_version
async def test_its_runs_go_on(old: Old, store: DurableExecutionStore) -> None:
    first = (await store.read("live", 0, 1))[0]
    again = await store.append("live", 1, [told_again(first)])
    assert again.duplicates == {first.record_id}
    await store.raise_fence("live", 2)
    done = await store.append("live", 2, [draft("later")])
    assert done.offset == old.runs["live"]["offset"] + 1
    with pytest.raises(Fenced):
        await store.append("live", 1, [draft("late")])
    with pytest.raises(RunSealed):
        await store.append("sealed", 1, [draft("late")])
    assert isinstance(await verify_stored(store, "live"), Intact)
    if "repaired" in old.runs:
        await store.append("repaired", 1, [draft("later")])
        assert isinstance(await verify_stored(store, "repaired"), Intact)


@pytest.mark.rule("I1")
@of_every_version
async def test_its_damage_is_refused_by_name_and_repaired(old: Old, store: DurableExecutionStore) -> None:
    where = "seq = 9 AND run = (SELECT run FROM executions WHERE run_uid = 'finished')"
    await Damaged(store, old.where)._unlocked([(f"UPDATE execution_events SET hash = 'bad' WHERE {where}", ())])
    made = Gateway(store)
    with pytest.raises(JournalCorrupted, match="moorage repair"):
        await made.ledger.open("finished")
    assert isinstance(await verify_stored(store, "finished"), Broken)
    done = await made.ledger.repair("finished", "power cut", "ann")
    assert (done.generation, done.first) == (2, 9)
    assert isinstance(await verify_stored(store, "finished"), Intact)


@pytest.mark.rule("J7")
@of_every_version
async def test_its_sealed_journal_is_pruned_behind_a_tombstone(old: Old, store: DurableExecutionStore) -> None:
    was = old.runs["sealed"]
    gone = Pruned(run_uid="sealed", last=was["offset"], hash=was["hash"], segments=1, generation=1, sealed_at=1,
                  pruned_at=2, reason="its retention is over", state={})  # fmt: skip
    gone = replace(gone, signature=SigningKey.new().say(KIND_OF_STATEMENT, gone.said(), 2))
    await store.prune(gone)
    assert await store.pruned("sealed") == gone
    assert await store.read("sealed") == []
    assert len(await store.read("finished")) == old.runs["finished"]["records"]


@pytest.mark.rule("J11")
@of_every_version
async def test_it_comes_to_the_schema_that_a_fresh_one_has(
    old: Old, store: DurableExecutionStore, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = str(tmp_path / "fresh.db")
    if old.dialect == "postgres":
        where = request.getfixturevalue("postgres_server").create_database()
    fresh = Old(old.dialect, where, {})
    await (await fresh.open()).close()
    for question in SCHEMA[old.dialect]:
        assert old.ask(question) == fresh.ask(question)


@pytest.mark.rule("J11")
@of_every_version
async def test_a_database_of_a_newer_version_is_refused_by_name_and_left_alone(old: Old) -> None:
    old.tell("INSERT INTO schema_migrations (number, name, sha256) VALUES (9999, '9999_later.sql', 'x')")
    before = old.ask(*SCHEMA[old.dialect], "SELECT * FROM schema_migrations ORDER BY 1")
    with pytest.raises(SchemaMismatch, match=r"at migration 9999, this version knows \d+: use a newer moorage"):
        await old.open()
    assert old.ask(*SCHEMA[old.dialect], "SELECT * FROM schema_migrations ORDER BY 1") == before


# --- migrations that are killed, and that meet ------------------------------------------------------------------------


def migrating(where: str, last: int = 0) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.released.migrating", where, str(last)]
    process = subprocess.Popen(argv, cwd=FOLDER.parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def let(*processes: subprocess.Popen[str]) -> list[str]:
    """Let all of them go on at once; what each says last."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate(timeout=200)[0] for process in processes]


@pytest.mark.rule("J11")
@of_the_oldest
def test_a_migration_that_is_killed_is_whole_or_not_there(
    dialect: str, number: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("postgres_server") if dialect == "postgres" else None
    old = unpack(dialect, number, tmp_path, server)
    before = old.ask(*SCHEMA[dialect])
    killed, said = 0, ""
    while not said:
        assert old.ask(*SCHEMA[dialect]) == before
        assert old.migrations() == list(range(1, number + 1))
        said = let(migrating(old.where, killed + 1))[0]
        killed += not said
    assert killed > len(released(dialect))
    assert old.migrations() == list(range(1, len(released(dialect)) + 1))


@pytest.mark.rule("J11")
@of_every_version
async def test_processes_that_migrate_at_once_do_it_once(old: Old) -> None:
    assert let(*[migrating(old.where) for _ in range(3)]) == ["done\n"] * 3
    assert old.migrations() == list(range(1, len(released(old.dialect)) + 1))
    async with await old.open() as store:
        assert isinstance(await verify_stored(store, "live"), Intact)
        assert (await store.get("live")).head.offset == old.runs["live"]["offset"]
