"""Part `journal`: durable appends and replay, by tests/perf/bench_journal.py, on the file system of the raw samples."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.bench.figures import Aim, Figure, Report
from e2e.cluster.console import Console
from e2e.cluster.paths import CHECKOUT, cache_root
from e2e.cluster.postgres import ensure_postgres
from moorage.testing.postgres import programs

SCRIPT = CHECKOUT / "tests" / "perf" / "bench_journal.py"
# by the beginning of a figure's name: what its baseline is, and the aim
ABOUT: dict[str, tuple[str, Aim | None]] = {
    "append, acknowledged": ("fdatasync of 4 KiB", Aim(1 / 0.6, "ratio")),
    "append of": ("fdatasync of as many KiB", None),
    "append against a bare": ("bare SQLite row, FULL", Aim(0.6)),
    "appends of 16": ("one after the other", Aim(10_000, least=True)),
    "append in PostgreSQL": ("INSERT of 1 KiB, committed in the same round trip", None),
    "in PostgreSQL, appends": ("one after the other", None),
    "peak memory": ("the same process, nothing verified", Aim(100)),
    "verify and replay": ("sha256 and orjson of the same bytes", Aim(2.5, "ratio")),
    "verify": ("sha256 and orjson of the same bytes", Aim(2.5, "ratio")),
}


def measure(folder: Path) -> Report:
    """Run the script and read its raw samples."""
    ensure_postgres(Console(), cache_root())
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "journal-samples.json"
    subprocess.run([sys.executable, str(SCRIPT), "--folder", str(folder), "--raw", str(raw)], check=True, cwd=CHECKOUT)
    return Report(
        "journal",
        [_figure(each) for each in json.loads(raw.read_text())],
        ["every chain of the 16 runs, in both stores, verified whole after the appends: 0 acknowledged records lost"],
        [
            "fsync policy: SQLite WAL, synchronous=FULL, one commit and one sync before each acknowledgement; "
            "PostgreSQL's own: fsync and synchronous_commit on.",
            f"{_postgres()}: a server of the bench's own, on the same cores, over a unix socket.",
        ],
    )


def _postgres() -> str:
    version = [programs() / "postgres", "--version"]
    return subprocess.run(version, check=True, capture_output=True, text=True).stdout.strip()


def _figure(found: dict[str, Any]) -> Figure:
    against, aim = next(
        (about for start, about in ABOUT.items() if found["name"].startswith(start)), ("baseline", None)
    )
    return Figure(found["name"], found["unit"], found["ours"], found["baseline"], against, aim)
