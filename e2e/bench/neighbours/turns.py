"""What every process of the part `durable` shares: standard library alone, for it runs in each one's own environment.

A process says `{"versions": …}` on a line when it is ready. Then, for each line `{"steps": N}` that it reads, it does N
durable steps, a bare write after each, and answers `{"steps": [ms, …], "bare": [ms, …], "kept": N}`; `kept` is what
another connection finds of them in the store. It ends with its standard input.
"""

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULT = "x" * 640
"""What each step returns: Moorage's record around it is 1 KiB."""
ROW = b"x" * 1024


@dataclass
class Turn:
    """Milliseconds, one sample for each step and for each bare write."""

    steps: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    kept: int = 0

    def step(self, began: float) -> None:
        self.steps.append((time.perf_counter() - began) * 1e3)

    def beside(self, write: Callable[[], object]) -> None:
        """Do the bare write."""
        began = time.perf_counter()
        write()
        self.bare.append((time.perf_counter() - began) * 1e3)


def serve(versions: dict[str, str], take: Callable[[int], Turn]) -> None:
    """Answer until standard input ends. What libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(json.dumps({"versions": versions}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(asdict(take(json.loads(line)["steps"]))), file=answers, flush=True)


def bare_row(path: Path, mode: str = "WAL") -> Callable[[], object]:
    """A row of 1 KiB, committed by itself with synchronous=FULL."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.executescript(f"PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL; CREATE TABLE t (k INTEGER PRIMARY KEY, b)")
    return lambda: db.execute("INSERT INTO t (b) VALUES (?)", (ROW,))


def bare_sync(path: Path) -> Callable[[], object]:
    """4 KiB at the end of a file, and fdatasync."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def write() -> None:
        os.write(handle, b"x" * 4096)
        os.fdatasync(handle)

    return write


def count(path: Path, query: str) -> int:
    """What another connection reads from that SQLite file."""
    db = sqlite3.connect(path)
    try:
        found: int = db.execute(query).fetchone()[0]
        return found
    finally:
        db.close()
