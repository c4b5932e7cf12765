"""Control groups of one cluster, in cgroup v1's hierarchies or in the unified one."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import HarnessError

_MOUNTS = Path("/proc/self/mounts")
_INHERITED = ("cpuset.mems", "cpuset.cpus")


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy; `unified` is cgroup v2."""

    mount: Path
    unified: bool


def hierarchies(mounts: str) -> list[Hierarchy]:
    """Return the hierarchies that carry controllers: v1's when there are any (v2 is then only a label), else v2's."""
    rows = [line.split() for line in mounts.splitlines()]
    v1 = [Hierarchy(Path(row[1]), unified=False) for row in rows if row[2] == "cgroup"]
    return v1 or [Hierarchy(Path(row[1]), unified=True) for row in rows if row[2] == "cgroup2"]


def create(path: str) -> None:
    """Make a cgroup in every hierarchy, fit to hold processes and children.

    Raises:
        HarnessError: no hierarchy is mounted.
    """
    mounted = _mounted()
    if not mounted:
        raise HarnessError("no cgroup hierarchy is mounted: mount cgroup2 on /sys/fs/cgroup")
    for hierarchy in mounted:
        parent = hierarchy.mount
        for part in Path(path).relative_to("/").parts:
            _create_one(hierarchy, parent, part)
            parent = parent / part


def processes(path: str) -> set[int]:
    """Ids of the processes in a cgroup and below it, in any hierarchy."""
    found: set[int] = set()
    for folder in _folders(path):
        with suppress(FileNotFoundError, OSError):
            found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
    return found


def remove(path: str, *, timeout_s: float = 5.0) -> None:
    """Kill what runs in a cgroup and below it, and remove all of it; nothing happens when it isn't there."""
    deadline = time.monotonic() + timeout_s
    while folders := list(_folders(path)):
        kill(processes(path))
        for folder in folders:
            with suppress(FileNotFoundError, OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            raise HarnessError(f"cgroup {path} can't be removed: processes {sorted(processes(path))} won't die")
        time.sleep(0.05)


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes that were just listed."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _mounted() -> list[Hierarchy]:
    return hierarchies(_MOUNTS.read_text())


def _folders(path: str) -> Iterable[Path]:
    """Folders of a cgroup and its descendants in every hierarchy (a bare label too), children before parents."""
    for row in map(str.split, _MOUNTS.read_text().splitlines()):
        if row[2] in {"cgroup", "cgroup2"}:
            for folder, _, _ in os.walk(Path(row[1]) / path.lstrip("/"), topdown=False):
                yield Path(folder)


def _create_one(hierarchy: Hierarchy, parent: Path, name: str) -> None:
    folder = parent / name
    if hierarchy.unified:
        controllers = (parent / "cgroup.controllers").read_text().split()
        with suppress(OSError):  # a parent with processes of its own refuses; the kubelet then names what it lacks
            (parent / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in controllers))
    folder.mkdir(exist_ok=True)
    for setting in _INHERITED:
        if not hierarchy.unified and (parent / setting).exists():
            (folder / setting).write_text((parent / setting).read_text())
