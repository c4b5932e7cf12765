"""Network namespaces of one cluster: a fabric with a bridge, a namespace per node, one link to the host.

The bridge lives in a namespace of its own, so that neither the host's firewall nor a Docker engine's filters what
crosses it, and deleting the namespaces takes every link with them. The fabric is the nodes' default gateway and has no
way out: nothing that a pod sends can leave the machine.
"""

from pathlib import Path

from e2e.cluster.errors import CommandFailedError
from e2e.cluster.layout import METADATA_ADDRESS, PUBLIC_ADDRESS, Layout, Node
from e2e.cluster.shell import run, succeeds

NAMESPACES = Path("/run/netns")


def inside(namespace: str, *argv: str | Path) -> list[str]:
    """Prefix a command so that it runs in a network namespace.

    Not ``ip netns exec``: that remounts /sys and hides the cgroup mounts, which the kubelet then misses.
    """
    return ["nsenter", f"--net={NAMESPACES / namespace}", *(str(part) for part in argv)]


def exists(namespace: str) -> bool:
    """Whether a network namespace is there."""
    return (NAMESPACES / namespace).exists()


def create_fabric(layout: Layout) -> None:
    """Make the fabric with its bridge and the host's link, and the outside world's addresses on it."""
    fabric = layout.fabric
    _ip("netns", "add", fabric)
    _inside(fabric, "link", "set", "lo", "up")
    # an address of its own: a bridge without one takes its lowest port's, so that a node that joins would change it,
    # and the other nodes would send what leaves the cluster to the old one until they ask again
    _inside(fabric, "link", "add", "br0", "address", layout.fabric_hardware_address, "type", "bridge")
    _inside(fabric, "addr", "add", f"{layout.fabric_address}/24", "dev", "br0")
    _inside(fabric, "link", "set", "br0", "up")
    for address in (PUBLIC_ADDRESS, METADATA_ADDRESS):
        _inside(fabric, "addr", "add", f"{address}/32", "dev", "lo")
    _forward(fabric)
    _ip("link", "add", layout.host_link, "type", "veth", "peer", "name", "to-host", "netns", fabric)
    _inside(fabric, "link", "set", "to-host", "master", "br0", "up")
    _ip("addr", "add", f"{layout.host_address}/24", "dev", layout.host_link)
    _ip("link", "set", layout.host_link, "up")
    _ip("route", "add", layout.service_range, "via", layout.node(1).address)


def create_node(layout: Layout, node: Node, others: list[Node]) -> None:
    """Make a node's namespace, join it to the fabric, and route pods between it, the host and `others`."""
    _ip("netns", "add", node.namespace)
    _inside(layout.fabric, "link", "add", node.port, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    _inside(layout.fabric, "link", "set", node.port, "master", "br0", "up")
    _inside(node.namespace, "link", "set", "lo", "up")
    _inside(node.namespace, "addr", "add", f"{node.address}/24", "dev", "eth0")
    _inside(node.namespace, "link", "set", "eth0", "up")
    _inside(node.namespace, "route", "add", "default", "via", layout.fabric_address)
    _forward(node.namespace)
    _ip("route", "add", node.pod_range, "via", node.address)
    _inside(layout.fabric, "route", "add", node.pod_range, "via", node.address)
    for other in others:
        _inside(node.namespace, "route", "add", other.pod_range, "via", other.address)
        _inside(other.namespace, "route", "add", node.pod_range, "via", node.address)


def partition(layout: Layout, node: Node) -> None:
    """Cut a node off: its link goes down; its processes and pods live on."""
    _inside(layout.fabric, "link", "set", node.port, "down")


def heal(layout: Layout, node: Node) -> None:
    """Undo `partition`."""
    _inside(layout.fabric, "link", "set", node.port, "up")


def namespaces(layout: Layout) -> list[str]:
    """Return the network namespaces that belong to this cluster."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(path.name for path in NAMESPACES.iterdir() if path.name.startswith(layout.namespace_prefix))


def processes_in(namespace: str) -> list[int]:
    """Ids of the processes that run in a network namespace."""
    try:
        return [int(pid) for pid in _ip("netns", "pids", namespace).split()]
    except CommandFailedError:
        return []  # the name is there, but nothing is mounted on it any more


def remove(layout: Layout) -> None:
    """Delete the cluster's namespaces, and with them its links, routes and firewall rules."""
    if succeeds(["ip", "link", "show", layout.host_link]):
        _ip("link", "del", layout.host_link)
    for namespace in namespaces(layout):
        _ip("netns", "del", namespace)


def conflicts(layout: Layout) -> str:
    """Return the foreign interface that already uses the nodes' range, or an empty string."""
    for line in run(["ip", "-o", "-4", "addr", "show", "to", layout.node_range]).splitlines():
        device = line.split()[1]
        if device != layout.host_link:
            return device
    return ""


def _forward(namespace: str) -> None:
    run(inside(namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"))


def _ip(*arguments: str) -> str:
    return run(["ip", *arguments])


def _inside(namespace: str, *arguments: str) -> str:
    return run(["ip", "-n", namespace, *arguments])
