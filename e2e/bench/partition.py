"""Part `partition`: how long a run's steps pause when its node is cut off, on a cluster of two nodes of its own.

Gateway, operator and remote are on the first node, the run's sandbox on the second, whose link goes down: all that is
there lives on and can't be heard. The pause is the longest one between two steps, as in the part `recovery`. The node
comes back afterwards, and what its agent did meanwhile must not be in the journal.
"""

import asyncio
from dataclasses import dataclass, field

from e2e.bench import recovery
from e2e.bench.client import Kube, token
from e2e.bench.figures import Figure, Report
from e2e.bench.recovery import BARE, LEASE_S, Bench
from e2e.bench.system import System
from e2e.cluster import backend
from e2e.cluster.console import Console
from e2e.cluster.source import SourceCluster
from e2e.system import Tenant, cordoned

CLUSTER = "moorage-cut"
NAMESPACE = "moorage-partition"
NEAR, FAR = "node1", "node2"
ROUNDS = 2


@dataclass
class Found(recovery.Found):
    """`cut`: seconds, one sample each round."""

    cut: list[float] = field(default_factory=list)


def measure(console: Console) -> Report:
    """Bring two nodes up, measure, take them away. Raises HarnessError where there can't be any."""
    cluster = backend.source(console, CLUSTER)
    try:
        system = System.up(console, cluster)
        world = system.world()
        cluster.up(2)  # only now: all that is ours has its place on the first node
        cluster.load_images(cluster.build_images())
        return _report(asyncio.run(_measure(cluster, Tenant.create(cluster, world, NAMESPACE))))
    finally:
        cluster.down()


async def _measure(cluster: SourceCluster, tenant: Tenant) -> Found:
    found = Found()
    async with Kube(cluster.kubeconfig(), token(cluster, NAMESPACE)) as kube:
        bench = Bench(cluster, tenant, kube, found)
        for n in range(ROUNDS):
            found.bare.append(await bench.bare(f"bare-{n}"))
            with cordoned(cluster, NEAR):
                await bench.begin(name := f"cut-{n}")
            found.cut.append(await bench.pause(name, lambda: cluster.partition(FAR)))
            cluster.heal(FAR)
            await asyncio.to_thread(cluster.kubectl, "wait", f"node/{FAR}", "--for=condition=Ready", "--timeout=90s")
            bench.prove(name)
            await asyncio.to_thread(tenant.kubectl, "delete", "ar", name, "--timeout=90s")
    return found


def _report(found: Found) -> Report:
    lease = [LEASE_S + each for each in found.bare]
    return Report(
        "partition",
        [Figure("node cut off → next step", "s", found.cut, lease, f"the Lease and {BARE}")],
        ["every step is in the journal once, and its chain is intact, also after the node came back"],
        [
            "Two nodes, gVisor, SQLite. A run is given up a Lease after its last heartbeat; its volume is on the lost "
            "node, which is given 30 s more to come back before the run goes on elsewhere from its last checkpoint."
        ],
        found.__dict__,
    )
