"""Part `takeover`: from a process's death to the run's next step, on this machine without a cluster.

A run whose agent takes one step in each attempt and then sleeps. Its owner (`moorage run`) is killed and started again
by the same command; its runner alone is killed, or stopped (SIGSTOP) for longer than `timeouts.noProgress`, which a run
without a cluster has in a Lease's place, and its owner starts another attempt. A step is there when its iteration's
record is in the journal, which is looked at every few milliseconds.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from e2e.bench.figures import Aim, Figure, Report
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from moorage.procfs import below, processes
from moorage.testing.trees import ENV, git

ROUNDS, FROZEN = 7, 1
PATIENCE_S = 15
AGENT = """
echo $MOORAGE_NEXT_ITERATION >> all.txt
echo '{"moorage": {"event": "iteration"}}'
exec sleep 600
"""
LOOK_S = 0.003
FRESH = "`moorage run` begun anew, to its first step"


@dataclass
class Found:
    """Seconds, one sample each round."""

    fresh: list[float] = field(default_factory=list)
    python: list[float] = field(default_factory=list)
    owner: list[float] = field(default_factory=list)
    runner: list[float] = field(default_factory=list)
    frozen: list[float] = field(default_factory=list)


class Job:
    """A repository, a manifest, a state folder, and `moorage run` over them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._owner: subprocess.Popen[bytes] | None = None
        repository = root / "repository"
        repository.mkdir(parents=True)
        git(repository, "init", "-q", "-b", "main")
        (repository / "README").write_text("steps\n")
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", "Begin")
        (root / "run.yaml").write_text(yaml.safe_dump(_manifest()))

    def start(self) -> None:
        """The same command as ever."""
        program = Path(sys.executable).parent / "moorage"
        argv = [
            str(program),
            "run",
            "-f",
            str(self._root / "run.yaml"),
            "--state",
            str(self._root / "state"),
            "-o",
            "json",
        ]
        with (self._root / "said").open("ab") as said:
            self._owner = subprocess.Popen(
                argv, env={**ENV, "HOME": str(self._root), "TMPDIR": tempfile.gettempdir()}, stdout=said, stderr=said
            )

    @property
    def owner(self) -> "subprocess.Popen[bytes]":
        if self._owner is None:
            raise HarnessError("the run hasn't been started")
        return self._owner

    def kill(self) -> None:
        """SIGKILL to its owner."""
        self.owner.kill()
        self.owner.wait()

    def runner(self) -> int:
        """The process of the runner that works now."""
        table = processes()
        for pid in sorted(below({self.owner.pid}, table), reverse=True):
            with contextlib.suppress(OSError):
                if b"moorage.runner" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
        raise HarnessError("no runner is at work")

    def steps(self) -> int:
        """Iterations that the journal holds."""
        return self._count('"type":"ITERATION_COMPLETE"')

    def until_step(self, number: int, within_s: float = 120.0) -> float:
        """When it was there. Raises HarnessError with what the run said where it isn't."""
        until = time.monotonic() + within_s
        while self.steps() < number:
            if time.monotonic() > until or self.owner.poll() is not None:
                raise HarnessError(f"no step {number}: {(self._root / 'said').read_text(errors='replace')[-2000:]}")
            time.sleep(LOOK_S)
        return time.monotonic()

    def check(self, steps: int) -> None:
        """Each step once, and no trace of an error in what the run said. Raises HarnessError."""
        said = (self._root / "said").read_text(errors="replace")
        if "Error:" in said or "exception=" in said:
            raise HarnessError(f"the run said {said[-4000:]}")
        with self._journal() as db:
            told = db.execute("SELECT count(*), count(DISTINCT record_id) FROM execution_events").fetchone()
        if self.steps() != steps or told[0] != told[1]:
            raise HarnessError(f"{self.steps()} of {steps} steps, {told}")

    def close(self) -> None:
        """Cancel it and wait for its end."""
        if self._owner is not None and self._owner.poll() is None:
            self._owner.send_signal(signal.SIGINT)
            self._owner.wait()

    def _count(self, word: str) -> int:
        if not (self._root / "state/gateway/moorage.db").is_file():
            return 0
        with contextlib.suppress(sqlite3.OperationalError), self._journal() as db:  # it is made at this moment
            found: int = db.execute(
                "SELECT count(*) FROM execution_events WHERE instr(body, ?)", (word.encode(),)
            ).fetchone()[0]
            return found
        return 0

    @contextmanager
    def _journal(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(f"file:{self._root}/state/gateway/moorage.db?mode=ro", uri=True)) as db:
            yield db


def _manifest() -> dict[str, Any]:
    spec = {
        "workspace": {"local": {"path": "./repository"}},
        "goal": "Count.",
        "agent": {"driver": "command", "command": ["sh", "-euc", AGENT]},
        "constraints": {"maxIterations": 100},
        "timeouts": {"noProgress": f"{PATIENCE_S}s"},
        "delivery": {"branch": "moorage/steps"},
    }
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "steps"}, "spec": spec}


def measure(console: Console) -> Report:
    """In temporary folders, one for each round."""
    found = Found()
    with tempfile.TemporaryDirectory(prefix="mb-") as folder:  # short: sockets live below it
        for n in range(ROUNDS):
            with console.step(f"round {n + 1} of {ROUNDS}"):
                _round(Path(folder) / f"{n}", found, frozen=n < FROZEN)
    return _report(found)


def _round(root: Path, found: Found, *, frozen: bool) -> None:
    job = Job(root)
    try:
        found.python.append(_timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
        found.fresh.append(_until(job, 1, job.start))
        found.owner.append(_until(job, 2, lambda: _again(job)))
        found.runner.append(_until(job, 3, lambda: os.kill(job.runner(), signal.SIGKILL)))
        if frozen:
            found.frozen.append(_until(job, 4, lambda: os.kill(job.runner(), signal.SIGSTOP)))
        job.check(4 if frozen else 3)
    finally:
        job.close()


def _again(job: Job) -> None:
    job.kill()
    job.start()


def _until(job: Job, step: int, happens: Callable[[], object]) -> float:
    began = time.monotonic()
    happens()
    return job.until_step(step) - began


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def _report(found: Found) -> Report:
    return Report(
        "takeover",
        [
            Figure("owner killed, the same command again → next step", "s", found.owner, found.fresh, FRESH, Aim(2)),
            Figure("runner killed → next step", "s", found.runner, found.fresh, FRESH, Aim(2)),
            Figure("runner stopped → next step", "s", found.frozen, [PATIENCE_S], "`timeouts.noProgress`"),
            Figure("`moorage run` begun anew, to its first step", "s", found.fresh, found.python, "`python -c pass`"),
        ],
        [
            "after each round every step is in the journal once: 0 duplicates, 0 acknowledged records lost; "
            "no run told of an error of its own",
        ],
        [
            "Local runs, SQLite (WAL, FULL), a command agent in bubblewrap where there is one; the time includes all "
            "starts of processes, and the stopped runner's its grace."
        ],
        found.__dict__,
    )
