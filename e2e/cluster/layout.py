"""Names, addresses and folders of one cluster: all that must agree between the harness's parts."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import HarnessError

HOST_ADDRESS = "10.250.0.1"
FABRIC_ADDRESS = "10.250.0.254"
NODE_RANGE = "10.250.0.0/24"
PUBLIC_ADDRESS = "203.0.113.10"
PUBLIC_ADDRESS_V6 = "2001:db8::10"
METADATA_ADDRESS = "169.254.169.254"
FABRIC_ADDRESS_V6 = "fd00:10:250::fe"
API_PORT = 6443
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380


@dataclass(frozen=True)
class Node:
    """One node: a network namespace, a containerd, a kubelet. Node 1 also carries the control plane."""

    cluster: str
    number: int
    state: Path
    ipv6: bool = False

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
        return f"10.250.0.{self.number + 1}"

    @property
    def pod_range(self) -> str:
        """Range of its pods' addresses."""
        return f"10.244.{self.number - 1}.0/24"

    @property
    def address_v6(self) -> str:
        """Its IPv6 address on the fabric, where the cluster has any."""
        return f"fd00:10:250::{self.number + 1}"

    @property
    def pod_range_v6(self) -> str:
        """Range of its pods' IPv6 addresses, where the cluster has any."""
        return f"fd00:10:244:{self.number}::/64"

    @property
    def pod_ranges(self) -> list[str]:
        """All ranges of its pods' addresses."""
        return [self.pod_range, *([self.pod_range_v6] if self.ipv6 else [])]

    @property
    def addresses(self) -> list[str]:
        """All its addresses on the fabric."""
        return [self.address, *([self.address_v6] if self.ipv6 else [])]

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
    """Where one cluster keeps everything; `ipv6` gives pods and nodes a second address.

    Raises:
        HarnessError: the name is unfit for namespaces and links.
    """

    name: str
    state: Path
    ipv6: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", self.name):
            raise HarnessError(f"{self.name!r} can't name a cluster: use 1 to 20 of a-z, 0-9 and -, a letter first")

    def node(self, number: int) -> Node:
        """Return the node with this number, from 1."""
        return Node(self.name, number, self.state, self.ipv6)

    @property
    def world(self) -> dict[str, str]:
        """Addresses of the outside world's stand-ins, and what each answers."""
        v6 = {PUBLIC_ADDRESS_V6: "public"} if self.ipv6 else {}
        return {PUBLIC_ADDRESS: "public", METADATA_ADDRESS: "metadata", **v6}

    @property
    def fabric(self) -> str:
        """Network namespace of the bridge that joins host, nodes and the outside world's stand-ins."""
        return f"moorage-{self.name}-fabric"

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
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.state / "logs"

    @property
    def pids(self) -> Path:
        """Folder of the pid files."""
        return self.state / "pids"

    @property
    def url(self) -> str:
        """The API server, as host and nodes reach it."""
        return f"https://{self.node(1).address}:{API_PORT}"
