"""Processes that outlive the harness, told apart from strangers that got the same number later.

A process is named by its id, its start time and the boot it belongs to. Signals go through a pidfd opened before that
name is checked, so a recycled id is never hit.
"""

import json
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessName:
    """One process of one boot; `started` is in clock ticks since boot, as in /proc/PID/stat."""

    pid: int
    started: int
    boot: str

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie doesn't)."""
        return identify(self.pid) == self


def identify(pid: int) -> ProcessName | None:
    """Name the process that has `pid` now; None when there is none or it is a zombie."""
    with suppress(ChildProcessError, PermissionError):
        os.waitpid(pid, os.WNOHANG)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZX":
        return None
    return ProcessName(pid, int(fields[19]), _BOOT_ID.read_text().strip())


def write_pid_file(path: Path, process: ProcessName) -> None:
    """Record a process, whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(process)))
    partial.replace(path)


def read_pid_file(path: Path) -> ProcessName | None:
    """Read a recorded process; None when the file is missing or damaged."""
    try:
        return ProcessName(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def spawn(
    argv: Sequence[str | Path], *, log: Path, pid_file: Path, env: Mapping[str, str] | None = None
) -> ProcessName:
    """Start a program in a session of its own, output appended to `log`, and record it in `pid_file`."""
    command = [str(part) for part in argv]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawnp(
        command[0],
        command,
        {**os.environ, **(env or {})},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_CLOSE, handle) for handle in _inherited()),
        ],
        setsid=True,
    )
    process = identify(pid) or ProcessName(pid, 0, "")
    write_pid_file(pid_file, process)
    return process


def _inherited() -> list[int]:
    """Open files that this process would hand on: a lock among them would be held for as long as the daemon lives."""
    handles = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    found = []
    for handle in handles:
        with suppress(OSError):  # the listing's own handle is closed by now
            if handle > 2 and os.get_inheritable(handle):
                found.append(handle)
    return found


def stop(process: ProcessName, *, grace_s: float = 5.0) -> None:
    """End a process: SIGTERM, then SIGKILL after `grace_s`; returns when it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not process.alive():
            return
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not _gone(handle, grace_s):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            _gone(handle, 10.0)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
        identify(process.pid)


def stop_recorded(pid_file: Path, *, grace_s: float = 5.0) -> None:
    """End the process that a pid file names, if it still is that process, and remove the file."""
    if process := read_pid_file(pid_file):
        stop(process, grace_s=grace_s)
    pid_file.unlink(missing_ok=True)


def _gone(handle: int, timeout_s: float) -> bool:
    return bool(select.select([handle], [], [], timeout_s)[0])
