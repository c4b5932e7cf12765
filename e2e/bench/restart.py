"""Part `restart`: the operator's memory, its writes at rest, its return to 1,000 finished and 200 live runs."""

import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench.client import AGENTRUNS
from e2e.bench.figures import Aim, Figure, Report
from e2e.bench.fleet import NAMESPACE, OPERATOR, Fleet, Operator, fleet, memory
from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError

LIVE, FINISHED, ROUNDS = 200, 1000, 3
IDLE_S = 60.0
READER, BARE = "a client that only reads the same", "PSS of the imports alone"
IMPORTS = "import kopf, kubernetes.aio.client, httpx, pydantic, uvicorn, starlette, structlog, prometheus_client"


@dataclass
class Found:
    """Raw samples; MiB and seconds."""

    idle_mib: float = 0
    live_mib: float = 0
    imports_mib: float = 0
    idle_writes: int = 0
    idle_renewals: int = 0
    moved: int = 0
    versions_moved: int = 0
    steady_s: list[float] = field(default_factory=list)
    raw_s: list[float] = field(default_factory=list)
    first_pod_s: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    after_mib: list[float] = field(default_factory=list)
    refused: int = 0
    restart_writes: list[int] = field(default_factory=list)


def measure(console: Console) -> Report:
    """On an API server of its own; nothing else of the machine is touched."""
    with api_server() as server, tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
        return _report(asyncio.run(_measure(server, Path(folder), console)))


async def _measure(server: ApiServer, folder: Path, console: Console) -> Found:
    found = Found(imports_mib=bare_imports())
    async with fleet(server, folder, Fleet) as world:
        async with world.operator() as operator:
            await operator.steady(0)
            await asyncio.sleep(5)
            found.idle_mib = memory(operator.running.pid).pss
            with console.step(f"{LIVE} live runs"):
                await _live(world)
            await operator.steady(LIVE)
            found.live_mib = memory(operator.running.pid).pss
            with console.step(f"{IDLE_S:.0f} s of nothing"):
                await _idle(world, operator, found)
            with console.step(f"{FINISHED} finished runs"):
                await _finished(world)
        for n in range(ROUNDS):
            with console.step(f"restart {n + 1} of {ROUNDS}"):
                found.raw_s.append(await _raw(world))
                await _restart(world, found, f"after-{n}")
        _once(world)
    return found


def bare_imports() -> float:
    """PSS of a process that has only imported what the operator is built on."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{IMPORTS}; print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as bare:
        assert bare.stdout is not None
        assert bare.stdin is not None
        bare.stdout.readline()
        found = memory(bare.pid).pss
        bare.stdin.write(b"\n")
        bare.stdin.close()
    return found


async def _live(world: Fleet) -> None:
    names = [f"live-{n:03}" for n in range(LIVE)]
    world.live.update(names)
    await world.apply(names)
    await world.board.wait_all(names, "running", 180)


async def _finished(world: Fleet) -> None:
    names = [f"done-{n:04}" for n in range(FINISHED)]
    for start in range(0, FINISHED, 100):  # as a day of work brings them, not all at once
        await world.apply(names[start : start + 100])
        await world.board.wait_all(names[start : start + 100], "ended", 180)


async def _idle(world: Fleet, operator: Operator, found: Found) -> None:
    """Runs are at rest once their last status is written, which may take a pause of ten seconds."""
    await asyncio.sleep(12)
    versions, before, renewals = await _versions(world), await operator.writes(), await operator.renewals()
    await asyncio.sleep(IDLE_S)
    after, found.idle_renewals = await operator.writes(), await operator.renewals() - renewals
    found.idle_writes = sum(after.values()) - sum(before.values())
    found.versions_moved = sum(1 for name, version in (await _versions(world)).items() if versions[name] != version)


async def _versions(world: Fleet) -> dict[str, str]:
    items = (await world.kube.call("GET", f"{AGENTRUNS}/namespaces/{NAMESPACE}/agentruns"))["items"]
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


async def _raw(world: Fleet) -> float:
    """Seconds of a client that lists the same kinds and asks the gateway for each live run, one after the other."""
    began = time.monotonic()
    runs = (await world.kube.call("GET", f"{AGENTRUNS}/namespaces/{NAMESPACE}/agentruns"))["items"]
    await world.kube.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
    await world.kube.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")
    for run in runs:
        if (run.get("status") or {}).get("phase") == "Running":
            (await world.gateway.get(f"/v1/runs/{run['metadata']['uid']}", headers=OPERATOR)).raise_for_status()
    return time.monotonic() - began


async def _restart(world: Fleet, found: Found, probe: str) -> None:
    refused = world.refused()
    async with world.operator() as operator:
        await world.apply([probe])  # somebody's run while the operator isn't there yet
        pod, _ = await world.board.wait(probe, "pod")
        found.first_pod_s.append(pod - operator.began)
        found.steady_s.append(await operator.steady(LIVE))
        held = memory(operator.running.pid)
        found.peak_mib.append(held.peak)
        found.after_mib.append(held.pss)
        found.restart_writes.append(sum((await operator.writes()).values()))
        await world.board.wait(probe, "ended")
    found.refused += world.refused() - refused


def _once(world: Fleet) -> None:
    """Raises HarnessError where a run got a second sandbox, or a player failed."""
    twice = [run for run, pods in world.pods.items() if len(pods) > 1]
    ended = [name for name in world.live if (name, "ended") in world.board.facts]
    if twice or ended or world.failed:
        raise HarnessError(f"two sandboxes: {twice[:3]}; ended: {ended[:3]}; failures: {world.failed[:3]}")


def _report(found: Found) -> Report:
    return Report(
        "restart",
        [
            Figure(
                f"restart with {FINISHED:,} finished and {LIVE} live runs, until the last pass",
                "s",
                found.steady_s,
                found.raw_s,
                READER,
                Aim(30),
            ),
            Figure("… until a run applied meanwhile has its pod", "s", found.first_pod_s),
            Figure("… peak resident memory", "MiB", found.peak_mib, [found.imports_mib], BARE, Aim(200)),
            Figure("… 429s from the API server", "", [found.refused], aim=Aim(0)),
            Figure("operator's memory (PSS), idle", "MiB", [found.idle_mib], [found.imports_mib], BARE, Aim(90)),
            Figure(
                f"operator's memory (PSS), {LIVE} live runs",
                "MiB",
                [found.live_mib],
                [found.imports_mib],
                BARE,
                Aim(110),
            ),
            Figure(
                f"API writes of the operator for {LIVE} idle live runs in {IDLE_S:.0f} s",
                "",
                [found.idle_writes],
                aim=Aim(0),
            ),
        ],
        [
            "no run has a second sandbox, no live run ended, no finished one was worked on again",
            f"resource versions of AgentRuns that moved in the idle minute: {found.versions_moved}",
            f"renewals of the election's Lease in the idle minute, which are no run's: {found.idle_renewals}",
            f"writes after a restart, those for the new run included: {found.restart_writes}",
        ],
        [
            "API server and etcd (without fsync) alone: no node, no kubelet. The bench plays kubelet and runners, "
            f"with a heartbeat of each live run every 10 s. PSS {found.after_mib[-1]:.0f} MiB after the last restart.",
        ],
        found.__dict__,
    )
