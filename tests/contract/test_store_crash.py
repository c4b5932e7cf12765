"""K1 for the journal: a writer is killed at any instant, and what it was told to be durable is there (J3)."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moorage.core.journal.chain import Intact
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.store.blobs import FileBlobs, dangling, externalise
from moorage.store.port import NewExecution
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore

pytestmark = pytest.mark.timeout(180)  # each case starts processes that are killed

RUNS = ("run-1", "run-2", "run-3")
ROUNDS = 8


def draft(record_id: str, size: int) -> Draft:
    return Draft(record_id=record_id, type=RecordType.AGENT_OUTPUT, recorded_at=1, source=Source.RUNNER,
                 assurance=Assurance.REPORTED, payload={"x": "y" * size})  # fmt: skip


def blobs_beside(path: Path) -> FileBlobs:
    return FileBlobs(path.parent / "blobs", lambda: int(time.time() * 1000))


async def write_until_killed(path: Path, life: int) -> None:
    """Append to several runs at once, batches of several sizes, and tell each acknowledgement to the parent."""
    store, blobs = SqliteStore(path), blobs_beside(path)
    for run_uid in RUNS:
        identity = RunIdentity(tenant="t", run_uid=run_uid, session_id="s")
        await store.persist(NewExecution(identity=identity, name=run_uid, spec_hash="h", spec={}, created_at=1))
        await store.raise_fence(run_uid, life)

    async def write(run_uid: str) -> None:
        for n in range(1_000_000):
            batch = [draft(f"{life}.{n}.{k}", 10 + (n * 997) % 9000) for k in range(1 + n % 3)]
            if n % 4 == 0:
                batch.append(await externalise(draft(f"{life}.{n}.big", 70_000 + n), blobs, "t"))
            result = await store.append(run_uid, life, batch)
            sys.stdout.write("".join(f"{run_uid} {r.seq} {r.hash}\n" for r in result.records))
            sys.stdout.flush()
            await asyncio.sleep(0)

    await asyncio.gather(*(write(run_uid) for run_uid in RUNS))


def live_and_die(path: Path, life: int, seconds: float) -> list[tuple[str, int, str]]:
    """Start a writer, SIGKILL it some time after its first acknowledgement, and return all of them."""
    command = [sys.executable, __file__, str(path), str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(seconds)
        writer.send_signal(signal.SIGKILL)
        lines = [first, *writer.stdout.read().splitlines(keepends=True)]
    assert writer.returncode == -signal.SIGKILL
    told = (line.split() for line in lines if line.endswith("\n"))
    return [(run_uid, int(seq), digest) for run_uid, seq, digest in told if len(digest) == 64]


async def check_blobs(store: SqliteStore, path: Path) -> None:
    """J8: whatever a record names is there and whole; what a crash left behind is an orphan and can go."""
    blobs, referenced = blobs_beside(path), await store.referenced_blobs("t")
    assert await dangling(blobs, "t", referenced) == []
    await blobs.collect_orphans("t", referenced, 10**15)
    assert set(await blobs.digests("t")) == referenced
    for run_uid in RUNS:
        for record in await store.read(run_uid, 0, 1_000_000):
            for ref in record.blobs:
                assert len(await blobs.get("t", ref)) == ref.size


@pytest.mark.rule("J3", "J8", "I1")
async def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path, chance = tmp_path / "journal.db", random.Random(4)
    acknowledged: dict[tuple[str, int], str] = {}
    for life in range(1, ROUNDS + 1):
        told = await asyncio.to_thread(live_and_die, path, life, chance.uniform(0, 0.15))
        assert told
        assert not acknowledged.keys() & {(run_uid, seq) for run_uid, seq, _ in told}, "an offset was given twice"
        acknowledged |= {(run_uid, seq): digest for run_uid, seq, digest in told}
        async with SqliteStore(path) as store:
            kept = {(r, e.seq): e.hash for r in RUNS for e in await store.read(r, 0, 1_000_000)}
            assert kept.items() >= acknowledged.items()
            for run_uid in RUNS:
                assert isinstance(await verify_stored(store, run_uid), Intact)
                assert (await store.recover(run_uid)).fence_epoch == life
            await check_blobs(store, path)


if __name__ == "__main__":
    asyncio.run(write_until_killed(Path(sys.argv[1]), int(sys.argv[2])))
