"""Part `leases`: what the renewal of Leases costs the API server and etcd, in processor time, beside plain GETs.

The gateway's own renewal (a JSON patch that tests the epoch first) of Leases as the operator makes them, with one watch
on all of them, as the operator keeps it. Each round renews every Lease in turn until 1,000 renewals are done.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes.aio.client import ApiClient, Configuration, CoordinationV1Api

from e2e.bench.client import Kube, token
from e2e.bench.figures import Figure, Report
from e2e.cluster.apiserver import ApiServer, api_server
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.processes import read_pid_file
from moorage.app.apiclient import api_client
from moorage.gateway.cluster import ClusterLeases
from moorage.gateway.settings import GatewaySettings
from moorage.sandbox import spec
from moorage.sandbox.port import RunKey

COUNTS, ROUNDS, CALLS, AT_ONCE = (10, 100, 500), 5, 1000, 8
NAMESPACE, EPOCH = "moorage-bench-leases", 1
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
RULES = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}]


@dataclass
class Found:
    """Milliseconds of processor time for 1,000 calls, one sample each round."""

    renewed: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in COUNTS})
    read: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in COUNTS})
    etcd_renewed: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in COUNTS})
    etcd_read: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in COUNTS})
    told: int = 0
    idle_ms_per_s: float = 0


class Meter:
    """Processor time of one process and all its threads."""

    def __init__(self, pid_file: Path) -> None:
        process = read_pid_file(pid_file)
        if process is None:
            raise HarnessError(f"{pid_file.name} names no process")
        self._stat = Path(f"/proc/{process.pid}/stat")

    def ms(self) -> float:
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def into(self, samples: list[float]) -> Iterator[None]:
        """Add what the block costs it."""
        before = self.ms()
        yield
        samples.append(self.ms() - before)


def measure(console: Console) -> Report:
    """On an API server of its own, without controllers."""
    with api_server(controllers=()) as server:
        server.kubectl("create", "namespace", NAMESPACE)
        return _report(asyncio.run(_measure(server, token(server, NAMESPACE, RULES), console)))


async def _measure(server: ApiServer, bearer: str, console: Console) -> Found:
    found, names = Found(), []
    async with _client(server, bearer) as api, Kube(server.kubeconfig, bearer) as kube, _watched(kube, found):
        for n in range(max(COUNTS)):
            run = RunKey(uid=f"uid-{n:03}", tenant=NAMESPACE, name=f"run-{n:03}")
            made = await kube.call("POST", LEASES, spec.lease(run, EPOCH, "attempt-1", _stamp()))
            names.append(made["metadata"]["name"])
        servers = [Meter(server.folder / name) for name in ("apiserver.pid", "etcd.pid")]
        await _idle(servers[0], found)
        for n in range(ROUNDS):
            for count in COUNTS:
                with console.step(f"round {n + 1} of {ROUNDS}, {count} Leases"):
                    await _round(api, names[:count], servers, found)
        await _told(found, ROUNDS * len(COUNTS) * CALLS)
    return found


async def _told(found: Found, renewals: int, within_s: float = 30.0) -> None:
    """Wait until the watch has told of each."""
    until = time.monotonic() + within_s
    while found.told < renewals:
        if time.monotonic() > until:
            raise HarnessError(f"the watch told of {found.told} of {renewals} renewals")
        await asyncio.sleep(0.05)


async def _idle(server: Meter, found: Found) -> None:
    before, began = server.ms(), time.monotonic()
    await asyncio.sleep(5)
    found.idle_ms_per_s = (server.ms() - before) / (time.monotonic() - began)


async def _round(api: ApiClient, names: list[str], meters: list[Meter], found: Found) -> None:
    leases, reader, count = ClusterLeases(api), CoordinationV1Api(api), len(names)

    async def renew(name: str) -> None:
        if not await leases.renew(NAMESPACE, name, EPOCH, time.time_ns() // 1_000_000):
            raise HarnessError(f"the renewal of {name} was refused")

    async def read(name: str) -> None:
        await reader.read_namespaced_lease(name, NAMESPACE)

    with meters[0].into(found.renewed[count]), meters[1].into(found.etcd_renewed[count]):
        await _calls(renew, names)
    with meters[0].into(found.read[count]), meters[1].into(found.etcd_read[count]):
        await _calls(read, names)


async def _calls(call: Callable[[str], Awaitable[None]], names: list[str]) -> None:
    """CALLS of them over all names in turn, AT_ONCE at a time."""
    turns = iter([names[n % len(names)] for n in range(CALLS)])

    async def work() -> None:
        for name in turns:
            await call(name)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


@asynccontextmanager
async def _client(server: ApiServer, bearer: str) -> Any:
    configuration = Configuration(host=server.url)
    configuration.ssl_ca_cert = str(server.ca_file)
    configuration.api_key = {"BearerToken": f"Bearer {bearer}"}
    async with api_client(configuration) as api:
        yield api


@asynccontextmanager
async def _watched(kube: Kube, found: Found) -> Any:
    def heard(at: float, kind: str, body: dict[str, Any]) -> None:
        found.told += kind == "MODIFIED"

    async with kube.watching(LEASES, heard):
        yield


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())


def _report(found: Found) -> Report:
    figures = []
    for count in COUNTS:
        about = f"1,000 renewals of {count} Leases, the API server's processor time"
        figures.append(Figure(about, "ms", found.renewed[count], found.read[count], "1,000 GETs of them"))
        figures.append(
            Figure("… etcd's", "ms", found.etcd_renewed[count], found.etcd_read[count], "1,000 GETs of them")
        )
    every = GatewaySettings().lease_renewal_ms / 1000
    load = statistics.median(found.renewed[max(COUNTS)]) / CALLS * max(COUNTS) / every
    return Report(
        "leases",
        figures,
        ["no renewal was refused; the watch told of each"],
        [
            f"One watch on all of them, {AT_ONCE} calls at once. API server and etcd (without fsync) are "
            f"alone; at rest the API server takes {found.idle_ms_per_s:.0f} ms a second, which is in all figures.",
            f"A run's Lease is renewed every {every:.0f} s: {max(COUNTS)} live runs cost the API server "
            f"{load:.0f} ms a second.",
        ],
        found.__dict__,
    )
