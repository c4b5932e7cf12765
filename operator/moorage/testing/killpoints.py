"""K1: what happens at an armed point. Processes that are started with `environment` meet each shot's fault once.

A trace says which points were passed since the harness began it. A point is counted over all processes that write the
trace, one after another and beside each other, and a fault fires in the one that gets there. Faults are the real ones:
the process is killed or stopped by a signal that it can't handle, an error is one that a failing disk or store raises
there, a delay holds the process up.
"""

from __future__ import annotations

import errno
import os
import pkgutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from moorage.points import VARIABLE, Hook, Point

FAULT, TRACE = f"{VARIABLE}_FAULT", f"{VARIABLE}_TRACE"
DSN = "MOORAGE_STORE_DSN"
"""As the gateway's: who has it keeps the journal in PostgreSQL."""
DELAY_S = 0.5  # longer than anybody's pause between two looks, far from anybody's patience
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


def parse_shots(text: str) -> tuple[Shot, ...]:
    """Several, with blanks between them. Raises ValueError for what is none."""
    return tuple(Shot.parse(each) for each in text.split())


def environment(trace: Path, *shots: Shot) -> dict[str, str]:
    """Variables that arm a process and its children: trace points to that file, and fire those shots."""
    told = {VARIABLE: __name__, TRACE: str(trace)}
    return {**told, FAULT: " ".join(map(str, shots))} if shots else told


def passed(trace: Path) -> list[Point]:
    """The points that were reached, in their order over all processes."""
    lines = trace.read_text().splitlines() if trace.is_file() else []
    return [Point(line.split()[1]) for line in lines]


def fired(trace: Path, shot: Shot) -> int | None:
    """The process that met the fault, if one did."""
    mark = _mark(trace, shot)
    return int(text) if mark.is_file() and (text := mark.read_text()) else None


def begin(trace: Path) -> None:
    """Count from here on, and let every shot fire again."""
    for left in (trace, *trace.parent.glob(f"{trace.name}.*.fired")):
        left.unlink(missing_ok=True)


def often(points: Iterable[Point]) -> Counter[Point]:
    """How often each was reached."""
    return Counter(points)


def hook(environ: Mapping[str, str]) -> Hook:
    """What `moorage.points.arm` asks for."""
    return _Trigger(Path(environ[TRACE]), parse_shots(environ.get(FAULT, "")), bool(environ.get(DSN)))


@dataclass
class _Trigger:
    """Points are reached on several threads."""

    trace: Path
    shots: tuple[Shot, ...]
    on_postgres: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, point: Point) -> None:
        if (shot := self._due(point)) is not None:
            self._happen(shot.fault, point)

    def _due(self, point: Point) -> Shot | None:
        """The shot that fires here and now: the first one whose number has come, and that nobody has met yet."""
        with self._lock:
            _add(self.trace, f"{os.getpid()} {point}\n")
            aimed = [shot for shot in self.shots if shot.point is point]
            times = often(passed(self.trace))[point] if aimed else 0
            return next((s for s in aimed if s.number <= times and _claim(_mark(self.trace, s))), None)

    def _happen(self, fault: Fault, point: Point) -> None:
        match fault:
            case Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
                os._exit(KILLED)  # the first process of a namespace is immune to its own signals
            case Fault.ERROR:
                raise error_at(point, on_postgres=self.on_postgres)
            case Fault.DELAY:
                time.sleep(DELAY_S)
            case Fault.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)


def error_at(point: Point, *, on_postgres: bool = False) -> Exception:
    """What fails there in earnest, as the code around it hears of it: the disk, where nothing else is."""
    name = next((name for begin, name in _FAILS.items() if point.startswith(begin)), None)
    if name is None:
        return OSError(errno.EIO, os.strerror(errno.EIO), str(point))
    error: Exception = pkgutil.resolve_name(name.format(driver="psycopg" if on_postgres else "sqlite3"))(
        f"broke: {point}"
    )
    return error


_STORE = "moorage.store.errors:StoreUnavailable"
_FAILS = {
    "append/after": _STORE,
    "append/": "{driver}:OperationalError",  # within the store, which has its own word for it
    "snapshot/": _STORE,
    "keep/": _STORE,
    "follow/": _STORE,
    "egress/before": "moorage.gateway.outward:Unreached",
    "egress/": _STORE,
    "model/stream": "moorage.gateway.providers:Unheard",
    "stream/": _STORE,
    "spawn/": _STORE,
    "share/": _STORE,
    "settlement/": _STORE,
}
"""By how the point begins, the first that fits. As names: a sandbox's process has a use for none of these libraries."""


def _mark(trace: Path, shot: Shot) -> Path:
    return trace.with_name(f"{trace.name}.{str(shot).replace('/', '-')}.fired")


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
