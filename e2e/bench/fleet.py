"""Hundreds of runs on an API server alone: operator and gateway are processes, the bench plays kubelet and runners."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx

from e2e.bench.client import AGENTRUNS, RULES, Board, Body, Kube, token
from e2e.cluster import controlplane
from e2e.cluster.apiserver import ApiServer
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import CHECKOUT
from e2e.operator_process import environment
from moorage.testing.gateway import OPERATOR_TOKEN

NAMESPACE = "fleet"
ANYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
ENDS = {"Succeeded", "Failed", "Cancelled"}
MAX_LIVE, AT_ONCE, BEAT_S = 300, 12, 10.0
STEADY_S = 3.0
COUNTER = re.compile(r"^(moorage_operator_\w+?)(?:_total)?(?:\{(.*)\})? ([0-9.e+-]+)$", re.MULTILINE)
RENEWALS = re.compile(r"^moorage_leader_writes_total\{.*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Of one process, in MiB; `peak` is resident."""

    pss: float
    peak: float


def memory(pid: int) -> Memory:
    """From /proc."""
    rollup, status = Path(f"/proc/{pid}/smaps_rollup").read_text(), Path(f"/proc/{pid}/status").read_text()
    return Memory(_kib(rollup, "Pss") / 1024, _kib(status, "VmHWM") / 1024)


