"""K1: what happens at an armed point. A process that is started with `Shot.environment` meets one fault, once.

A trace says which points were passed since the harness began it. A point is counted over all processes that write the
trace, and the fault fires in the one that gets there. Faults are the real ones: the process is killed or stopped by a
signal that it can't handle, an error is one that a failing disk or store raises there, a delay holds the process up.
"""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from moorage.points import VARIABLE, Hook, Point
from moorage.store.errors import StoreUnavailable

FAULT, TRACE = f"{VARIABLE}_FAULT", f"{VARIABLE}_TRACE"
DELAY_S = 1.0
KILLED = 128 + signal.SIGKILL


class Fault(StrEnum):
    """What a process may meet."""

    KILL = "kill"
    ERROR = "error"
    DELAY = "delay"
    STOP = "stop"


@dataclass(frozen=True)
class Shot:
    """A fault at the `number`th time (from 1) that a process reaches a point. As text: `append/within:3:kill`."""

    point: Point
    number: int = 1
    fault: Fault = Fault.KILL

    def __str__(self) -> str:
        return f"{self.point}:{self.number}:{self.fault}"

    @classmethod
    def parse(cls, text: str) -> Shot:
        """Raises ValueError for what is no shot."""
        point, number, fault = text.split(":")
        return cls(Point(point), int(number), Fault(fault))


def environment(trace: Path, shot: Shot | None = None) -> dict[str, str]:
    """Variables that arm a process and its children: trace points to that file, and fire that shot."""
    told = {VARIABLE: __name__, TRACE: str(trace)}
    return {**told, FAULT: str(shot)} if shot else told


def passed(trace: Path) -> list[Point]:
    """The points that were reached, in their order over all processes."""
    lines = trace.read_text().splitlines() if trace.is_file() else []
    return [Point(line.split()[1]) for line in lines]


def fired(trace: Path) -> int | None:
    """The process that met the fault, if one did."""
    mark = _mark(trace)
    return int(text) if mark.is_file() and (text := mark.read_text()) else None


def begin(trace: Path) -> None:
    """Count from here on, and let the next shot fire."""
    trace.unlink(missing_ok=True)
    _mark(trace).unlink(missing_ok=True)


def often(points: Iterable[Point]) -> Counter[Point]:
    """How often each was reached."""
    return Counter(points)


def hook(environ: Mapping[str, str]) -> Hook:
    """What `moorage.points.arm` asks for."""
    shot = environ.get(FAULT)
    return _Trigger(Path(environ[TRACE]), Shot.parse(shot) if shot else None)


@dataclass
class _Trigger:
    """Points are reached on several threads."""

    trace: Path
    shot: Shot | None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, point: Point) -> None:
        with self._lock:
            _add(self.trace, f"{os.getpid()} {point}\n")
            if self.shot is None or point is not self.shot.point:
                return
            due = often(passed(self.trace))[point] >= self.shot.number
        if due and _claim(_mark(self.trace)):
            _happen(self.shot.fault, point)


def _happen(fault: Fault, point: Point) -> None:
    match fault:
        case Fault.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
            os._exit(KILLED)  # the first process of a namespace is immune to its own signals
        case Fault.ERROR:
            raise _error(point)
        case Fault.DELAY:
            time.sleep(DELAY_S)
        case Fault.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)


def _error(point: Point) -> Exception:
    """What fails there in earnest."""
    match point:
        case Point.APPEND_BEFORE | Point.APPEND_WITHIN:
            return sqlite3.OperationalError("disk I/O error")
        case Point.APPEND_AFTER:
            return StoreUnavailable("the connection broke after the commit")
        case _:
            return OSError(errno.EIO, os.strerror(errno.EIO), str(point))


def _mark(trace: Path) -> Path:
    return trace.with_suffix(".fired")


def _claim(mark: Path) -> bool:
    try:
        descriptor = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True


def _add(path: Path, line: str) -> None:
    """In one write, so that lines of several processes don't mix."""
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
