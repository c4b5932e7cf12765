"""Takes a cluster away, whatever state it is in: also one whose state folder is damaged, or that isn't there.

What belongs to it is found by where it is (its network namespaces, its cgroups, its state folder), not by what a
record says. Killing comes first, since mounts and cgroups can't go while processes hold them.

Clusters of other names are left alone while they live. One that a killed harness left half-made, or that died with the
machine's last boot, is swept away by the next cluster that starts.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from e2e.cluster import cgroups, network
from e2e.cluster.errors import HarnessError
from e2e.cluster.layout import Layout
from e2e.cluster.locks import exclusive, held
from e2e.cluster.processes import read_pid_file, stop_recorded
from e2e.cluster.shell import succeeds, wait_until

_MOUNTS = Path("/proc/self/mounts")
_MADE_FOLDERS = "made-folders"


def remove(layout: Layout) -> None:
    """Remove every trace of a cluster from this machine.

    Raises:
        HarnessError: something can't be removed; the message names it.
    """
    _stop_recorded(layout)
    _kill_in_namespaces(layout)
    cgroups.remove(layout.cgroup)
    _kill_in_namespaces(layout)
    unmount_below(layout.state)
    network.remove(layout)
    if layout.state.exists():
        shutil.rmtree(layout.state)
    remove_made_folders(layout)


def sweep(layout: Layout) -> list[str]:
    """Remove what killed harnesses left beside this cluster.

    Returns:
        names of the clusters that were removed.
    """
    return [other.name for other in layout.siblings() if abandoned(other) and _remove_locked(other)]


def abandoned(layout: Layout) -> bool:
    """Whether nobody works on a cluster that never came up, or none of whose processes lives any more."""
    return not held(layout.lock) and not _whole(layout)


def _remove_locked(layout: Layout) -> bool:
    """Remove a cluster unless a harness has taken it over meanwhile."""
    with exclusive(layout.lock):
        if _whole(layout):
            return False
        remove(layout)
        layout.lock.unlink()
    return True


def _whole(layout: Layout) -> bool:
    processes = map(read_pid_file, layout.pids.glob("*.pid"))
    return layout.record.is_file() and any(process and process.alive() for process in processes)


def make_folder(layout: Layout, path: Path) -> None:
    """Make a folder outside the state, for a path that no setting moves, and remember to remove it."""
    record = layout.state.parent / _MADE_FOLDERS
    with exclusive(_lock_of(record)):
        if not path.is_dir():
            path.mkdir(parents=True)
            with record.open("a") as made:
                made.write(f"{path}\n")


def mounts_below(folder: Path, mounts: str) -> list[str]:
    """Return the mount points at or below a folder, deepest first, from the text of /proc/self/mounts."""
    points = [line.split()[1].encode().decode("unicode_escape") for line in mounts.splitlines()]
    below = [point for point in points if point == str(folder) or point.startswith(f"{folder}/")]
    return sorted(below, key=lambda point: point.count("/"), reverse=True)


def _stop_recorded(layout: Layout) -> None:
    """End what has a pid file: the kubelets before their containerd, so that nothing is started again."""
    files = sorted(layout.pids.glob("*.pid"), key=lambda path: "kubelet" not in path.name)
    for path in files:
        stop_recorded(path, grace_s=2.0)


def _kill_in_namespaces(layout: Layout) -> None:
    """Kill what still runs in the cluster's namespaces: shims above all, which outlive containerd by design."""

    def empty() -> bool:
        pids = [pid for namespace in network.namespaces(layout) for pid in network.processes_in(namespace)]
        cgroups.kill(pids)
        return not pids

    wait_until(empty, f"the end of the processes in namespaces {layout.namespace_prefix}*", timeout_s=15)


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted at or below a folder."""
    for point in mounts_below(folder, _MOUNTS.read_text()):
        if not succeeds(["umount", point]) and not succeeds(["umount", "-l", point]):
            raise HarnessError(f"{point} can't be unmounted: see who holds it with `fuser -m {point}`")


def remove_made_folders(layout: Layout) -> None:
    """Remove what `make_folder` made for any cluster, once the last one is gone, unless somebody else uses it by now.

    A folder that is a mount point in another cluster's namespace looks empty from here, and goes with its mount.
    """
    record = layout.state.parent / _MADE_FOLDERS
    with exclusive(_lock_of(record)):
        if not layout.siblings():
            made = record.read_text() if record.exists() else ""
            for path in map(Path, made.splitlines()):
                if path.is_dir() and not any(path.iterdir()):
                    unmount_below(path)  # `ip netns` mounts its folder on itself
                    with suppress(OSError):
                        path.rmdir()
            record.unlink(missing_ok=True)
        _lock_of(record).unlink()


def _lock_of(record: Path) -> Path:
    return record.with_name(f"{record.name}.lock")
