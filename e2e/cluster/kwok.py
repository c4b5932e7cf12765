"""Pods that only pretend: kwok plays the kubelet of nodes that aren't there, for thousands of runs on one machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.cluster.processes import spawn, stop_recorded
from e2e.cluster.programs import GROUPS, Programs

_MARK = ("kwok.x-k8s.io/node", "fake")
_STAGES = ("node/fast", "node/heartbeat", "pod/fast")


@contextmanager
def kwok(kubeconfig: Path, programs: Programs, folder: Path) -> Iterator[None]:
    """Bring every pod on a `fake_node` to life for the length of the block; logs and pid file go to `folder`."""
    stages = [f"--config={path}" for path in _stage_files(programs)]
    argv = [
        str(programs.path("kwok")),
        f"--kubeconfig={kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={'='.join(_MARK)}",
        *stages,
    ]
    pid_file = folder / "kwok.pid"
    spawn(argv, log=folder / "kwok.log", pid_file=pid_file)
    try:
        yield
    finally:
        stop_recorded(pid_file)


def fake_node(name: str, *, pods: int = 1000) -> dict[str, Any]:
    """Return a Node that kwok manages; its taint keeps away pods that don't tolerate it."""
    capacity = {"cpu": "1000", "memory": "4Ti", "pods": str(pods)}
    labels = {"kubernetes.io/hostname": name, "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": dict([_MARK])},
        "spec": {"taints": [{"key": _MARK[0], "value": _MARK[1], "effect": "NoSchedule"}]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _stage_files(programs: Programs) -> list[Path]:
    """The module carries its stages as files; run alone, the program has none."""
    stages = programs.folder(GROUPS["kwok"]) / "kustomize" / "stage"
    found = [path for stage in _STAGES for path in (stages / stage).glob("*.yaml")]
    return [path for path in sorted(found) if path.name != "kustomization.yaml"]
