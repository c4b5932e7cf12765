"""Part `scale`: many tenants' runs at once on fake nodes; what they cost the operator, and what its death costs them.

The API server, etcd, gateway and operator are real, kwok plays the kubelets, and this process binds pods to nodes and
plays every runner, each with a token that the API server bound to its pod. `MOORAGE_BENCH_SCALE` is RUNS/TENANTS/LIVE.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from e2e.bench.client import AGENTRUNS, RULES, Body
from e2e.bench.figures import Aim, Figure, Report
from e2e.bench.fleet import BEAT_S, Fleet, Operator, fleet, memory
from e2e.bench.restart import BARE, bare_imports
from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.kwok import fake_node, kwok
from moorage.api import names
from moorage.sandbox.spec import SandboxSettings

RUNS, TENANTS, LIVE = (int(n) for n in os.environ.get("MOORAGE_BENCH_SCALE", "500/10/50").split("/"))
HOLD_S, DEATHS, WITHIN_S = 20.0, 3, 3600.0
NODES = [f"fake-{n}" for n in range(10)]
LAG = re.compile(r"^(\d+\.\d)$", re.MULTILINE)
LEASE_WRITES = re.compile(
    r'^apiserver_request_total\{[^}]*resource="leases"[^}]*verb="(?:PATCH|PUT)"[^}]*\} (\d+)', re.MULTILINE
)


@dataclass
class Crowd(Fleet):
    """Runs in many namespaces, on nodes that kwok plays."""

    rules: ClassVar[list[dict[str, Any]]] = [
        *RULES,
        {"apiGroups": [""], "resources": ["pods/binding", "serviceaccounts/token"], "verbs": ["create"]},
    ]
    gateway_flags: ClassVar[tuple[str, ...]] = ("--bound",)
    operator_flags: ClassVar[tuple[str, ...]] = ("--lag",)
    max_live: ClassVar[int] = LIVE

    tokens: dict[str, str] = field(default_factory=dict)  # by pod UID

    async def _boot(self, pod: Body) -> None:
        """The scheduler's part, and the kubelet's request for a token; kwok does the rest."""
        about = pod["metadata"]
        path, uid = f"/api/v1/namespaces/{about['namespace']}", about["uid"]
        target = {"apiVersion": "v1", "kind": "Node", "name": NODES[hash(uid) % len(NODES)]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": about["name"]}, "target": target}
        await self.kube.call("POST", f"{path}/pods/{about['name']}/binding", binding)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": uid}
        spec = {"audiences": [SandboxSettings.audience], "expirationSeconds": 3600, "boundObjectRef": bound}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await self.kube.call("POST", f"{path}/serviceaccounts/{names.SANDBOX}/token", asked)
        self.tokens[uid] = made["status"]["token"]

    async def _hold(self, uid: str, epoch: int) -> None:
        until = time.monotonic() + HOLD_S
        while (left := until - time.monotonic()) > 0:
            await self._heartbeat(uid, epoch)
            await asyncio.sleep(min(BEAT_S, left))

    def _as(self, uid: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[uid]}"}


@dataclass
class Found:
    """Raw samples; MiB, milliseconds and seconds."""

    imports_mib: float = 0
    idle_mib: float = 0
    queued_mib: float = 0
    end_mib: float = 0
    peak_mib: list[float] = field(default_factory=list)
    pss_mib: list[float] = field(default_factory=list)
    lag_ms: list[float] = field(default_factory=list)
    machine_lag_ms: list[float] = field(default_factory=list)
    delays_s: dict[str, list[float]] = field(default_factory=dict)
    jain: float = 0
    ended_s: float = 0
    lease_writes_per_s: float = 0
    writes: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    again_s: list[float] = field(default_factory=list)
    raw_s: list[float] = field(default_factory=list)


def measure(console: Console) -> Report:
    """On an API server of its own; nothing else of the machine is touched."""
    with api_server() as server, tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
        with kwok(server.kubeconfig, server.programs, server.folder), _machine_lag() as told:
            found = asyncio.run(_measure(server, Path(folder), console))
        found.machine_lag_ms = [float(n) for n in told]
        return report(found)


@contextmanager
def _machine_lag() -> Iterator[list[str]]:
    """Fills the list at the end of the block."""
    told: list[str] = []
    with subprocess.Popen([sys.executable, "-m", "e2e.soak.lag"], stdout=subprocess.PIPE, text=True) as bare:
        try:
            yield told
        finally:
            bare.terminate()
            told += LAG.findall(bare.communicate()[0])


def _tenant(name: str) -> str:
    return name.partition("-run-")[0]


async def _measure(server: ApiServer, folder: Path, console: Console) -> Found:
    found = Found(imports_mib=bare_imports())
    runs = [f"team-{n % TENANTS:02}-run-{n // TENANTS:04}" for n in range(RUNS)]
    async with fleet(server, folder, Crowd) as world:
        await _furnish(world)
        before, began = _lease_writes(server), 0.0
        async with world.operator() as operator:
            await operator.steady(0)
            found.idle_mib = memory(operator.running.pid).pss
            with console.step(f"{RUNS} runs of {TENANTS} tenants, room for {LIVE}"):
                began = time.monotonic()
                await world.apply(runs, _tenant)
                await _begun(world, RUNS // 2)
            await _killed(operator, found)
            found.queued_mib = found.pss_mib[-1]
        for n in range(DEATHS):
            last = n == DEATHS - 1
            with console.step(f"the operator's return {n + 1} of {DEATHS}{', until all have ended' if last else ''}"):
                await _return(world, found, None if not last else runs)
        found.ended_s = max(world.board.facts[name, "ended"][0] for name in runs) - began
        found.lease_writes_per_s = (_lease_writes(server) - before) / found.ended_s
        found.refused = world.refused()
        _once(world, runs)
        _delays(world, runs, found)
    found.lag_ms = [float(n) for n in LAG.findall((folder / "operator.log").read_text())]
    return found


async def _furnish(world: Crowd) -> None:
    for n in range(TENANTS):
        world.server.kubectl("create", "namespace", f"team-{n:02}")
    for name in NODES:
        world.server.kubectl("create", "-f", "-", stdin=json.dumps(fake_node(name)))


async def _begun(world: Crowd, count: int) -> None:
    """Until that many runs have had a pod."""
    until = time.monotonic() + WITHIN_S
    while len(world.pods) < count:
        if world.failed or time.monotonic() > until:
            raise HarnessError(f"{len(world.pods)} of {count} have begun; failures: {world.failed[:3]}")
        await asyncio.sleep(0.05)


async def _return(world: Crowd, found: Found, runs: list[str] | None) -> None:
    """Seconds until a waiting run has its pod; with `runs` this operator lives until all of them have ended."""
    found.raw_s.append(await _raw(world))
    async with world.operator() as operator:
        before = len(world.pods)
        await _begun(world, before + 1)
        found.again_s.append(time.monotonic() - operator.began)
        if runs is None:
            await _killed(operator, found)
            return
        await world.board.wait_all(runs, "ended", WITHIN_S)
        await _killed(operator, found)
        found.end_mib = found.pss_mib[-1]


async def _killed(operator: Operator, found: Found) -> None:
    """Keep what it counted and held, then SIGKILL."""
    held = memory(operator.running.pid)
    found.peak_mib.append(held.peak)
    found.pss_mib.append(held.pss)
    found.writes += await operator.writes()
    operator.running.kill()


async def _raw(world: Crowd) -> float:
    began = time.monotonic()
    for path in (f"{AGENTRUNS}/agentruns", "/api/v1/pods", "/apis/coordination.k8s.io/v1/leases"):
        await world.kube.call("GET", path)
    return time.monotonic() - began


def _lease_writes(server: ApiServer) -> int:
    return sum(map(int, LEASE_WRITES.findall(server.get("/metrics"))))


def _once(world: Crowd, runs: list[str]) -> None:
    """Raises HarnessError where a run got two sandboxes, or didn't succeed, or a player failed."""
    twice = [run for run, pods in world.pods.items() if len(pods) > 1]
    phases = Counter(world.board.facts[name, "ended"][1]["phase"] for name in runs)
    if twice or world.failed or phases != {"Succeeded": len(runs)}:
        raise HarnessError(f"two sandboxes: {twice[:3]}; ends: {phases}; failures: {world.failed[:3]}")


