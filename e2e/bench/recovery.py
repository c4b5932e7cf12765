"""Part `recovery`: how long a run's steps pause when what carries it dies, on the real cluster.

An agent takes a step every half a second or so. A process is killed, or stopped, as a host process: nobody is told.
The pause is the longest time between two steps around it, by the journal's own times; beside it stands a bare pod of
the same sandbox, from its request to its first instruction. The operator carries no step: what counts is how soon a run
that is applied at its death has its sandbox.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e.bench.client import AGENTRUNS, Kube, token
from e2e.bench.figures import Aim, Figure, Report
from e2e.bench.runs import LIMITS, bare_pod
from e2e.bench.system import System
from e2e.cluster.containers import process_of
from e2e.cluster.errors import HarnessError
from e2e.cluster.source import SourceCluster
from e2e.system import Installation, Tenant, shell
from moorage.core.journal.export import parse_record, read_lines, verify_export
from moorage.core.journal.record import Record, decode

NAMESPACE = "moorage-recovery"
ROUNDS, FROZEN = 3, 1
LEASE_S = 40.0
OPERATOR_LEASE_S = 15.0
STEP = "ITERATION_COMPLETE"
AGENT = 'while :; do date > step; echo \'{"moorage": {"event": "iteration"}}\'; sleep 0.5; done'
PATIENCE_S = 150.0
BARE = "a bare pod, to its first instruction"


@dataclass
class Found:
    """Seconds, one sample each round."""

    bare: list[float] = field(default_factory=list)
    usual: list[float] = field(default_factory=list)
    sandbox: list[float] = field(default_factory=list)
    gateway: list[float] = field(default_factory=list)
    frozen: list[float] = field(default_factory=list)
    operator: list[float] = field(default_factory=list)
    leader: list[float] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)


def measure(system: System) -> Report:
    """Bring a tenant up, measure, take it away. Raises HarnessError where processes of the nodes can't be reached."""
    cluster = system.cluster
    if not isinstance(cluster, SourceCluster):
        raise HarnessError("the part recovery kills processes of the nodes: it needs the cluster built from source")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s")
    tenant = Tenant.create(cluster, system.world(), NAMESPACE)
    try:
        return _report(asyncio.run(_measure(cluster, tenant)))
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


async def _measure(cluster: SourceCluster, tenant: Tenant) -> Found:
    found = Found()
    async with Kube(cluster.kubeconfig(), token(cluster, NAMESPACE)) as kube:
        bench = Bench(cluster, tenant, kube, found)
        await bench.begin("steps")
        for n in range(ROUNDS):
            found.bare.append(await bench.bare(f"bare-{n}"))
            found.sandbox.append(await bench.pause("steps", bench.kill_sandbox))
            await bench.renewed()
            found.gateway.append(await bench.pause("steps", lambda: bench.kill("gateway"), takes_over=False))
            found.operator.append(await bench.first_pod(f"applied-{n}", lambda: bench.kill("operator")))
        await bench.two_operators()
        for n in range(FROZEN):
            found.leader.append(await bench.first_pod(f"led-{n}", bench.freeze_leader))
        await bench.one_operator()
        for _ in range(FROZEN):
            found.frozen.append(await bench.pause("steps", bench.freeze_sandbox))
        bench.prove("steps")
    return found


