"""Takes a cluster away, whatever state it is in: also one whose state folder is damaged, or that isn't there.

What belongs to it is found by where it is (its network namespaces, its cgroups, its state folder), not by what a
record says. Killing comes first, since mounts and cgroups can't go while processes hold them.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from e2e.cluster import cgroups, network
from e2e.cluster.errors import HarnessError
from e2e.cluster.layout import Layout
from e2e.cluster.processes import stop_recorded
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
    _unmount_below(layout.state)
    network.remove(layout)
    _remove_made_folders(layout.state)
    if layout.state.exists():
        shutil.rmtree(layout.state)


def make_folder(layout: Layout, path: Path) -> None:
    """Make a folder outside the state, for a path that no setting moves, and remember to remove it."""
    if not path.is_dir():
        path.mkdir(parents=True)
        with (layout.state / _MADE_FOLDERS).open("a") as made:
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


def _unmount_below(folder: Path) -> None:
    for point in mounts_below(folder, _MOUNTS.read_text()):
        if not succeeds(["umount", point]) and not succeeds(["umount", "-l", point]):
            raise HarnessError(f"{point} can't be unmounted: see who holds it with `fuser -m {point}`")


def _remove_made_folders(state: Path) -> None:
    """Remove what `make_folder` made, unless somebody else uses it by now."""
    record = state / _MADE_FOLDERS
    made = [Path(line) for line in record.read_text().splitlines()] if record.exists() else []
    for path in made:
        if path.is_dir() and not any(path.iterdir()):
            _unmount_below(path)  # `ip netns` mounts its folder on itself
            with suppress(OSError):
                path.rmdir()
