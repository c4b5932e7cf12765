"""Processes of containers, as the machine under the nodes has them: to be killed or stopped with nobody told."""

from typing import Any

from e2e.cluster.errors import HarnessError
from e2e.cluster.shell import run
from e2e.cluster.source import SourceCluster


def process_of(cluster: SourceCluster, pod: dict[str, Any], container: str) -> int:
    """The first process of a pod's running container; that of a gVisor sandbox carries all that runs in it.

    Raises HarnessError where it doesn't run.
    """
    wanted = next((c for c in pod["status"].get("containerStatuses") or [] if c["name"] == container), {})
    name = str(wanted.get("containerID", "")).rpartition("/")[2]
    node = cluster.layout.node(int(str(pod["spec"]["nodeName"]).removeprefix("node")))
    where = ["--address", str(node.containerd_socket), "--namespace", "k8s.io"]
    for line in run([str(cluster.programs.path("ctr")), *where, "tasks", "list"]).splitlines():
        task, pid, state = (*line.split(), "", "", "")[:3]
        if name and task == name and state == "RUNNING":
            return int(pid)
    raise HarnessError(f"container {container} of pod {pod['metadata']['name']} doesn't run")