def _delays(world: Crowd, runs: list[str], found: Found) -> None:
    """What each waited for its pod, and how even the turns were until half of them had one."""
    facts = world.board.facts
    for name in runs:
        waited = facts[name, "pod"][0] - facts[name, "seen"][0]
        found.delays_s.setdefault(_tenant(name), []).append(waited)
    first = sorted(runs, key=lambda name: facts[name, "pod"][0])[: len(runs) // 2]
    found.jain = jain([Counter(map(_tenant, first))[tenant] for tenant in found.delays_s])


def jain(shares: list[int]) -> float:
    """1 where all are equal, 1/n where one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares))


def report(found: Found) -> Report:
    """The table; p99 of the waits stands in a note where there are 1,000 of them."""
    waves = -(-RUNS // LIVE)
    delays = [each for tenant in found.delays_s.values() for each in tenant]
    ideal = [n // LIVE * HOLD_S for n in range(RUNS)]
    medians = sorted(statistics.median(each) for each in found.delays_s.values())
    bare = [found.imports_mib]
    figures = [
        Figure(
            f"{RUNS:,} runs of {TENANTS} tenants, {LIVE} live, until all have ended",
            "s",
            [found.ended_s],
            [waves * HOLD_S],
            f"{waves} turns of {HOLD_S:.0f} s with no time between them",
        ),
        Figure("… a run's wait for its pod", "s", delays, ideal, "the same"),
        Figure(
            "… Jain's index of the tenants' turns, until half of the runs had theirs",
            "",
            [found.jain],
            aim=Aim(0.99, least=True),
        ),
        Figure(
            "… API writes of the operator for each run, Events and Leases of the election apart",
            "",
            [sum(found.writes.values()) / RUNS],
            aim=Aim(6),
        ),
        Figure("… 429s from the API server", "", [found.refused], aim=Aim(0)),
        Figure("… writes of Leases, by all", "/s", [found.lease_writes_per_s]),
        Figure(
            "operator's worst lag of its loop in each second",
            "ms",
            found.lag_ms,
            found.machine_lag_ms,
            "a process that only tells its lag",
        ),
        Figure("operator's memory (PSS), idle", "MiB", [found.idle_mib], bare, BARE),
        Figure("… with half of the runs begun", "MiB", [found.queued_mib], bare, BARE),
        Figure("… when all had ended", "MiB", [found.end_mib], bare, BARE),
        Figure("… peak resident memory of each life", "MiB", found.peak_mib, bare, BARE),
        Figure(
            "operator killed and started, until a waiting run has its pod",
            "s",
            found.again_s,
            found.raw_s,
            "a client that lists the same kinds",
        ),
    ]
    by = ", ".join(f"{_what(key)} {count / RUNS:.2g}" for key, count in sorted(found.writes.items()))
    notes = [
        f"Writes for each run, over all {DEATHS + 1} lives of the operator: {by}.",
        f"A tenant's median wait: {medians[0]:.1f} to {medians[-1]:.1f} s. A slot is free once its run has ended and "
        "the next one has been begun; the bench, API server, etcd (without fsync), kwok and gateway share the machine.",
        f"The operator was killed (SIGKILL) {DEATHS} times while runs waited, and lived to the end after the last one.",
    ]
    if len(delays) >= 1000:
        notes.append(f"p99 of the waits: {statistics.quantiles(delays, n=100)[98]:.1f} s.")
    return Report(
        "scale",
        figures,
        [f"all {RUNS:,} runs succeeded, each with one sandbox; no player failed"],
        notes,
        found.__dict__ | {"writes": dict(found.writes)},
    )


def _what(key: str) -> str:
    """`api_writes {…}` of a counter in short."""
    return " ".join(re.findall(r'="([^"]*)"', key))
