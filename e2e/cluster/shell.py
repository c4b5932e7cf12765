"""Runs other programs to their end: quietly, with a log, and with an error that shows why."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import CommandFailedError, NotReadyError

_TAIL_LINES = 25


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log; empty when there is none."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run a program and return its standard output.

    Raises:
        CommandFailedError: it exited with another code than 0; the message ends with what it wrote to standard error.
    """
    command = [str(part) for part in argv]
    done = subprocess.run(
        command,
        env=_merged(env),
        cwd=cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        message = f"{' '.join(command)} exited {done.returncode}:\n{done.stderr[-3000:] or done.stdout[-3000:]}"
        raise CommandFailedError(message)
    return done.stdout


def run_logged(
    argv: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    shares_locks: bool = True,
) -> None:
    """Run a long program with its output appended to `log`.

    Args:
        argv: the command.
        log: where its output goes.
        env: variables beside our own.
        cwd: where it runs.
        shares_locks: whether it goes on holding our `locks.exclusive` if we are killed; False for what starts daemons.

    Raises:
        CommandFailedError: it exited with another code than 0; the message ends with the log's last lines.
    """
    command = [str(part) for part in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        out.write(f"$ {' '.join(command)}\n".encode())
        out.flush()
        done = subprocess.run(
            command,
            env=_merged(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,
            close_fds=not shares_locks,
        )
    if done.returncode:
        raise CommandFailedError(f"{command[0]} exited {done.returncode} (log: {log}):\n{tail(log)}")


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether a program exits with 0; a program that isn't there doesn't."""
    try:
        done = subprocess.run([str(part) for part in argv], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def wait_until(
    ready: Callable[[], bool], what: str, *, timeout_s: float, pause_s: float = 0.1, log: Path | None = None
) -> None:
    """Poll until `ready` holds.

    Raises:
        NotReadyError: it didn't within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            shown = f" (log: {log}):\n{tail(log)}" if log else ""
            raise NotReadyError(f"{what} wasn't ready after {timeout_s:.0f} s{shown}")
        time.sleep(pause_s)


def _merged(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if env is None else {**os.environ, **env}