@dataclass
class Bench:
    """A tenant whose runs take steps, and what happens to them."""

    cluster: SourceCluster
    tenant: Tenant
    kube: Kube
    found: Found
    stopped: list[int] = field(default_factory=list)

    @property
    def ours(self) -> Installation:
        return Installation(self.cluster)

    async def begin(self, name: str) -> None:
        """Apply a run, and let it take some steps."""
        await self._apply(name)
        await self._until(lambda: len(self.steps(name)) >= 5, "five steps")

    async def renewed(self) -> None:
        """New pods of gateway and operator: a container that dies again soon is held back by the kubelet."""
        for app in ("gateway", "operator"):
            await asyncio.to_thread(self.ours.kubectl, "rollout", "restart", f"deploy/moorage-{app}")
        for app in ("gateway", "operator"):
            await asyncio.to_thread(self.ours.settled, app)
        steps = len(await asyncio.to_thread(self.steps, "steps"))
        await self._until(lambda: len(self.steps("steps")) >= steps + 5, "five steps more")

    async def _apply(self, name: str) -> None:
        body = self.tenant.manifest(
            name,
            agent=shell(AGENT),
            acceptance=[],
            constraints={"maxIterations": 100_000},
            recovery={"maxAttempts": 50},
            delivery={"branch": f"moorage/bench-{name}", "push": False},
            sandbox={"runtimeClassName": "gvisor", "resources": {**LIMITS, "disk": "1Gi"}},
        )
        await self.kube.call("POST", f"{AGENTRUNS}/namespaces/{self.tenant.namespace}/agentruns", body)

    async def pause(self, name: str, happens: Callable[[], None], *, takes_over: bool = True) -> float:
        """The longest pause between two steps from before it happens to five steps later."""
        before = await asyncio.to_thread(self.steps, name)
        self.found.usual.append(_usual(before))
        epoch, at = before[-1].epoch, time.time() * 1000
        await asyncio.to_thread(happens)

        def after() -> list[Record]:
            return [s for s in self.steps(name) if s.recorded_at > at and (s.epoch > epoch or not takes_over)]

        await self._until(lambda: len(after()) >= 5 and time.time() * 1000 > at + 5_000, f"five steps of {name}")
        steps = await asyncio.to_thread(self.steps, name)
        times = [s.recorded_at for s in steps]
        first = max(n for n, each in enumerate(times) if each <= at)
        return max(b - a for a, b in pairwise(times[first:])) / 1000

    async def first_pod(self, name: str, happens: Callable[[], None]) -> float:
        """From a run that is applied when it happens to its sandbox."""
        await asyncio.to_thread(happens)
        began = time.monotonic()
        await self._apply(name)
        await self._until(lambda: bool(self.tenant.sandboxes(name)), f"a sandbox of {name}")
        took = time.monotonic() - began
        await asyncio.to_thread(self.tenant.kubectl, "delete", "ar", name, "--wait=false")
        return took

    async def bare(self, name: str) -> float:
        """A bare pod's time to its first instruction."""
        path = f"/api/v1/namespaces/{self.tenant.namespace}/pods"
        began = time.time()
        await self.kube.call("POST", path, bare_pod(name))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status = (await self.kube.call("GET", f"{path}/{name}")).get("status") or {}
            for each in status.get("containerStatuses") or []:
                if said := each["state"].get("terminated", {}).get("message"):
                    return int(said.split()[0]) / 1e9 - began
            await asyncio.sleep(0.2)
        raise HarnessError(f"pod {name} didn't end within {PATIENCE_S} s")

    # --- what happens -------------------------------------------------------------------------------------------------

    def kill_sandbox(self) -> None:
        os.kill(self._sandbox(), signal.SIGKILL)

    def freeze_sandbox(self) -> None:
        os.kill(self._sandbox(), signal.SIGSTOP)

    def kill(self, app: str) -> None:
        os.kill(self._process(app, self._pods(app)[0]), signal.SIGKILL)

    def freeze_leader(self) -> None:
        name = self.ours.kubectl("get", "lease", "moorage-operator", "-o", "jsonpath={.spec.holderIdentity}")
        (leader,) = [pod for pod in self._pods("operator") if pod["metadata"]["name"] == name]
        self.stopped.append(self._process("operator", leader))
        os.kill(self.stopped[-1], signal.SIGSTOP)

    async def two_operators(self) -> None:
        await asyncio.to_thread(self._scale, 2)

    async def one_operator(self) -> None:
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)
        await asyncio.to_thread(self._scale, 1)

    def _scale(self, replicas: int) -> None:
        self.ours.kubectl("scale", "deploy/moorage-operator", f"--replicas={replicas}")
        self.ours.settled("operator")

    # --- what is there ------------------------------------------------------------------------------------------------

    def steps(self, name: str) -> list[Record]:
        """The run's steps so far. Empty while nothing answers."""
        return [record for record in self._journal(name) if record.type == STEP]

    def _journal(self, name: str) -> list[Record]:
        program = str(Path(sys.executable).parent / "moorage")
        where = ["--kubeconfig", str(self.cluster.kubeconfig()), "-n", self.tenant.namespace]
        with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
            path = Path(folder) / "journal"
            done = subprocess.run([program, *where, "export", name, "-o", str(path)], check=False, capture_output=True)
            if done.returncode != 0:
                return []
            content = path.read_bytes()
        if type(verify_export([content]).chain).__name__ != "Intact":
            raise HarnessError(f"the journal of {name} is broken")
        return [decode(parse_record(line)) for line in list(read_lines([content]))[1:]]

    def prove(self, name: str) -> None:
        """Raises HarnessError where a step was counted twice: no figure counts then."""
        numbers = [record.payload.get("iteration") for record in self.steps(name)]
        if len(numbers) != len(set(numbers)):
            raise HarnessError(f"steps were counted twice: {numbers}")

    def _sandbox(self) -> int:
        return process_of(self.cluster, self.tenant.sandbox("steps"), "runner")

    def _pods(self, app: str) -> list[dict[str, Any]]:
        listed = Tenant(self.cluster, self.tenant.world, self.ours.namespace)
        found: list[dict[str, Any]] = listed.get("pods", labels=f"app.kubernetes.io/component={app}")
        return found

    def _process(self, app: str, pod: dict[str, Any]) -> int:
        return process_of(self.cluster, pod, app)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(holds):
            if time.monotonic() > deadline:
                raise HarnessError(f"not within {PATIENCE_S} s: {what}")
            await asyncio.sleep(0.2)


def _usual(steps: list[Record]) -> float:
    """Seconds between two steps of late, the median."""
    times = [step.recorded_at for step in steps[-6:]]
    gaps = sorted(b - a for a, b in pairwise(times))
    return gaps[len(gaps) // 2] / 1000


def _report(found: Found) -> Report:
    lease = [LEASE_S + each for each in found.bare]
    most = Aim(LEASE_S + 1.5 * statistics.median(found.bare))
    own = [OPERATOR_LEASE_S] * len(found.leader)
    return Report(
        "recovery",
        [
            Figure("sandbox killed → next step", "s", found.sandbox, found.bare, BARE, most),
            Figure("runner stopped → next step", "s", found.frozen, lease, "the Lease and a bare pod"),
            Figure("gateway killed → next step", "s", found.gateway, found.usual, "between two steps undisturbed"),
            Figure("operator killed, a run applied → its sandbox", "s", found.operator),
            Figure("leader stopped, a run applied → its sandbox", "s", found.leader, own, "the operator's Lease"),
        ],
        ["every step is in the journal once, and its chain is intact"],
        [
            "SIGKILL and SIGSTOP to the containers' processes: the kubelet tells a container's end 1 to 2 s late. "
            "An operator's or gateway's container is started again in its pod. One node, gVisor, SQLite.",
            "A runner is stopped with its whole gVisor sandbox. It is given up a Lease after its last heartbeat; the "
            "kubelet takes about half a minute more to end what can't answer it, and until then no other sandbox "
            "starts on that volume.",
        ],
        found.__dict__,
    )
