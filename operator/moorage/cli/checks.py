"""What `moorage doctor` looks at on this machine: may a local run start here, and how well is it sandboxed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.cli.ports import InterruptedRun

LEAST_GIT = (2, 34)  # Debian 12 has 2.39, Ubuntu 22.04 has 2.34
LEAST_FREE = 64 << 20  # bytes: a journal and the worktree of a small run
TRIAL_S = 10.0


@dataclass(frozen=True)
class Check:
    """One finding. `state` is ok, warn (works, with less) or fail (doesn't work); `hint` says what to do."""

    name: str
    state: str
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "state": self.state, "message": self.message, "hint": self.hint}


def ok(name: str, message: str) -> Check:
    """It is as it should be."""
    return Check(name, "ok", message)


def warn(name: str, message: str, hint: str) -> Check:
    """It works, with less."""
    return Check(name, "warn", message, hint)


def fail(name: str, message: str, hint: str) -> Check:
    """It doesn't work."""
    return Check(name, "fail", message, hint)


@dataclass(frozen=True)
class Tried:
    """What a trial run of a program said."""

    code: int
    out: str


def attempt(*argv: str) -> Tried:
    """Run a program for its exit code and output; one that is missing or hangs has code 127 or 124."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TRIAL_S, check=False, errors="replace")
    except FileNotFoundError:
        return Tried(127, "")
    except subprocess.TimeoutExpired:
        return Tried(124, f"no answer within {TRIAL_S:.0f} s")
    return Tried(done.returncode, done.stdout + done.stderr)


def machine(state: Path) -> list[Check]:
    """All checks of this machine, in the order in which a run would meet them."""
    return [python(), git(attempt("git", "--version")), *sandboxes(), state_folder(state)]


def python() -> Check:
    """The interpreter that runs us."""
    return ok("python", sys.version.split()[0])


def git(tried: Tried) -> Check:
    """Every workspace is git."""
    found = re.search(r"git version (\d+)\.(\d+)", tried.out)
    if tried.code or found is None:
        return fail("git", "git was not found", "install git")
    if (int(found[1]), int(found[2])) < LEAST_GIT:
        least = ".".join(map(str, LEAST_GIT))
        return fail("git", f"{found[0]} is too old", f"install git {least} or later")
    return ok("git", found[0].removeprefix("git version "))


def sandboxes() -> list[Check]:
    """The ways to fence in a local agent; one that works is enough."""
    bubblewrap = attempt("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true")
    runsc = attempt("runsc", "--version")
    return [bubblewrap_check(bubblewrap), runsc_check(runsc)]


def bubblewrap_check(tried: Tried) -> Check:
    """Namespaces for local agents."""
    if tried.code == 0:
        return ok("bubblewrap", f"works ({shutil.which('bwrap')})")
    why = "not installed" if tried.code == 127 else f"does not work here: {tried.out.strip()[:200]}"
    hint = "install bubblewrap; without it a local agent is a plain process of yours and the run shows a lower grade"
    return warn("bubblewrap", why, hint)


def runsc_check(tried: Tried) -> Check:
    """gVisor for local agents; optional beside bubblewrap."""
    if tried.code == 0:
        return ok("runsc", tried.out.splitlines()[0].removeprefix("runsc version "))
    return ok("runsc", "not installed; only runs on a cluster need it")


def interrupted(run: InterruptedRun) -> Check:
    """R7: a run whose process died."""
    go_on = f"moorage run -f {run.manifest or 'ITS-MANIFEST'}"
    hint = run.trouble or f"go on with it: {go_on}; or begin it anew: {go_on} --fresh"
    return warn("interrupted", f"run {run.name} of {run.since} ({run.uid}) has not ended", hint)


def state_folder(state: Path) -> Check:
    """Where journals of local runs are kept."""
    existing = next(p for p in (state, *state.parents) if p.exists())
    if existing.is_dir() and os.access(existing, os.W_OK):
        left = shutil.disk_usage(existing).free
        if left < LEAST_FREE:
            why = f"{state} is on a disk with {left >> 20} MiB left: no journal can go on there"
            return fail("state", why, "make room, or name another folder with --state or XDG_STATE_HOME")
        return ok("state", str(state))
    return fail("state", f"{state} can't be written", "name another folder with --state or XDG_STATE_HOME")
