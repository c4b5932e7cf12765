"""Part `backlog`: 200 objects that fit no node, until each has been told so; AgentRuns and bare pods in turn."""

import asyncio
import time
from typing import Any

from e2e.bench import runs
from e2e.bench.client import AGENTRUNS, Board, Body, Kube, token
from e2e.bench.figures import Aim, Figure, Report
from e2e.bench.system import System
from e2e.system import Tenant

ROUNDS, COUNT, SENDERS = 3, 200, 16
NAMESPACE = "moorage-bench-backlog"
TOO_MUCH = "640"  # cores: a tenth of them is requested, and no node has 64


def measure(system: System) -> Report:
    """With room for all of them at once; the chart's own limit comes back at the end."""
    cluster = system.cluster
    cluster.deploy(f"admission.maxLiveRuns={COUNT + 50}")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s")
    tenant = Tenant.create(cluster, system.world(), NAMESPACE)
    try:
        return asyncio.run(_measure(system, tenant))
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        cluster.deploy()


async def _measure(system: System, tenant: Tenant) -> Report:
    pods, agentruns = f"/api/v1/namespaces/{NAMESPACE}/pods", f"{AGENTRUNS}/namespaces/{NAMESPACE}/agentruns"
    board = Board()
    ours: list[float] = []
    bare: list[float] = []
    async with (
        Kube(system.cluster.kubeconfig(), token(system.cluster, NAMESPACE)) as kube,
        kube.watching(pods, lambda *event: _pod_heard(board, *event)),
        kube.watching(agentruns, lambda *event: _run_heard(board, *event)),
    ):
        await _round(kube, board, agentruns, [_run(tenant, "warm")])
        before = system.writes()
        for n in range(ROUNDS):
            bare.append(await _round(kube, board, pods, [_pod(f"pod-{n}-{i:03}") for i in range(COUNT)]))
            await _clear(system, kube, pods)
            ours.append(await _round(kube, board, agentruns, [_run(tenant, f"run-{n}-{i:03}") for i in range(COUNT)]))
            await _clear(system, kube, agentruns, pods)
        writes = system.writes() - before
    written = {key: count / (ROUNDS * COUNT) for key, count in sorted(writes.items())}
    return Report(
        "backlog",
        [
            Figure(
                f"{COUNT} objects that fit no node, until all are told so",
                "s",
                ours,
                bare,
                "bare pods",
                Aim(2, "ratio"),
            )
        ],
        [f"each of {ROUNDS * COUNT} runs was told Unschedulable"],
        [
            f"{SENDERS} senders, from the first request to the watch's last word; room for all runs at once.",
            "Writes for each run: " + ", ".join(f"{key} {each:.2g}" for key, each in written.items()) + ".",
        ],
    )


async def _round(kube: Kube, board: Board, path: str, bodies: list[Body]) -> float:
    """Seconds from the first request until the last of them is told."""
    waiting = list(reversed(bodies))

    async def send() -> None:
        while waiting:
            await kube.call("POST", path, waiting.pop())

    began = time.monotonic()
    await asyncio.gather(*(send() for _ in range(SENDERS)))
    told = await board.wait_all([body["metadata"]["name"] for body in bodies], "told", 180)
    return max(told) - began


async def _clear(system: System, kube: Kube, *paths: str) -> None:
    await kube.call("DELETE", paths[0])
    for path in paths:
        while (await kube.call("GET", path))["items"]:  # noqa: ASYNC110  the API server is asked, nobody here knows
            await asyncio.sleep(0.25)
    await asyncio.sleep(3)  # what follows a deletion is no part of the next round


def _pod_heard(board: Board, at: float, _kind: str, body: Body) -> None:
    for condition in (body.get("status") or {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            board.tell(at, body["metadata"]["name"], "told")


def _run_heard(board: Board, at: float, _kind: str, body: Body) -> None:
    if (body.get("status") or {}).get("reason") == "Unschedulable":
        board.tell(at, body["metadata"]["name"], "told")


def _run(tenant: Tenant, name: str) -> Body:
    resources: dict[str, Any] = {"cpu": TOO_MUCH, "memory": "512Mi", "disk": "1Gi"}
    sandbox = {"runtimeClassName": "gvisor", "resources": resources}
    return tenant.manifest(name, sandbox=sandbox, delivery={"branch": f"moorage/{name}", "push": False})


def _pod(name: str) -> Body:
    body = runs.bare_pod(name)
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": TOO_MUCH}, "requests": {"cpu": "64"}}
    return body
