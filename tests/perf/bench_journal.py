"""What a durable append and a replay cost, each beside its null baseline, alternated in the same run.

    python tests/perf/bench_journal.py [--folder DIR] [--raw FILE]

`--folder` says which file system is measured. fsync policy: SQLite in WAL mode with synchronous=FULL, one commit and
one sync before each acknowledgement; group commit shares them between the writers of one turn of the event loop.
PostgreSQL: its defaults (fsync and synchronous_commit on), over a unix socket, in a server of this script's own.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from psycopg import AsyncConnection

from moorage.core.journal.chain import EMPTY, ChainVerifier, Head, head_at, seal, verify
from moorage.core.journal.export import Header, header_line, record_line
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source, Stored, decode
from moorage.core.run.reducer import Replay
from moorage.store.port import DurableExecutionStore, NewExecution
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore
from moorage.testing.postgres import PostgresServer

ROUNDS = 5
APPENDS = 1000
BATCHES = (8, 64)
WRITERS, EACH = 16, 400
RECORDS = 51_200
VERIFIER = """
import sys
from moorage.core.journal.export import verify_export
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        assert verify_export(iter(lambda: file.read(65536), b"")).chain.offset == 51199
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
BODY = {"text": "x" * 640}  # the record around it is 1 KiB


@dataclass
class Figure:
    """A measurement and its baseline: one value per round, in `unit`."""

    name: str
    unit: str
    ours: list[float]
    baseline: list[float]
    aim: str

    def row(self) -> str:
        ours, base = statistics.median(self.ours), statistics.median(self.baseline)
        spread = f"{min(self.ours):.3g}-{max(self.ours):.3g}"
        ratio = f"{ours / base:.2f}"
        return f"| {self.name} | {ours:.3g} {self.unit} ({spread}) | {base:.3g} {self.unit} | {ratio} | {self.aim} |"


def draft(n: int) -> Draft:
    return Draft(record_id=f"r{n}", type=RecordType.TOOL_RESPONSE, recorded_at=n, source=Source.GATEWAY,
                 assurance=Assurance.OBSERVED, payload=BODY, attempt=1, turn=1, step=n)  # fmt: skip


def p50(samples: list[float]) -> float:
    return statistics.median(samples) * 1e3


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield Path(name)


async def opened(path: Path, runs: int) -> SqliteStore:
    store = SqliteStore(path)
    await admit(store, runs)
    return store


async def admit(store: DurableExecutionStore, runs: int) -> None:
    for n in range(runs):
        identity = RunIdentity(tenant="team-a", run_uid=f"run-{n}", session_id="s")
        await store.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=n))
        await store.raise_fence(f"run-{n}", 1)


