"""The operator in this process, against a real API server and a real gateway, with a test in the kubelet's place."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import httpx
import structlog
from kubernetes.aio.client import ApiClient
from prometheus_client import CollectorRegistry

from e2e.cluster.apiserver import ApiServer, api_server
from moorage.api import names
from moorage.clock import SystemClock
from moorage.controller.gateway_client import GatewayClient, session
from moorage.controller.process import Deps, run_operator
from moorage.controller.settings import OperatorSettings
from moorage.core.run.resolve import Defaults
from moorage.sandbox.kube import KubeApi, load_configuration, path_of
from moorage.sandbox.spec import SandboxSettings
from moorage.telemetry.metrics import OperatorMetrics
from moorage.testing.gateway import OPERATOR_TOKEN, LocalGateway

LEASES = "coordination.k8s.io/v1"
OURS = f"{names.MANAGED_BY}={names.PRODUCT}"
CRDS = Path(__file__).parents[2] / "crds"
LAX = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: agentruns.moorage.dev}
spec:
  group: moorage.dev
  scope: Namespaced
  names: {plural: agentruns, singular: agentrun, kind: AgentRun, shortNames: [ar]}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
PATIENCE_S = 45.0  # a busy machine is slow, and a test has a minute
SANDBOXES = SandboxSettings(
    gateway_ip="10.96.0.10",
    gateway_port=8080,
    gateway_namespace="moorage-system",
    gateway_labels={"app.kubernetes.io/component": "gateway"},
)
SPEC: dict[str, Any] = {
    "workspace": {"ephemeral": {}},
    "goal": "Mend it.",
    "agent": {"driver": "command", "command": ["true"]},
}


def install_crds(server: ApiServer) -> None:
    """Once per server; again is harmless."""
    server.kubectl("apply", "--server-side", "-f", str(CRDS))
    server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


def install_lax_definition(server: ApiServer) -> None:
    """AgentRuns of any shape, as an older version's schema may have let them in."""
    server.kubectl("apply", "-f", "-", stdin=LAX)
    server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@dataclass
