"""The agent's processes: started as a group of their own, stopped by their whole tree (X2).

The runner is PID 1 of its sandbox, or a child subreaper elsewhere: whatever an agent's process leaves behind becomes a
child of ours. So stopping means: signal every descendant until none is left, however often it forked or changed its
session. Nothing that is not a descendant is ever signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.02
LINE_LIMIT = 1 << 16


def become_subreaper() -> bool:
    """Adopt orphans of our descendants. False where the kernel has no such thing; PID 1 needs none."""
    if os.getpid() == 1:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def descendants(root: int | None = None) -> list[int]:
    """Every live process below `root` (us), by /proc; zombies are left out."""
    top = os.getpid() if root is None else root
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in {"Z", "X"}:
                    parents[int(entry.name)] = int(parent)
    return [pid for pid in parents if _below(pid, top, parents)]


def _below(pid: int, top: int, parents: Mapping[int, int]) -> bool:
    seen = 0
    while pid in parents and seen < len(parents):
        pid, seen = parents[pid], seen + 1
        if pid == top:
            return True
    return False


def reap(spare: frozenset[int]) -> None:
    """Collect the adopted dead, but not the children that somebody waits for."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in spare:
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                os.waitpid(int(entry.name), os.WNOHANG)


def send(pids: Sequence[int], sign: signal.Signals) -> None:
    """Signal processes that may be gone already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


class ChildProcess:
    """One started program and its tree. Implements drivers.port.Child."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        if process.stdout is None or process.stderr is None:
            raise ValueError("a child's outputs are pipes")
        self.stdout = process.stdout
        self.stderr = process.stderr

    async def wait(self) -> int:
        """Exit code; negative for a signal."""
        return await self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP the tree; what it forks in between is frozen by the second look."""
        for _ in range(2):
            send([self.pid, *descendants(self.pid)], signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT the tree."""
        send([*descendants(self.pid), self.pid], signal.SIGCONT)

    async def stop(self, grace: float) -> None:
        """Stdin EOF, SIGTERM, SIGKILL of the tree; returns when nothing of it is left."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        tree = [self.pid, *descendants(self.pid)]
        send(tree, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace)
        await kill_tree(frozenset({self.pid}), tree)
        await self._process.wait()


async def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: bytes | None = None) -> ChildProcess:
    """Start a program in a session of its own. Raises FileNotFoundError, PermissionError."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=LINE_LIMIT,
    )
    if process.stdin is not None and stdin is not None:
        process.stdin.write(stdin)
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        process.stdin.close()
    return ChildProcess(process)


async def kill_tree(spare: frozenset[int], known: Sequence[int], *, patience_s: float = 10.0) -> None:
    """SIGKILL those of `known` that still descend from us, and what they forked meanwhile, until none is left."""
    targets = set(known)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        ours = set(descendants())
        for pid in list(targets & ours):
            targets.update(descendants(pid))
        left = sorted(targets & ours)
        if not left:
            return
        send(left, signal.SIGKILL)
        await asyncio.sleep(POLL_S)
        reap(spare)


async def kill_everything(spare: frozenset[int] = frozenset(), *, patience_s: float = 10.0) -> bool:
    """SIGKILL all that descends from us, until nothing is left. Only for the end of a sandbox."""
    deadline = time.monotonic() + patience_s
    while left := [pid for pid in descendants() if pid not in spare]:
        if time.monotonic() > deadline:
            return False
        send(left, signal.SIGKILL)
        await asyncio.sleep(POLL_S)
        reap(spare)
    return True
