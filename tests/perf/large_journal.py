"""What it takes to recover a run whose journal is several times as large as its gateway's memory.

    python tests/perf/large_journal.py [--folder DIR] [--gib 2] [--limit-mib 512] [--record-kib 32]

Builds the journal in SQLite, then recovers it in processes of their own whose whole address space is limited: once from
the beginning, verified record by record, and once more from the snapshot that the first one took. Beside it, hashing
and parsing the same stored bytes alone. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson
import structlog
from prometheus_client import CollectorRegistry

from moorage.core.journal.chain import link
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.gateway.ledger import Ledger
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.snapshots import Snapshots
from moorage.store.blobs import MemoryBlobs
from moorage.store.peers import Alone
from moorage.store.port import NewExecution
from moorage.store.sqlite import SqliteStore
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.clock import StepClock

RUN = "run-1"
KIB, MIB, GIB = 1024, 1024**2, 1024**3
BATCH = 64
SPEC = {
    "uid": RUN,
    "tenant": "team-a",
    "name": "large",
    "session_id": RUN,
    "placement": "cluster",
    "goal": "x",
    "workspace": {"key": "w", "kind": "ephemeral"},
    "agent": {"driver": "command"},
}


def draft(kind: RecordType, n: int, payload: dict[str, object]) -> Draft:
    return Draft(record_id=f"r{n}", type=kind, recorded_at=n, source=Source.GATEWAY, assurance=Assurance.OBSERVED,
                 payload=payload)  # fmt: skip


async def build(path: Path, size: int, each: int) -> int:
    """Write a journal of so many bytes in records of that size; return how many."""
    async with SqliteStore(path) as store:
        identity = RunIdentity(tenant="team-a", run_uid=RUN, session_id=RUN)
        await store.persist(NewExecution(identity=identity, name="large", spec_hash="h", spec=SPEC, created_at=1))
        await store.raise_fence(RUN, 1, [draft(RecordType.RUN_ADMITTED, 0, {"spec_hash": "h"})])
        records = size // each
        payload: dict[str, object] = {"tool": "x", "text": "y" * (each - 400)}
        for start in range(1, records, BATCH):
            some = range(start, min(start + BATCH, records))
            await store.append(RUN, 1, [draft(RecordType.TOOL_RESPONSE, n, payload) for n in some])
        return (await store.get(RUN)).head.offset + 1


async def recover(path: Path, signing: SigningKey) -> dict[str, float]:
    """Open the run as a gateway does; seconds and the peak of resident memory in MiB."""
    async with SqliteStore(path) as store:
        clock, metrics, settings = StepClock(), GatewayMetrics(CollectorRegistry()), GatewaySettings()
        snapshots = Snapshots(store, signing, metrics, structlog.get_logger(), settings)
        ledger = Ledger(store, MemoryBlobs(clock.now_ms), clock, metrics, settings, snapshots=snapshots, peers=Alone())
        began = time.perf_counter()
        run = await ledger.open(RUN)
        return {"seconds": time.perf_counter() - began, "offset": run.state.offset, "peak": peak_mib()}


async def baseline(path: Path) -> dict[str, float]:
    """Hash and parse the stored bytes, and nothing else."""
    async with SqliteStore(path) as store:
        began, before, records = time.perf_counter(), None, 0
        async for entry in store.stored(RUN):
            before = link(before, entry.body)
            orjson.loads(entry.body)
            records += 1
        return {"seconds": time.perf_counter() - began, "offset": records - 1, "peak": peak_mib()}


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / KIB for line in lines if line.startswith("VmHWM"))


def child(what: str, path: Path, key: Path, limit: int) -> dict[str, float]:
    """Do that in a process whose address space has that limit from its first instruction on."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", what, str(path), str(key)],
        check=True,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def measure(folder: Path | None, size: int, each: int, limit: int) -> str:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path, key = Path(name) / "journal.db", Path(name) / "key.pem"
        key.write_bytes(SigningKey.new().pem)
        records = asyncio.run(build(path, size, each))
        base = child("baseline", path, key, limit)
        whole, again = child("recover", path, key, limit), child("recover", path, key, limit)
        if not whole["offset"] == again["offset"] == records - 1:
            raise SystemExit("a recovery came to another offset")
        on_disk = path.stat().st_size
    machine = f"{os.cpu_count()} cores, {platform.release()}, load {os.getloadavg()[0]:.1f}"
    journal = f"{records} records of {each // KIB} KiB, {on_disk / GIB:.2f} GiB on disk"
    rows = [
        f"{machine}, Python {platform.python_version()}; {journal}; address space {limit // MIB} MiB",
        "",
        "| recovery | time | peak resident memory |",
        "|---|---|---|",
        f"| hashing and parsing the stored bytes alone | {base['seconds']:.2f} s | {base['peak']:.0f} MiB |",
        f"| from the beginning, chain verified | {whole['seconds']:.2f} s | {whole['peak']:.0f} MiB |",
        f"| again, from the snapshot | {again['seconds'] * 1000:.1f} ms | {again['peak']:.0f} MiB |",
    ]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=None, help="where the database lies meanwhile")
    parser.add_argument("--gib", type=float, default=2.0, help="size of the journal")
    parser.add_argument("--limit-mib", type=int, default=512, help="address space of a recovering process")
    parser.add_argument("--record-kib", type=int, default=32, help="size of a record")
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, path, key = options.child
        signing = SigningKey.read(Path(key).read_bytes())
        work = recover(Path(path), signing) if what == "recover" else baseline(Path(path))
        sys.stdout.write(json.dumps(asyncio.run(work)))
        return
    size, each = int(options.gib * GIB), options.record_kib * KIB
    sys.stdout.write(measure(options.folder, size, each, options.limit_mib * MIB))


if __name__ == "__main__":
    main()
