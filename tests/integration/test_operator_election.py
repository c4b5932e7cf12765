"""F7 with real processes against a real API server: one leads, the others stand by, and nothing happens twice."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.operator_world import LEASES, OperatorWorld, now_ms

from e2e.bench.fleet import free_port
from e2e.cluster.paths import CHECKOUT
from e2e.operator_process import environment
from moorage.sandbox.kube import path_of

pytestmark = pytest.mark.integration
LEASE = "moorage-operator"


@dataclass
class Replica:
    """One operator's process."""

    name: str
    process: subprocess.Popen[bytes]
    http: httpx.AsyncClient
    log: Path

    def signal(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)

    async def ended(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), 40)

    async def code(self, path: str) -> int:
        try:
            return (await self.http.get(path)).status_code
        except httpx.TransportError:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            return 0

    async def metrics(self) -> dict[str, float]:
        """Samples by name with labels."""
        text = (await self.http.get("/metrics")).text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    async def wrote(self) -> float:
        """Writes to the API server, the election's included."""
        return sum(n for name, n in (await self.metrics()).items() if "writes_total" in name)


def spawn(argv: list[str], log: Path, told: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(argv, stdout=out, stderr=out, cwd=CHECKOUT, env=os.environ | told)


@dataclass
class Replicas:
    """Those of one namespace."""

    world: OperatorWorld
    folder: Path
    stack: contextlib.AsyncExitStack

    async def start(self, name: str) -> Replica:
        port, log = free_port(), self.folder / f"{name}.log"
        told = environment(
            self.world.gateway.url or "",
            port,
            NAMESPACE=self.world.namespace,
            WATCH_NAMESPACES=self.world.namespace,
            POD_NAME=name,
            SCAN_SECONDS="1",
        )
        argv = [sys.executable, "-m", "e2e.operator_process", str(self.world.server.kubeconfig)]
        process = await asyncio.to_thread(spawn, argv, log, told)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        replica = Replica(name, process, await self.stack.enter_async_context(http), log)

        async def ready() -> bool:
            return await replica.code("/readyz") == 200

        await self.world.until(ready, f"{name} ready")
        return replica

    async def lease(self) -> dict[str, Any]:
        path = path_of(LEASES, "leases", self.world.namespace, LEASE)
        return await self.world.api.get(path) or {"spec": {}}

    async def until_led_by(self, replica: Replica) -> None:
        async def led() -> bool:
            return (await self.lease())["spec"].get("holderIdentity") == replica.name

        await self.world.until(led, f"{replica.name} leads")


@pytest.fixture
async def replicas(world: OperatorWorld, tmp_path: Path) -> AsyncIterator[Replicas]:
    async with contextlib.AsyncExitStack() as stack:
        yield Replicas(world, tmp_path, stack)


@dataclass
class Work:
    """A run whose sandbox the test plays; its heart beats until it ends."""

    world: OperatorWorld
    name: str
    uid: str
    pod: dict[str, Any]
    heart: asyncio.Task[None]

    @classmethod
    async def begin(cls, world: OperatorWorld, name: str) -> "Work":
        """Apply it and let its agent work."""
        uid = (await world.apply_run(name))["metadata"]["uid"]

        async def pod() -> dict[str, Any] | None:
            return next((p for p in await world.pods() if owner(p) == uid), None)

        found: dict[str, Any] = await world.until(pod, f"a pod of {name}")
        await world.work(found, finish=False)
        await world.until_phase(name, "Running")
        return cls(world, name, uid, found, asyncio.create_task(beat(world, uid, found)))

    async def end(self) -> dict[str, Any]:
        """Its agent is done; return the run's last status."""
        self.heart.cancel()
        await self.world.finish(self.pod)
        await self.world.end_pod(self.pod)
        return await self.world.until_phase(self.name, "Succeeded")

    async def picture(self) -> str:
        """What a second operator would change about it: its journal's state, its attempt, its sandboxes, its Lease."""
        world = self.world
        leases = await world.api.items(world.path("leases", version=LEASES))
        mine = [o for o in (*await world.pods(), *leases) if self.uid in json.dumps(o["metadata"])]
        held = [(o["metadata"]["name"], o["metadata"]["uid"], o["metadata"].get("annotations")) for o in mine]
        view, status = await world.view(self.uid), await world.status(self.name)
        told = [status.get(name) for name in ("phase", "attempt", "epoch")]  # the rest may be told a little later
        return json.dumps([sorted(held, key=str), view["state"], told], indent=1)


def owner(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


async def beat(world: OperatorWorld, uid: str, pod: dict[str, Any]) -> None:
    async with world.sandbox(pod) as client:
        while True:
            body = {"work_id": uid, "epoch": 1, "progress_seq": 1, "observed_at": now_ms()}
            (await client.post("/v1/self/heartbeat", json=body)).raise_for_status()
            await asyncio.sleep(2)


@pytest.mark.rule("F7")
async def test_a_standby_is_ready_writes_nothing_and_leads_at_once_where_the_leader_ends(replicas: Replicas) -> None:
    world = replicas.world
    first = await replicas.start("first")
    await replicas.until_led_by(first)
    second = await replicas.start("second")
    work = await Work.begin(world, "fix")
    assert (await first.metrics())["moorage_leader"] == 1
    assert (await second.metrics())["moorage_leader"] == 0
    assert await second.wrote() == 0
    assert (await second.code("/healthz"), await second.code("/readyz")) == (200, 200)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0
    holder = (await replicas.lease())["spec"].get("holderIdentity")
    assert holder in {None, "second"}, "nobody waits for a leader that has ended"
    await replicas.until_led_by(second)
    status = await work.end()
    assert (status["attempt"], status["epoch"]) == (1, 1)
    assert (await replicas.lease())["spec"]["leaseTransitions"] == 2
    assert (await second.metrics())["moorage_leader"] == 1


@pytest.mark.rule("F7", "R7")
async def test_a_dead_leader_is_replaced_once_its_lease_is_over(replicas: Replicas) -> None:
    world = replicas.world
    first = await replicas.start("first")
    await replicas.until_led_by(first)
    second = await replicas.start("second")
    work = await Work.begin(world, "fix")
    first.signal(signal.SIGKILL)
    await first.ended()
    held = (await replicas.lease())["spec"]
    assert held["holderIdentity"] == "first"
    await replicas.until_led_by(second)
    status = await work.end()
    assert (status["attempt"], status["epoch"]) == (1, 1)


@pytest.mark.rule("F7", "F6")
async def test_a_leader_that_was_frozen_past_its_lease_ends_and_changes_nothing(replicas: Replicas) -> None:
    """Whatever it was at when it was stopped, and whatever came while it was: nothing happens a second time."""
    world = replicas.world
    first = await replicas.start("first")
    await replicas.until_led_by(first)
    second = await replicas.start("second")
    busy = [await Work.begin(world, f"fix-{n}") for n in range(2)]
    await world.apply_run("caught")  # whatever it has done about that one when it is stopped
    first.signal(signal.SIGSTOP)
    await replicas.until_led_by(second)
    new = await Work.begin(world, "new")
    assert (await busy[0].end())["attempt"] == 1
    live = [busy[1], new]
    before = [await work.picture() for work in live]
    first.signal(signal.SIGCONT)
    assert await first.ended() == 1, "its process ends"
    assert "deposed" in first.log.read_text()
    assert [await work.picture() for work in live] == before, "and it changed nothing"
    for work in live:
        status = await work.end()
        assert (status["attempt"], status["epoch"]) == (1, 1)
    caught = await world.until_phase("caught", "Provisioning", "Running")
    assert caught["attempt"] == 1, "under whatever epoch: its Lease may have stood when the other one looked"


@pytest.mark.rule("F7")
async def test_a_leader_whose_lease_another_one_holds_ends(replicas: Replicas) -> None:
    world = replicas.world
    first = await replicas.start("first")
    await replicas.until_led_by(first)
    work = await Work.begin(world, "fix")
    taken = json.dumps({"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 1}})
    place = ("lease", LEASE, "-n", world.namespace)
    await asyncio.to_thread(world.server.kubectl, "patch", *place, "--type=merge", "-p", taken)
    assert await first.ended() == 1
    second = await replicas.start("second")
    await replicas.until_led_by(second)
    status = await work.end()
    assert (status["attempt"], status["epoch"]) == (1, 1)
