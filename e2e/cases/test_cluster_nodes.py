"""Two nodes: traffic and policies between them, and a partition that is real."""

import pytest

from e2e.cluster.shell import run
from e2e.cluster.source import SourceCluster
from e2e.pods import SERVER_PORT, address, apply, eventually, isolate, pod, reaches, server, wait_ready

pytestmark = pytest.mark.alone


def test_pods_of_two_nodes_meet_until_a_policy_forbids_it(two_nodes: SourceCluster, namespace: str) -> None:
    near, far = server(), pod("client", "exec sleep 3600")
    near["spec"]["nodeName"], far["spec"]["nodeName"] = "node1", "node2"
    apply(two_nodes, namespace, near, far)
    wait_ready(two_nodes, namespace, "server", "client")
    target = (address(two_nodes, namespace, "server"), SERVER_PORT)
    assert reaches(two_nodes, namespace, "client", *target)
    isolate(two_nodes, namespace, "client")
    assert eventually(lambda: not reaches(two_nodes, namespace, "client", *target))


def test_a_node_that_is_cut_off_is_lost_and_comes_back(two_nodes: SourceCluster) -> None:
    two_nodes.partition("node2")
    try:
        two_nodes.kubectl("wait", "node/node2", "--for=condition=Ready=Unknown", "--timeout=90s")
    finally:
        two_nodes.heal("node2")
    two_nodes.kubectl("wait", "node/node2", "--for=condition=Ready", "--timeout=60s")


def test_who_joins_the_fabric_does_not_change_its_address(two_nodes: SourceCluster) -> None:
    """A bridge takes its lowest port's address unless it was given one; its neighbours would not hear of it."""
    fabric = two_nodes.layout.fabric
    lowest = ["address", "02:00:00:00:00:01"]
    run(["ip", "-n", fabric, "link", "add", "lowest", *lowest, "type", "veth", "peer", "name", "lowest-end"])
    try:
        run(["ip", "-n", fabric, "link", "set", "lowest", "master", "br0", "up"])
        assert two_nodes.layout.fabric_hardware_address in run(["ip", "-n", fabric, "link", "show", "br0"])
    finally:
        run(["ip", "-n", fabric, "link", "del", "lowest"])
