"""A user's machine for tests of `moorage run`: real processes of the real program, and looks at what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contract.counting_agent import AGENT, STEPS

from moorage.testing.trees import ENV, git

MOORAGE = Path(sys.executable).parent / "moorage"
BRANCH = "moorage/steps"
CANARY = "canary-6f1d"
ISOLATED = shutil.which("bwrap") is not None
BUBBLEWRAP = pytest.mark.skipif(not ISOLATED, reason="no bwrap")
GRADES = [
    pytest.param(True, id="bubblewrap", marks=BUBBLEWRAP),
    pytest.param(False, id="plain"),
]


@dataclass
class Machine:
    """A user's machine: a repository, a manifest in the folder beside it, a state folder, and perhaps bubblewrap."""

    root: Path
    isolated: bool
    program: tuple[str, ...] = (str(MOORAGE),)
    armed: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    temporary: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="mt-")))  # short: sockets live here

    def __post_init__(self) -> None:
        self.repository.mkdir()
        git(self.repository, "init", "-q", "-b", "main")
        (self.repository / "README").write_text("steps\n")
        git(self.repository, "add", "-A")
        git(self.repository, "commit", "-qm", "Begin")
        self.write()
        for name, text in ({} if self.isolated else {"bwrap": "#!/bin/sh\nexit 1\n"}).items():
            self.programs.mkdir()
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    @property
    def programs(self) -> Path:
        return self.root / "programs"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def manifest(self) -> Path:
        return self.root / "run.yaml"

    @property
    def env(self) -> dict[str, str]:
        path = f"{self.programs}:{ENV['PATH']}"
        mine = {"PATH": path, "HOME": str(self.root), "LANG": "C.UTF-8", "TMPDIR": str(self.temporary)}
        return {**mine, "CANARY_TOKEN": CANARY, **self.armed}

    def write(
        self,
        name: str = "steps",
        goal: str = "Count.",
        branch: str = BRANCH,
        agent: str = AGENT,
        check: str = f"test $(wc -l < all.txt) = {STEPS}",
        **more: Any,
    ) -> None:
        """The manifest; its path is relative to its own folder, which nobody's shell is in."""
        spec = {
            "workspace": {"local": {"path": "./repository"}},
            "goal": goal,
            "agent": {"driver": "command", "command": ["sh", "-euc", agent]},
            "acceptance": [{"name": "all", "run": check, "timeout": "1m"}],
            "constraints": {"maxIterations": 100},
            "delivery": {"branch": branch},
            **more,
        }
        body = {"apiVersion": "moorage.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name}, "spec": spec}
        self.manifest.write_text(yaml.safe_dump(body))

    def start(self, *more: str) -> subprocess.Popen[str]:
        argv = [*self.program, "run", "-f", str(self.manifest), "--state", str(self.state), "-o", "json", *more]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, env=self.env, cwd="/", stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def run(self, *more: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the result as printed, and standard error."""
        process = self.start(*more)
        out, err = process.communicate(timeout=50)
        return process.returncode, json.loads(out) if out else {}, err

    def killed(self, when: Callable[[], bool]) -> bool:
        """Start it and SIGKILL it in that moment; False where it ended before that."""
        process = self.start()
        while process.poll() is None and not when():
            time.sleep(0.01)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL

    def told(self, kind: str, word: str = "") -> int:
        """How many records of that type hold that word, over all runs; 0 as long as there is no store."""
        file = self.state / "gateway" / "moorage.db"
        if not file.is_file():
            return 0
        query = "SELECT 1 FROM execution_events WHERE instr(body, ?) AND instr(body, ?)"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'execution_events'").fetchall():
                return 0
            return len(db.execute(query, (f'"type":"{kind}"'.encode(), word.encode())).fetchall())

    def timeline(self, name: str = "steps") -> str:
        """What `moorage timeline` shows."""
        argv = [str(MOORAGE), "timeline", name, "--state", str(self.state)]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, check=True).stdout

    def doctor(self) -> str:
        """What `moorage doctor` says of this machine."""
        argv = [str(MOORAGE), "doctor", "--state", str(self.state), "-o", "json"]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False).stdout

    def forget_in_specs(self, path: str) -> None:
        """Take a field out of every stored spec, as if an older version had never written it."""
        file = self.state / "gateway" / "moorage.db"
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE execution_specs SET spec = CAST(json_remove(CAST(spec AS TEXT), ?) AS BLOB)", (path,))

    def processes(self) -> list[int]:
        """What runs and has to do with this machine."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    told += str((entry / "cwd").readlink()).encode()
                    if str(self.root).encode() in told:
                        found.append(int(entry.name))
        return found

    def processes_of(self, word: str) -> list[int]:
        """Those of them whose command line has that word."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def close(self) -> None:
        """End what still runs and remove the temporary folder."""
        for process in self.started:
            process.kill()
            process.communicate()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def silent(self) -> bool:
        """Nothing runs any more, given a moment."""
        deadline = time.monotonic() + 40
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def whole(self) -> None:
        """One run's work, once, on the user's branch, and nothing left behind."""
        assert git(self.repository, "show", f"{BRANCH}:all.txt").split() == [str(n) for n in range(1, STEPS + 1)]
        assert self.told("RUN_SUCCEEDED") == self.told("RUN_ADMITTED") == 1
        assert self.told("EFFECT_RECEIPT", "confirmed") + self.told("EFFECT_RECONCILED", "confirmed") == 1
        assert self.told("ITERATION_COMPLETE") == STEPS
        assert self.silent()
        assert list((self.state / "runs").iterdir()) == []
        assert list((self.state / "owners").iterdir()) == []
        assert list(self.temporary.iterdir()) == []
        assert git(self.repository, "worktree", "list").count("\n") == 0
        assert git(self.repository, "status", "--porcelain") == ""
