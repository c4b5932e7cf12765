from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moorage.core.journal.record import Assurance, Draft, Record, RecordType, RunIdentity, Source
from moorage.store.errors import Fenced, StoreFull, StoreUnavailable
from moorage.store.group_commit import MAX_BATCH, GroupCommit
from moorage.store.port import AppendResult, NewExecution
from moorage.store.sqlite import SqliteStore

RUNS = 16


def draft(record_id: str, size: int = 10) -> Draft:
    return Draft(record_id=record_id, type=RecordType.AGENT_OUTPUT, recorded_at=1, source=Source.RUNNER,
                 assurance=Assurance.REPORTED, payload={"x": "y" * size})  # fmt: skip


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "journal.db") as opened:
        for n in range(RUNS):
            identity = RunIdentity(tenant="t", run_uid=f"run-{n}", session_id="s")
            await opened.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=n))
            await opened.raise_fence(f"run-{n}", 1)
        yield opened


@pytest.fixture
def commits(store: SqliteStore) -> list[str]:
    seen: list[str] = []
    store._db.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    return seen


async def test_writers_of_one_moment_share_a_commit(store: SqliteStore, commits: list[str]) -> None:
    results = await asyncio.gather(*(store.append(f"run-{n}", 1, [draft("a")]) for n in range(RUNS)))
    assert len(commits) == 1
    assert [r.offset for r in results] == [0] * RUNS


async def test_a_single_writer_has_a_commit_of_its_own(store: SqliteStore, commits: list[str]) -> None:
    for n in range(3):
        await store.append("run-0", 1, [draft(f"r{n}")])
    assert len(commits) == 3


async def test_a_refusal_is_its_callers_alone(store: SqliteStore, commits: list[str]) -> None:
    def refuse(_: Sequence[Record]) -> None:
        raise LookupError("the guard's own")

    good, stale, guarded, late = await asyncio.gather(
        store.append("run-0", 1, [draft("a")]),
        store.append("run-0", 0, [draft("b")]),
        store.append("run-0", 1, [draft("c")], guard=refuse),
        store.append("run-0", 1, [draft("d")]),
        return_exceptions=True,
    )
    assert (type(good), type(stale), type(guarded)) == (AppendResult, Fenced, LookupError)
    assert isinstance(late, AppendResult)
    assert late.offset == 1
    assert [r.record_id for r in await store.read("run-0")] == ["a", "d"]
    assert len(commits) == 1


@pytest.mark.rule("J3")
async def test_a_database_in_trouble_fails_the_whole_batch_and_keeps_nothing_of_it(store: SqliteStore) -> None:
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 8}")
    calls = [store.append(f"run-{n}", 1, [draft("a", 20_000)]) for n in range(RUNS)]
    outcomes: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(o) for o in outcomes] == [StoreFull] * RUNS
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert [await store.read(f"run-{n}") for n in range(RUNS)] == [[]] * RUNS
    assert (await store.append("run-0", 1, [draft("a", 20_000)])).offset == 0


async def test_a_write_that_fails_half_way_is_undone_and_the_others_stay(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "plain.db", isolation_level=None)
    db.execute("CREATE TABLE t (x)")
    group = GroupCommit(db, "plain.db")

    def insert(value: int) -> None:
        db.execute("INSERT INTO t VALUES (?)", (value,))

    def half(value: int) -> None:
        insert(value)
        raise OverflowError(value)

    outcomes = await asyncio.gather(
        *(group.run(partial(work, n)) for n, work in enumerate([insert, half, insert])), return_exceptions=True
    )
    with pytest.raises(OverflowError):
        await group.run(partial(half, 9))
    assert [type(o) for o in outcomes] == [type(None), OverflowError, type(None)]
    assert db.execute("SELECT x FROM t").fetchall() == [(0,), (2,)]
    db.close()


async def test_who_is_cancelled_before_the_commit_wrote_nothing(store: SqliteStore) -> None:
    cancelled = asyncio.create_task(store.append("run-0", 1, [draft("a")]))
    kept = asyncio.create_task(store.append("run-0", 1, [draft("b")]))
    asyncio.get_running_loop().call_soon(cancelled.cancel)
    assert (await kept).offset == 0
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert [r.record_id for r in await store.read("run-0")] == ["b"]
    assert (await store.append("run-0", 1, [draft("a")])).offset == 1


async def test_more_than_a_batch_lets_other_tasks_run_between(store: SqliteStore, commits: list[str]) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    calls = [store.append(f"run-{n % RUNS}", 1, [draft(f"r{n}")]) for n in range(3 * MAX_BATCH + 1)]
    await asyncio.gather(*calls)
    ticking.cancel()
    assert len(commits) == 4
    assert ticks >= 4
    assert [len(await store.read("run-1"))] == [3 * MAX_BATCH // RUNS]


async def test_closing_commits_what_waits(store: SqliteStore, tmp_path: Path) -> None:
    waiting = asyncio.create_task(store.append("run-0", 1, [draft("a")]))
    await asyncio.sleep(0)
    await store.close()
    assert (await waiting).offset == 0
    async with SqliteStore(tmp_path / "journal.db") as again:
        assert len(await again.read("run-0")) == 1


async def test_a_closed_store_says_so(store: SqliteStore) -> None:
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.append("run-0", 1, [draft("a")])
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get("run-0")