async def append_of(batch: int, folder: Path) -> tuple[float, float]:
    """Alternate an append of so many records with a write of as many KiB, 4 at least, and fdatasync; ms at p50."""
    size = max(4, batch) * 1024
    with scratch(folder) as place:
        store = await opened(place / "journal.db", 1)
        descriptor = os.open(place / "plain", os.O_CREAT | os.O_RDWR)
        ours, base = [], []
        for n in range(0, APPENDS, batch):
            drafts = [draft(n + k) for k in range(batch)]
            began = time.perf_counter()
            await store.append("run-0", 1, drafts)
            ours.append(time.perf_counter() - began)
            base.append(timed(lambda at=n // batch: plain_write(descriptor, at, size)))
        os.close(descriptor)
        await store.close()
    return p50(ours), p50(base)


def plain_write(descriptor: int, n: int, size: int) -> None:
    os.pwrite(descriptor, b"x" * size, n * size)
    os.fdatasync(descriptor)


async def bare_row(folder: Path) -> tuple[float, float]:
    """One append against one row in a bare table of SQLite with the same durability; ms at p50."""
    with scratch(folder) as place:
        store = await opened(place / "journal.db", 1)
        bare = sqlite3.connect(place / "bare.db", isolation_level=None)
        bare.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (k INTEGER PRIMARY KEY, b)"
        )
        body = b"x" * 1024
        ours, base = [], []
        for n in range(APPENDS):
            began = time.perf_counter()
            await store.append("run-0", 1, [draft(n)])
            ours.append(time.perf_counter() - began)
            base.append(timed(lambda: bare.execute("INSERT INTO t (b) VALUES (?)", (body,))))
        bare.close()
        await store.close()
    return p50(ours), p50(base)


async def postgres_append(dsn: str) -> tuple[float, float]:
    """One append against one bare INSERT, committed in the same round trip, over the same driver; ms at p50."""
    body = b"x" * 1024
    async with await PostgresStore.open(dsn) as store, await AsyncConnection.connect(dsn, autocommit=True) as bare:
        await admit(store, 1)
        await bare.execute("CREATE TABLE bare (k BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b BYTEA)")
        ours, base = [], []
        for n in range(APPENDS):
            began = time.perf_counter()
            await store.append("run-0", 1, [draft(n)])
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            await bare.execute("INSERT INTO bare (b) VALUES (%b)", (body,), prepare=True)
            base.append(time.perf_counter() - began)
    return p50(ours), p50(base)


async def postgres_grouped(dsn: str) -> tuple[float, float]:
    async with await PostgresStore.open(dsn) as store:
        await admit(store, WRITERS)
        return await rates(store)


def on_postgres(kind: Callable[[str], Coroutine[Any, Any, tuple[float, float]]]) -> tuple[list[float], list[float]]:
    """Every round in an empty schema of one server, which keeps its cluster where temporary files lie."""
    with PostgresServer({"shared_buffers": "128MB"}) as server:
        pairs = []
        for _ in range(ROUNDS):
            with server.schema() as dsn:
                pairs.append(asyncio.run(kind(dsn)))
        return rounds(pairs)


async def grouped(folder: Path) -> tuple[float, float]:
    """Appends per second by 16 writers to 16 runs, against the same ones one after the other."""
    with scratch(folder) as place:
        store = await opened(place / "journal.db", WRITERS)
        found = await rates(store)
        await store.close()
    return found


async def rates(store: DurableExecutionStore) -> tuple[float, float]:
    """The same, of an open store."""

    async def write(run: int, start: int, count: int) -> None:
        for n in range(start, start + count):
            await store.append(f"run-{run}", 1, [draft(n)])

    began = time.perf_counter()
    await asyncio.gather(*(write(run, 0, EACH) for run in range(WRITERS)))
    together = WRITERS * EACH / (time.perf_counter() - began)
    began = time.perf_counter()
    for run in range(WRITERS):
        await write(run, EACH, EACH // 8)
    alone = WRITERS * (EACH // 8) / (time.perf_counter() - began)
    assert all([(await verify_stored(store, f"run-{n}")).offset == EACH + EACH // 8 - 1 for n in range(WRITERS)])
    return together, alone


def journal() -> tuple[list[Stored], Head]:
    run = RunIdentity(tenant="team-a", run_uid="run-0", session_id="s")
    entries = seal((draft(n) for n in range(RECORDS)), EMPTY, run, 1)
    return entries, head_at(decode(entries[-1]))


def replay(entries: list[Stored]) -> None:
    """Verify and reduce, as a gateway does that opens a run."""
    verifier, replayed = ChainVerifier(), Replay()
    for entry in entries:
        assert verifier.feed(entry) is None
        assert verifier.last is not None
        replayed.feed(verifier.last)
    assert replayed.state.usage.tool_calls == RECORDS


def hash_and_parse(entries: list[Stored]) -> None:
    for entry in entries:
        hashlib.sha256(entry.body).hexdigest()
        orjson.loads(entry.body)


def verify_memory(folder: Path, entries: list[Stored], head: Head) -> tuple[float, float]:
    """Peak MiB of a process that verifies the exported journal, against one that only imports what that takes."""
    header = Header(tenant="team-a", run_uid="run-0", name="n", spec_hash="h", offset=head.offset, hash=head.hash)
    with scratch(folder) as place:
        path = place / "exported.journal"
        path.write_bytes(b"".join([header_line(header), *map(record_line, entries)]))
        return peak(str(path)), peak()


def peak(*arguments: str) -> float:
    output = subprocess.run([sys.executable, "-c", VERIFIER, *arguments], check=True, capture_output=True).stdout
    return int(output) / 1024


def rounds(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [ours for ours, _ in pairs], [base for _, base in pairs]


def measure(folder: Path) -> list[Figure]:
    def repeat(kind: Callable[[Path], object]) -> tuple[list[float], list[float]]:
        return rounds([asyncio.run(kind(folder)) for _ in range(ROUNDS)])  # type: ignore[arg-type]

    about = "append of {0} at once, against fdatasync of {0} KiB (p50)"
    batches = [Figure(about.format(n), "ms", *repeat(partial(append_of, n)), "") for n in BATCHES]
    entries, head = journal()
    size = sum(len(e.body) for e in entries) / RECORDS
    verified = [(timed(lambda: verify(entries)), timed(lambda: hash_and_parse(entries))) for _ in range(ROUNDS)]
    replays = [(timed(lambda: replay(entries)), timed(lambda: hash_and_parse(entries))) for _ in range(ROUNDS)]
    return [
        Figure(
            "append, acknowledged after fsync, against fdatasync (p50)", "ms", *repeat(partial(append_of, 1)), "<= 1.67"
        ),
        *batches,
        Figure("append against a bare SQLite row (p50)", "ms", *repeat(bare_row), "<= 0.6 ms"),
        Figure("appends of 16 runs together against one by one", "/s", *repeat(grouped), ">= 10000/s"),
        Figure("append in PostgreSQL against a bare INSERT (p50)", "ms", *on_postgres(postgres_append), ""),
        Figure("in PostgreSQL, appends of 16 runs together", "/s", *on_postgres(postgres_grouped), ""),
        Figure(
            "peak memory of verifying them, exported", "MiB", *rounds([verify_memory(folder, entries, head)]), "<= 100"
        ),
        Figure(f"verify {RECORDS} records of {size:.0f} bytes", "s", *rounds(verified), "<= 2.5"),
        Figure(f"verify and replay {RECORDS} records of {size:.0f} bytes", "s", *rounds(replays), "<= 2.5"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None, help="where the databases lie while they are measured")
    parser.add_argument("--raw", type=Path, default=None, help="write each round's value as JSON")
    options = parser.parse_args()
    figures = measure(options.folder)
    machine = f"{os.cpu_count()} cores, {platform.release()}, load {os.getloadavg()[0]:.1f}"
    head = "| figure | median (range of 5) | baseline | ratio | aim |\n|---|---|---|---|---|"
    lines = [f"{machine}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}", "", head]
    sys.stdout.write("\n".join([*lines, *(figure.row() for figure in figures)]) + "\n")
    if options.raw:
        options.raw.write_text(json.dumps([asdict(f) for f in figures], indent=1) + "\n")


if __name__ == "__main__":
    main()