def _kib(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


@contextlib.contextmanager
def process(log: Path, *argv: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python module as a process; SIGTERM at the end, SIGKILL after 10 s more. `env` is added to ours."""
    told = {**os.environ, **(env or {})}
    with log.open("ab") as out:
        running = subprocess.Popen([sys.executable, "-m", *argv], stdout=out, stderr=out, cwd=CHECKOUT, env=told)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@dataclass(frozen=True)
class Operator:
    """One life of the operator."""

    running: subprocess.Popen[bytes]
    http: httpx.AsyncClient
    began: float

    async def metrics(self) -> Counter[str]:
        """Its counters and gauges, by `name labels`; nothing while it doesn't answer yet."""
        try:
            text = (await self.http.get("/metrics")).text
        except httpx.TransportError:
            if self.running.poll() is not None:
                raise HarnessError(f"the operator ended with {self.running.returncode}") from None
            return Counter()
        rows = COUNTER.findall(text)
        return Counter(
            {f"{name.removeprefix('moorage_operator_')} {labels}".strip(): float(n) for name, labels, n in rows}
        )

    async def steady(self, live: int, within_s: float = 120) -> float:
        """Seconds from its start to its last pass, once it knows `live` runs and no pass came for a while."""
        passes, at = -1.0, time.monotonic()
        deadline = at + within_s
        while time.monotonic() < deadline:
            seen = await self.metrics()
            now = time.monotonic()
            if (done := _sum(seen, "passes ")) != passes:
                passes, at = done, now
            elif now - at > STEADY_S and seen and passes >= live:
                return at - self.began
            await asyncio.sleep(0.1)
        raise HarnessError(f"the operator wasn't steady within {within_s} s, after {passes:.0f} passes")

    async def writes(self) -> Counter[str]:
        """API writes so far, Events apart."""
        seen = await self.metrics()
        return Counter({k: int(n) for k, n in seen.items() if k.startswith("api_writes ") and "events" not in k})

    async def renewals(self) -> int:
        """Writes of the election's Lease so far, which `writes` leaves out."""
        text = (await self.http.get("/metrics")).text
        return sum(int(float(n)) for n in RENEWALS.findall(text))


def _sum(seen: Counter[str], prefix: str) -> float:
    return sum(n for key, n in seen.items() if key.startswith(prefix))


@dataclass
class Fleet:
    """API server, gateway and the players; operators come and go."""

    rules: ClassVar[list[dict[str, Any]]] = RULES  # of the bench's own account
    gateway_flags: ClassVar[tuple[str, ...]] = ()
    operator_flags: ClassVar[tuple[str, ...]] = ()
    max_live: ClassVar[int] = MAX_LIVE
    server: ApiServer
    folder: Path
    kube: Kube
    gateway: httpx.AsyncClient
    board: Board = field(default_factory=Board)
    live: set[str] = field(default_factory=set)  # runs that stay live, by name
    pods: dict[str, list[str]] = field(default_factory=dict)  # UIDs of pods, by run
    beating: dict[str, int] = field(default_factory=dict)  # epoch, by pod UID
    _seats: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _players: set[asyncio.Task[None]] = field(default_factory=set)
    failed: list[BaseException] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        """Start one; it ends with the block."""
        port = free_port()
        env = environment(str(self.gateway.base_url), port, MAX_LIVE_RUNS=str(self.max_live), NAMESPACE=NAMESPACE)
        argv = ("e2e.operator_process", str(self.folder / "operator.kubeconfig"), *self.operator_flags)
        began = time.monotonic()
        with process(self.folder / "operator.log", *argv, env=env) as running:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                yield Operator(running, http, began)

    async def apply(self, names: list[str], namespace: Callable[[str], str] = lambda _: NAMESPACE) -> None:
        """Create that many AgentRuns, each in the namespace that its name says."""
        waiting = list(reversed(names))

        async def send() -> None:
            while waiting:
                body = agent_run(waiting.pop())
                body["metadata"]["namespace"] = where = namespace(body["metadata"]["name"])
                await self.kube.call("POST", f"{AGENTRUNS}/namespaces/{where}/agentruns", body)

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))

    def pod_heard(self, at: float, kind: str, body: Body) -> None:
        """A player for each new pod."""
        if kind != "ADDED":
            return
        run = body["metadata"]["ownerReferences"][0]["name"]
        self.pods.setdefault(run, []).append(body["metadata"]["uid"])
        self.board.tell(at, run, "pod")
        player = asyncio.get_running_loop().create_task(self._play(run, body))
        self._players.add(player)
        player.add_done_callback(self._played)

    def _played(self, player: asyncio.Task[None]) -> None:
        self._players.discard(player)
        if not player.cancelled() and (failure := player.exception()) is not None:
            self.failed.append(failure)

    def run_heard(self, at: float, _kind: str, body: Body) -> None:
        """Told once each: Running, and the end."""
        self.board.tell(at, body["metadata"]["name"], "seen")
        status = body.get("status") or {}
        if status.get("phase") == "Running":
            self.board.tell(at, body["metadata"]["name"], "running")
        if status.get("phase") in ENDS:
            self.board.tell(at, body["metadata"]["name"], "ended", status)

    async def _play(self, run: str, pod: Body) -> None:
        """The kubelet's and the runner's part; a run that isn't to stay live proposes nothing and ends."""
        uid = pod["metadata"]["uid"]
        async with self._seats:
            await self._boot(pod)
            task = await self._assignment(uid)
            epoch, git = task["epoch"], task["git"]
            ready = {"base": git["base"], "branch": git["branch"], "head": git["base"], "resumed_from": None}
            await self._report(uid, epoch, ("WORKSPACE_READY", ready), ("AGENT_STARTED", {"driver": "command"}))
        if run in self.live:
            self.beating[uid] = epoch
            return
        await self._hold(uid, epoch)
        async with self._seats:
            result = {"epoch": epoch, "outcome": "completed", "reason": "Completed", "exit_code": 0}
            await self._post(uid, "/v1/self/result", result | {"recorded_at": now_ms()})
            terminated = {"exitCode": 0, "startedAt": stamp(), "finishedAt": stamp()}
            await self.kube.call(
                "PATCH", self._status(pod), {"status": pod_status("Succeeded", {"terminated": terminated})}
            )

    @staticmethod
    def _status(pod: Body) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"

    async def _boot(self, pod: Body) -> None:
        """The kubelet's part until the runner has begun."""
        running = pod_status("Running", {"running": {"startedAt": stamp()}})
        await self.kube.call("PATCH", self._status(pod), {"status": running})

    async def _hold(self, uid: str, epoch: int) -> None:
        """The agent's work; here it takes no time."""

    def _as(self, uid: str) -> dict[str, str]:
        return {"authorization": f"Bearer {NAMESPACE}/{uid}"}

    async def _assignment(self, uid: str) -> Any:
        while True:
            answer = await self.gateway.get("/v1/self", headers=self._as(uid))
            if answer.status_code == 200:
                return answer.json()
            if answer.status_code not in {401, 403, 404, 425}:
                raise HarnessError(f"GET /v1/self: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.05)

    async def _report(self, uid: str, epoch: int, *facts: tuple[str, dict[str, Any]]) -> None:
        records = [{"record_id": k, "type": k, "payload": p, "recorded_at": now_ms()} for k, p in facts]
        await self._post(uid, "/v1/self/records", {"epoch": epoch, "records": records})

    async def _post(self, uid: str, door: str, body: dict[str, Any]) -> None:
        answer = await self.gateway.post(door, json=body, headers=self._as(uid))
        if answer.status_code != 200:
            raise HarnessError(f"POST {door}: {answer.status_code} {answer.text}")

    async def beat(self) -> None:
        """Heartbeats of every live runner, until cancelled."""
        while True:
            for uid, epoch in list(self.beating.items()):
                await self._heartbeat(uid, epoch)
                await asyncio.sleep(BEAT_S / max(1, len(self.beating)))
            await asyncio.sleep(0.1)

    async def _heartbeat(self, uid: str, epoch: int) -> None:
        body = {"work_id": uid, "epoch": epoch, "progress_seq": 1, "observed_at": now_ms()}
        await self._post(uid, "/v1/self/heartbeat", body)

    def refused(self) -> int:
        """429s that the API server has given."""
        found = re.findall(
            r'^apiserver_request_total\{[^}]*code="429"[^}]*\} (\d+)', self.server.get("/metrics"), re.MULTILINE
        )
        return sum(map(int, found))


F = TypeVar("F", bound=Fleet)


@contextlib.asynccontextmanager
async def fleet(server: ApiServer, folder: Path, kind: type[F]) -> AsyncIterator[F]:
    """Everything but operator and runs."""
    server.kubectl("apply", "--server-side", "-f", str(CHECKOUT / "crds"))
    server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    for namespace in (NAMESPACE, "moorage-system"):
        server.kubectl("create", "namespace", namespace)
    for name in ("operator", "gateway"):
        bearer = token(server, "moorage-system", ANYTHING, name)
        (folder / f"{name}.kubeconfig").write_text(controlplane.kubeconfig(server.url, server.ca_file, bearer))
    port = free_port()
    argv = (
        "e2e.bench.gateway_process",
        str(folder),
        str(port),
        str(folder / "gateway.kubeconfig"),
        *kind.gateway_flags,
    )
    limits = httpx.Limits(max_connections=64)
    with process(folder / "gateway.log", *argv):
        async with (
            Kube(server.kubeconfig, token(server, NAMESPACE, kind.rules)) as kube,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, limits=limits, timeout=60
            ) as gateway,
        ):
            await _answers(gateway)
            found = kind(server, folder, kube, gateway)
            beating = asyncio.create_task(found.beat())
            async with (
                kube.watching("/api/v1/pods", found.pod_heard),
                kube.watching(f"{AGENTRUNS}/agentruns", found.run_heard),
            ):
                yield found
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


async def _answers(gateway: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            await gateway.get("/healthz")
            return
        await asyncio.sleep(0.1)
    raise HarnessError("the gateway doesn't answer")


def agent_run(name: str) -> Body:
    """A run in an empty workspace of its own."""
    spec = {
        "workspace": {"ephemeral": {}},
        "goal": "Mend it.",
        "agent": {"driver": "command", "command": ["true"]},
    }
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": "AgentRun", "metadata": meta, "spec": spec}


def pod_status(phase: str, state: Body) -> Body:
    """As a kubelet would tell it."""
    container = {"name": "runner", "image": "x", "imageID": "", "ready": "running" in state, "restartCount": 0}
    return {"phase": phase, "containerStatuses": [{**container, "state": state}]}


OPERATOR = {"authorization": f"Bearer {OPERATOR_TOKEN}"}


def stamp() -> str:
    """Now, as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def now_ms() -> int:
    """Now, in ms."""
    return time.time_ns() // 1_000_000
