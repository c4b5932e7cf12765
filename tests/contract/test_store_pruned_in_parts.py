"""J7: a long journal is pruned part by part, each its own transaction, and its tombstone stands from the first on."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contract.killpoint_places import elsewhere
from tests.pruning_process import tombstone
from tests.store_script import admitted, draft

from moorage.core.journal.chain import Intact
from moorage.core.journal.record import BlobRef
from moorage.points import Point
from moorage.store.port import PRUNED_AT_ONCE, DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore
from moorage.testing.killpoints import DSN, Fault, Shot, environment, fired, passed
from moorage.testing.torture import waken

pytestmark = pytest.mark.timeout(180)  # each case starts processes

ROOT = Path(__file__).resolve().parents[2]
PARTS = 3
RECORDS = (PARTS - 1) * PRUNED_AT_ONCE + 9


async def long_and_sealed(store: DurableExecutionStore) -> None:
    await admitted(store)
    ref = BlobRef("ab" * 32, 1)
    await store.append("run-1", 1, [draft(f"r{n}", attachments={"x": ref}) for n in range(RECORDS)])
    await store.delete("run-1", at=3, reason="released")


@pytest.fixture(params=["postgres", "sqlite"])
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One with a sealed long journal; how to open it, and the environment that a process needs to."""
    dsn = request.getfixturevalue("postgres") if request.param == "postgres" else None
    path = tmp_path / "journal.db"

    async def opened() -> DurableExecutionStore:
        return await PostgresStore.open(dsn) if dsn else SqliteStore(path)

    store = await opened()
    await long_and_sealed(store)
    await store.close()
    return opened, path, {DSN: dsn} if dsn else {}


async def pruning(path: Path, environ: dict[str, str]) -> int:
    """A process that prunes it; its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.pruning_process", str(path)),
        cwd=ROOT,
        env={**os.environ, **environ},
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


@pytest.mark.rule("J7", "K1")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_who_prunes_a_journal_a_tombstone_stands_for_all_of_it")
)
@pytest.mark.parametrize("number", [1, 2])
async def test_whatever_befalls_who_prunes_a_journal_a_tombstone_stands_for_all_of_it(
    durable: Any, tmp_path: Path, fault: Fault, points: Sequence[Point], number: int
) -> None:
    opened, path, environ = durable
    trace, (point,) = tmp_path / "trace", points
    shot = Shot(point, number, fault)
    waking = asyncio.create_task(waken(trace, shot)) if fault is Fault.STOP else None
    code = await pruning(path, environ | environment(trace, shot))
    if waking is not None:
        await waking
    assert fired(trace, shot)
    assert (code == 0) is (fault in {Fault.DELAY, Fault.STOP})
    assert code != 0 or passed(trace).count(point) == PARTS
    store = await opened()
    try:
        await stands(store, whole=code == 0)
        if code:
            assert await pruning(path, environ) == 0
            await stands(store, whole=True)
    finally:
        await store.close()


async def stands(store: DurableExecutionStore, *, whole: bool) -> None:
    """The tombstone does, and nothing of what it stands for is read, whether it is there or not."""
    head = (await store.get("run-1")).head
    gone = await store.pruned("run-1")
    assert gone is not None
    assert (gone.last, gone.hash) == (head.offset, head.hash)
    assert await store.read("run-1") == [entry async for entry in store.stored("run-1")] == []
    assert await verify_stored(store, "run-1") == Intact(gone.last, gone.hash)
    assert await store.recover("run-1") == await store.get("run-1")
    assert [row.run_uid for row in await store.list_sealed()] == ([] if whole else ["run-1"])
    assert not whole or await store.referenced_blobs("team-a") == set()


async def test_others_write_between_two_parts(tmp_path: Path) -> None:
    """In SQLite, where everything runs on the event loop's own thread."""
    async with SqliteStore(tmp_path / "journal.db") as store:
        await long_and_sealed(store)
        await admitted(store, "run-2")
        head = (await store.get("run-1")).head
        pruned = asyncio.create_task(store.prune(tombstone(head)))
        written = 0
        while not pruned.done():
            await store.append("run-2", 1, [draft(f"r{written}")])
            written += 1
        await pruned
        await stands(store, whole=True)
        assert written > PARTS
