"""The agent's processes: started in a session of their own, stopped by their whole tree (X2).

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from moorage.procfs import below, processes

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.02
REAP_S = 1.0
KILL_S = 10.0
LINE_LIMIT = 1 << 16
_NOTHING = asyncio.subprocess.DEVNULL


def forbid_inspection() -> bool:
    """Keep processes of the same user from reading this one's memory (ptrace, /proc/PID/mem). False where refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0


def become_subreaper() -> bool:
    """Adopt orphans of our descendants. False where the kernel has no such thing; PID 1 needs none."""
    if os.getpid() == 1:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def descendants() -> list[int]:
    """Every live process below us."""
    table = processes()
    return [pid for pid in below({os.getpid()}, table) if not table[pid].zombie]


def family(leader: int) -> list[int]:
    """Live processes below us that come from `leader`: its tree, its session's orphans, and their trees."""
    table = processes()
    ours = below({os.getpid()}, table)
    roots = {pid for pid in ours if pid == leader or table[pid].session == leader}
    return [pid for pid in sorted(roots | below(roots, table)) if not table[pid].zombie]


def newcomers(known: Set[int]) -> list[int]:
    """Live processes below us that are none of `known`, nor come from one of them."""
    table = processes()
    ours = below({os.getpid()}, table)
    return sorted(pid for pid in ours - known - below(ours & known, table) if not table[pid].zombie)


def send(pids: Iterable[int], sign: signal.Signals) -> None:
    """Signal processes that may be gone already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)


@contextlib.contextmanager
def standing_still() -> Iterator[None]:
    """Freeze all that descends from us (SIGSTOP), so that its files stand still; what is started within runs."""
    frozen: set[int] = set()
    try:
        while fresh := set(descendants()) - frozen:  # what was forked while we looked is found by the next look
            send(fresh, signal.SIGSTOP)
            frozen |= fresh
        yield
    finally:
        send(frozen.intersection(descendants()), signal.SIGCONT)


class _Streams(asyncio.subprocess.SubprocessStreamProtocol):
    """Knows when the process itself has ended, also while grandchildren hold its pipes.

    `Process.wait` of Python 3.11 waits for both; an agent that left a daemon behind would never be seen to end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=LINE_LIMIT, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        """The event loop has collected it."""
        super().process_exited()
        self.exited.set()


class ChildProcess:
    """One started program and its tree. Implements drivers.port.Child."""

    def __init__(self, transport: asyncio.SubprocessTransport, streams: _Streams) -> None:
        if streams.stdout is None or streams.stderr is None:
            raise ValueError("a child's outputs are pipes")
        self.pid = transport.get_pid()
        self.stdout, self.stderr = streams.stdout, streams.stderr
        self._transport, self._exited, self._stdin = transport, streams.exited, streams.stdin

    async def wait(self) -> int:
        """Exit code; negative for a signal. What the program left behind may still hold its outputs."""
        await self._exited.wait()
        code = self._transport.get_returncode()
        return -1 if code is None else code

    async def stop(self, grace: float) -> None:
        """Stdin EOF, SIGTERM, after `grace` seconds SIGKILL of the tree; returns when nothing of it is left.

        The grace is the program's own: when that has ended, what it left behind is killed. An orphan that made itself
        a session of its own is nobody's child any more but the sandbox's, and goes with `kill_everything`.
        """
        self.end_input()
        known = family(self.pid)
        if not self._exited.is_set():
            send(known, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), grace)
        await _kill_until_gone(lambda: _still(known, family(self.pid)))
        await self._exited.wait()

    def close(self) -> None:
        """Let go of its outputs; what was not read is lost."""
        self._transport.close()

    def give(self, data: bytes) -> None:
        """Have it written to its stdin as it reads; a program that never reads it is no error."""
        if self._stdin is not None:
            self._stdin.write(data)

    async def say(self, data: bytes) -> None:
        """Write to a stdin that was left open; waits while the program doesn't read. One that is gone hears nothing."""
        if self._stdin is None or self._stdin.is_closing():
            return
        self._stdin.write(data)
        with contextlib.suppress(ConnectionError):  # it has closed its end, or is gone
            await self._stdin.drain()

    def end_input(self) -> None:
        """Close its stdin once what was said is written. Twice is no error."""
        if self._stdin is not None:
            self._stdin.close()


async def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: bytes | None = None, talk: bool = False
) -> ChildProcess:
    """Start a program in a session of its own; with `talk` its stdin stays open after `stdin`. Who is cancelled
    meanwhile leaves nothing of it.

    Raises FileNotFoundError, PermissionError.
    """
    piped = talk or stdin is not None
    starting = asyncio.ensure_future(_start(argv, env, cwd, asyncio.subprocess.PIPE if piped else _NOTHING))
    try:
        child = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _undo(starting)
        raise
    if stdin is not None:
        child.give(stdin)
    if not talk:
        child.end_input()
    return child


async def _start(argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: int) -> ChildProcess:
    loop = asyncio.get_running_loop()
    transport, streams = await loop.subprocess_exec(
        lambda: _Streams(loop),
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    return ChildProcess(transport, streams)


async def _undo(starting: asyncio.Future[ChildProcess]) -> None:
    """End what was started for nobody. It is let come to its start first: half a transport can't be closed."""
    await asyncio.wait({starting})
    if starting.exception() is None:
        child = starting.result()
        await child.stop(0)
        child.close()


def _still(known: list[int], now: list[int]) -> set[int]:
    """Of a family: those that are there now, and those that were and left its session but not us."""
    return set(now) | set(known).intersection(descendants())


async def kill_everything() -> bool:
    """SIGKILL all that descends from us, until nothing is left. Only for the end of a sandbox's work."""
    return await _kill_until_gone(descendants)


async def kill_newcomers(known: Set[int]) -> bool:
    """SIGKILL all that has come to be below us since `known` was all, until nothing of it is left."""
    return await _kill_until_gone(lambda: newcomers(known))


async def _kill_until_gone(targets: Callable[[], Iterable[int]]) -> bool:
    """False where something outlived its SIGKILL (it hangs in the kernel)."""
    deadline = time.monotonic() + KILL_S
    while left := sorted(targets()):
        if time.monotonic() > deadline:
            return False
        send(left, signal.SIGKILL)
        await asyncio.sleep(POLL_S)
    return True


async def reap_orphans() -> None:
    """Collect the adopted dead until cancelled, as PID 1 has to.

    Our own children are collected by the event loop in the moment of their end: who is found dead by two looks is
    waited for by nobody.
    """
    dead: set[int] = set()
    while True:
        me = os.getpid()
        seen = {pid for pid, entry in processes().items() if entry.zombie and entry.parent == me}
        for pid in seen & dead:
            collect(pid)
        dead = seen - dead
        await asyncio.sleep(REAP_S)


def collect(pid: int) -> None:
    """Take a dead child's exit code, unless somebody has."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
