"""A node that is cut off while its agent works on: another one takes over, and the first comes back too late."""

import json
from collections.abc import Callable, Iterator

import pytest

from e2e.cluster.source import SourceCluster
from e2e.pods import eventually
from e2e.system import Installation, Tenant, condition, cordoned, shell

pytestmark = pytest.mark.alone

WORK = """
[ -e first ] && { sh agent.sh; exit; }
echo first > first; echo '{"moorage": {"event": "iteration"}}'
n=0; while :; do n=$((n+1)); echo $n > later; echo '{"moorage": {"event": "iteration"}}'; sleep 1; done
"""
"""The first attempt goes on for ever; one that finds its checkpoint mends the repository."""


@pytest.fixture
def away(moorage: Callable[..., str], two_nodes: SourceCluster, tenant: Tenant) -> Iterator[str]:
    """The second node: the tenant's run "cut" works there, nothing of ours does. Afterwards the node is whole again."""
    two_nodes.load_images(two_nodes.build_images())
    ours = Installation(two_nodes)
    with cordoned(two_nodes, "node2"):
        ours.kubectl("delete", "pod", "--field-selector=spec.nodeName=node2", "--wait=false")
        for app in ("operator", "gateway"):
            ours.settled(app)
    with cordoned(two_nodes, "node1"):
        tenant.run("cut", agent=shell(WORK))
        tenant.until("cut", lambda s: s.get("iteration", 0) >= 2)
    yield "node2"
    two_nodes.heal("node2")
    two_nodes.kubectl("wait", "node/node2", "--for=condition=Ready", "--timeout=90s")


def types(moorage: Callable[..., str], tenant: Tenant) -> list[tuple[str, int]]:
    """Type and epoch of each record of the run."""
    said = moorage("-n", tenant.namespace, "timeline", "cut", "-o", "json")
    told, _ = json.JSONDecoder().raw_decode(said)  # hints for people follow
    return [(record["type"], record["epoch"] or 0) for record in told]


def written(cluster: SourceCluster, tenant: Tenant) -> int:
    """How far the first attempt's agent has come, as its node's own disk has it."""
    folders = (cluster.layout.node(2).folder / "volumes").glob(f"*_{tenant.namespace}_*")
    return max(int(file.read_text() or 0) for folder in folders for file in folder.rglob("later"))


@pytest.mark.timeout(600)  # a Lease, the patience with a lost node, and a new attempt
@pytest.mark.rule("F1", "R1")
def test_a_node_that_comes_back_after_a_takeover_changes_nothing(
    away: str, two_nodes: SourceCluster, tenant: Tenant, moorage: Callable[..., str]
) -> None:
    first = tenant.sandbox("cut")
    assert first["spec"]["nodeName"] == away
    two_nodes.partition(away)
    status = tenant.ended("cut", within_s=240)
    assert status["phase"] == "Succeeded", status
    assert status["epoch"] > 1
    assert condition(status, "Accepted")["reason"] == "Verified"
    assert status["placement"]["node"] == "node1"
    commit = status["result"]["commit"]
    reached = written(two_nodes, tenant)
    works_on = eventually(lambda: written(two_nodes, tenant) > reached, within_s=60)
    assert works_on, "it was cut off, and its agent works on: else nobody comes back"

    two_nodes.heal(away)
    assert eventually(lambda: not two_nodes.containers(away, first["metadata"]["uid"]), within_s=120)
    assert tenant.world.branch(f"moorage/{tenant.namespace}-cut") == commit
    assert tenant.status("cut")["result"]["commit"] == commit
    assert "intact" in moorage("verify", "cut", "-n", tenant.namespace)
    told = types(moorage, tenant)
    assert [kind for kind, _ in told].count("EFFECT_INTENT") == [kind for kind, _ in told].count("EFFECT_RECEIPT") == 1
    takeover = next(n for n, (kind, _) in enumerate(told) if kind == "EPOCH_RAISED" and n > 5)
    assert not [kind for kind, epoch in told[takeover:] if epoch == 1], "nothing of the first owner's came after"