class OperatorWorld:
    """One namespace, one gateway, and an operator that can be stopped and started."""

    server: ApiServer
    namespace: str
    gateway: LocalGateway
    api: KubeApi
    configuration: Any
    writes: list[tuple[str, str]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    _stop: asyncio.Event | None = None
    _task: asyncio.Task[None] | None = None
    _http: aiohttp.ClientSession | None = None
    _client: GatewayClient | None = None
    log: Any = None

    # --- the operator -------------------------------------------------------------------------------------------------

    async def start(self, *, token: str = OPERATOR_TOKEN, **changes: Any) -> None:
        """Start the operator; returns once it watches."""
        base: dict[str, Any] = {
            "gateway_url": self.gateway.url,
            "gateway_token_file": Path("/dev/null"),
            "namespace": "moorage-system",
            "gateway_service": "gateway",
            "defaults": Defaults(image="localhost/moorage/base:1", cpu="1", memory="1Gi", disk="1Gi"),
            "watch_namespaces": (self.namespace,),
            "max_live_runs": 100,
            "scan_s": 1.0,
        }
        self._http = session()
        self._client = GatewayClient(self._http, self.gateway.url or "", lambda: token)
        self._stop, ready = asyncio.Event(), asyncio.Event()
        operator_api = KubeApi(ApiClient(self.configuration), lambda *write: self.writes.append(write))
        deps = Deps(
            api=operator_api,
            configuration=self.configuration,
            gateway=self._client,
            clock=SystemClock(),
            metrics=OperatorMetrics(CollectorRegistry()),
            log=self.log or structlog.get_logger(),
            chance=Random(7),
            drivers=frozenset({"command", "builtin"}),
        )

        async def live() -> None:
            try:
                await run_operator(
                    OperatorSettings(**(base | self.settings | changes)), SANDBOXES, deps, stop=self._stop, ready=ready
                )
            finally:
                await operator_api.close()

        self._task = asyncio.create_task(live())
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Stop it; nothing is told to anybody."""
        if self._task is not None and self._stop is not None and self._http is not None:
            self._stop.set()
            await self._task
            await self._http.close()
            self._task = None

    def lose_gateway(self) -> Callable[[], None]:
        """The operator finds nobody there any more; what is returned mends it."""
        client = self._client
        assert client is not None
        good, client.url = client.url, "http://127.0.0.1:9"

        def mend() -> None:
            client.url = good

        return mend

    # --- objects ------------------------------------------------------------------------------------------------------

    def path(self, resource: str, name: str | None = None, version: str = "v1") -> str:
        return path_of(version, resource, self.namespace, name)

    def run_path(self, name: str) -> str:
        return self.path("agentruns", name, names.API_VERSION)

    async def apply_run(self, name: str, **spec: Any) -> dict[str, Any]:
        merged = {k: v for k, v in (SPEC | spec).items() if v is not None}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "AgentRun",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": merged,
        }
        return await self.api.create(self.path("agentruns", version=names.API_VERSION), body)

    async def run(self, name: str) -> dict[str, Any]:
        return await self.api.get(self.run_path(name)) or {}

    async def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.run(name)).get("status") or {}
        return found

    async def pods(self, role: str | None = None) -> list[dict[str, Any]]:
        labels = f"{names.ROLE}={role}" if role else None
        return await self.api.items(self.path("pods"), labels=labels)

    async def standing(self) -> list[str]:
        """What stands for runs in the namespace; a claim that only waits for the protection controller is gone."""
        found = []
        for version, resource in (("v1", "pods"), ("v1", "persistentvolumeclaims"), (LEASES, "leases")):
            items = await self.api.items(self.path(resource, version=version), labels=OURS)
            found += [f"{resource}/{i['metadata']['name']}" for i in items if "deletionTimestamp" not in i["metadata"]]
        return found

    async def until_nothing_stands(self, seconds: float = PATIENCE_S) -> None:
        """Kubernetes' garbage collector hears of new kinds every 30 s only."""

        async def nothing() -> bool:
            return not await self.standing()

        await self.until(nothing, "nothing of any run is left", seconds)

    async def view(self, uid: str) -> dict[str, Any]:
        """The run as the gateway has it."""
        found: dict[str, Any] = (await self.gateway.operator.get(f"/v1/runs/{uid}")).json()
        return found

    async def until_released(self, uid: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        async def released() -> dict[str, Any] | None:
            view = await self.view(uid)
            return view if view.get("released") else None

        found: dict[str, Any] = await self.until(released, "the release at the gateway", seconds)
        return found

    async def until(self, check: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
        """Ask until the answer is true; then return it."""
        deadline = time.monotonic() + seconds
        while True:
            found = await check()
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}; {await self._picture()}")
            await asyncio.sleep(0.02)

    async def _picture(self) -> str:
        runs = await self.api.items(self.path("agentruns", version=names.API_VERSION))
        told = [{key: (r.get("status") or {}).get(key) for key in ("phase", "reason", "message")} for r in runs]
        return f"{json.dumps(told)}; {json.dumps([r.get('status') for r in runs])}"[:4000]

    async def until_phase(self, name: str, *phases: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            status = await self.status(name)
            return status if status.get("phase") in phases else None

        found: dict[str, Any] = await self.until(reached, f"{name} in {phases}", seconds)
        return found

    async def until_reason(self, name: str, reason: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            status = await self.status(name)
            return status if status.get("reason") == reason else None

        found: dict[str, Any] = await self.until(reached, f"{name} because of {reason}", seconds)
        return found

    async def until_pod(self, role: str = "runner", epoch: int = 1, seconds: float = PATIENCE_S) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            pods = await self.pods(role)
            return next((p for p in pods if p["metadata"]["labels"][names.EPOCH] == str(epoch)), None)

        found: dict[str, Any] = await self.until(there, f"{role} of epoch {epoch}", seconds)
        return found

    # --- the kubelet --------------------------------------------------------------------------------------------------

    async def set_pod(self, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        name = pod["metadata"]["name"]
        await self.api.patch(f"{self.path('pods', name)}/status", {"status": status})

    async def start_pod(self, pod: Mapping[str, Any]) -> None:
        state = {"running": {"startedAt": now()}}
        await self.set_pod(pod, {"phase": "Running", "containerStatuses": [container(state)]})

    async def end_pod(self, pod: Mapping[str, Any], **terminated: Any) -> None:
        state = {"terminated": {"exitCode": 0, "finishedAt": now(), "startedAt": now(), **terminated}}
        phase = "Succeeded" if state["terminated"]["exitCode"] == 0 else "Failed"
        await self.set_pod(pod, {"phase": phase, "containerStatuses": [container(state)]})

    async def succeed(self, name: str, **spec: Any) -> dict[str, Any]:
        """Apply a run, play its kubelet and runner, and wait for its end."""
        await self.apply_run(name, **spec)
        pod = await self.until_pod()
        await self.work(pod)
        await self.end_pod(pod)
        return await self.until_phase(name, "Succeeded")

    # --- the runner ---------------------------------------------------------------------------------------------------

    def sandbox(self, pod: Mapping[str, Any]) -> httpx.AsyncClient:
        """A client with that pod's token."""
        return self.gateway.sandbox(pod["metadata"]["uid"], self.namespace)

    async def assignment(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """What the sandbox is for, once it is registered."""

        async def asked() -> dict[str, Any] | None:
            answer = await client.get("/v1/self")
            return answer.json() if answer.status_code == 200 else None

        found: dict[str, Any] = await self.until(asked, "an assignment")
        return found

    async def work(self, pod: Mapping[str, Any], *, finish: bool = True) -> None:
        """An agent that changes nothing and says that it is done."""
        await self.start_pod(pod)
        client = self.sandbox(pod)
        task = await self.assignment(client)
        epoch, git = task["epoch"], task["git"]
        await self.report(client, epoch, "WORKSPACE_READY", {"base": git["base"], "branch": git["branch"]})
        await self.report(client, epoch, "AGENT_STARTED", {})
        if finish:
            await self.finish(pod)

    async def finish(self, pod: Mapping[str, Any], outcome: str = "completed") -> None:
        client = self.sandbox(pod)
        epoch = (await self.assignment(client))["epoch"]
        body = {"epoch": epoch, "outcome": outcome, "reason": "Exited", "exit_code": 0, "recorded_at": now_ms()}
        answer = await client.post("/v1/self/result", json=body)
        assert answer.status_code == 200, answer.text

    async def judge(self, pod: Mapping[str, Any], *, exit_code: int) -> None:
        """A verifier's word on what it was given."""
        client = self.sandbox(pod)
        task = await self.assignment(client)
        check = {"name": "tests", "run": "true", "exit_code": exit_code, "duration_ms": 5, "output": ""}
        digest = hashlib.sha256(b"key").hexdigest()
        await self.report(client, task["epoch"], "VERIFICATION_STARTED", {"key_sha256": digest})
        commit = task["git"]["commit"]
        body = {"epoch": task["epoch"], "commit": commit, "key": "key", "checks": [check], "recorded_at": now_ms()}
        answer = await client.post("/v1/self/verification", json=body)
        assert answer.status_code == 200, answer.text

    async def report(self, client: httpx.AsyncClient, epoch: int, kind: str, payload: dict[str, Any]) -> None:
        record = {"record_id": kind, "type": kind, "payload": payload, "recorded_at": now_ms()}
        answer = await client.post("/v1/self/records", json={"epoch": epoch, "records": [record]})
        assert answer.status_code == 200, answer.text

    def count(self, *resources: str) -> int:
        """Writes of the operator to these resources, Events apart."""
        return sum(1 for _, resource in self.writes if resource in resources)


def container(state: Mapping[str, Any], name: str = "runner") -> dict[str, Any]:
    return {
        "name": name,
        "image": "x",
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": dict(state),
    }


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextlib.asynccontextmanager
async def operator_world(server: ApiServer, namespace: str, folder: Path) -> AsyncIterator[OperatorWorld]:
    """Everything but the operator, which a test starts."""
    configuration = await load_configuration(str(server.kubeconfig))
    api = KubeApi(ApiClient(configuration))
    async with LocalGateway(folder).serving() as gateway:
        world = OperatorWorld(server, namespace, gateway, api, configuration)
        try:
            yield world
        finally:
            await world.stop()
            await api.close()


@contextlib.asynccontextmanager
async def own_world(folder: Path, install: Callable[[ApiServer], None]) -> AsyncIterator[OperatorWorld]:
    """The same on an API server of its own, whose definitions are what `install` makes them."""
    with api_server() as server:
        install(server)
        server.kubectl("create", "namespace", "team")
        async with operator_world(server, "team", folder) as world:
            yield world
