"""Names, addresses and folders of one cluster: all that must agree between the harness's parts.

Pods have IPv4 only: with two families kube-router 2.1.0 names its IPv6 sets otherwise than its rules do, and empties
IPv4's sets, so that pods that a policy names are shut out now and then.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import HarnessError

PUBLIC_ADDRESS = "203.0.113.10"
METADATA_ADDRESS = "169.254.169.254"
API_PORT = 6443
MAX_NODES = 2
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
_SLOTS = 128  # as many as there are pairs of /24 in 10.244.0.0/16 (two nodes each) and /23 in 10.96.0.0/16


def slot(cluster: str) -> int:
    """A cluster's share of the address ranges, from its name: clusters of different names stand side by side.

    Two names may meet in one slot; the second cluster is then refused with the advice to name it otherwise.
    """
    return hashlib.sha256(cluster.encode()).digest()[0] % _SLOTS


@dataclass(frozen=True)
class Node:
    """One node: a network namespace, a containerd, a kubelet. Node 1 also carries the control plane."""

    cluster: str
    number: int
    state: Path

    @property
    def name(self) -> str:
        """Name of the Kubernetes node."""
        return f"node{self.number}"

    @property
    def folder(self) -> Path:
        """Where this node keeps its files."""
        return self.state / self.name

    @property
    def namespace(self) -> str:
        """Its network namespace."""
        return f"moorage-{self.cluster}-{self.name}"

    @property
    def port(self) -> str:
        """The fabric's end of the node's link (interface names are bounded by 15 characters)."""
        return f"to-{self.name}"

    @property
    def address(self) -> str:
        """Its address on the fabric."""
        return f"10.250.{slot(self.cluster)}.{self.number + 1}"

    @property
    def pod_range(self) -> str:
        """Range of its pods' addresses."""
        return f"10.244.{2 * slot(self.cluster) + self.number - 1}.0/24"

    @property
    def cgroup(self) -> str:
        """Parent of all cgroups of its pods, as a path inside each hierarchy."""
        return f"/moorage-e2e-{self.cluster}/{self.name}"

    @property
    def containerd_socket(self) -> Path:
        """Where its containerd listens."""
        return self.folder / "containerd.sock"


@dataclass(frozen=True)
class Layout:
    """Where one cluster keeps everything.

    Raises:
        HarnessError: the name is unfit for namespaces and links.
    """

    name: str
    state: Path

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", self.name):
            raise HarnessError(f"{self.name!r} can't name a cluster: use 1 to 20 of a-z, 0-9 and -, a letter first")

    def node(self, number: int) -> Node:
        """Return the node with this number, from 1."""
        return Node(self.name, number, self.state)

    @property
    def fabric(self) -> str:
        """Network namespace of the bridge that joins host, nodes and the outside world's stand-ins."""
        return f"moorage-{self.name}-fabric"

    @property
    def node_range(self) -> str:
        """Range of the host's, the nodes' and the fabric's addresses."""
        return f"10.250.{slot(self.name)}.0/24"

    @property
    def host_address(self) -> str:
        """The host's address on the fabric."""
        return f"10.250.{slot(self.name)}.1"

    @property
    def fabric_address(self) -> str:
        """The fabric's own address: the nodes' default gateway."""
        return f"10.250.{slot(self.name)}.254"

    @property
    def fabric_hardware_address(self) -> str:
        """The fabric's own link address: locally administered, the last four bytes those of its IP address."""
        return "02:00:" + ":".join(f"{int(part):02x}" for part in self.fabric_address.split("."))

    @property
    def service_range(self) -> str:
        """Range of the Services' addresses."""
        return f"10.96.{2 * slot(self.name)}.0/23"

    @property
    def service_address(self) -> str:
        """Address of the Service ``kubernetes``: the first of the range."""
        return f"10.96.{2 * slot(self.name)}.1"

    @property
    def host_link(self) -> str:
        """The one interface that the host's own namespace sees."""
        return f"moor-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @property
    def namespace_prefix(self) -> str:
        """What all of this cluster's network namespaces begin with."""
        return f"moorage-{self.name}-"

    @property
    def cgroup(self) -> str:
        """Parent of all cgroups, as a path inside each hierarchy."""
        return f"/moorage-e2e-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig."""
        return self.state / "admin.kubeconfig"

    @property
    def record(self) -> Path:
        """Written once the cluster is up; a state without it is of a harness at work, or of one that was killed."""
        return self.state / "cluster.json"

    @property
    def lock(self) -> Path:
        """Held by a harness while it changes the cluster."""
        return self.state.with_suffix(".lock")

    @property
    def caches(self) -> Path:
        """Where kubectl and helm keep what they would put into the user's home otherwise."""
        return self.state / "caches"

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.state / "logs"

    @property
    def pids(self) -> Path:
        """Folder of the pid files."""
        return self.state / "pids"

    def siblings(self) -> list["Layout"]:
        """Clusters of other names whose state is beside this one's."""
        folders = sorted(path.parent for path in self.state.parent.glob("*/pids"))
        return [Layout(path.name, path) for path in folders if path != self.state]

    @property
    def url(self) -> str:
        """The API server, as host and nodes reach it."""
        return f"https://{self.node(1).address}:{API_PORT}"
