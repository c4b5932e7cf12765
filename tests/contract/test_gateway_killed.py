"""The gateway is killed again and again while a whole run passes through it, and nobody can tell afterwards."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_killed import Killed, Patient, running
from tests.gateway_process import SNAPSHOTS
from tests.gateway_script import BRANCH, commit, git, resolved, result, told, verification, verifying

from moorage.core.journal.chain import Intact
from moorage.core.journal.export import verify_export
from moorage.points import Point
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Shot, environment, fired

pytestmark = pytest.mark.timeout(180)  # each case starts several gateways


async def patiently(work: Callable[..., str], *args: Any) -> str:
    while True:
        with contextlib.suppress(AssertionError):
            return await asyncio.to_thread(work, *args)
        await asyncio.sleep(0.05)


async def whole_run(port: int, spec: Any, tmp_path: Path) -> tuple[str, Any]:
    """Admission to success, each step repeated until it is answered; the head and the last view."""
    operator, runner, verifier = (Patient(port, t) for t in (OPERATOR_TOKEN, "token-of-p1", "token-of-v1"))
    run = "/v1/runs/u1"
    pod = {"pod_uid": "p1", "pod_name": "p1", "epoch": 1, "role": "runner"}
    await operator("PUT", run, spec.model_dump(mode="json"))
    await operator("POST", f"{run}/fence", {"epoch": 1, "attempt": 1, "holder": "a"})
    await operator("POST", f"{run}/pods", pod)
    base = (await runner("GET", "/v1/self"))["git"]["base"]
    await runner("POST", "/v1/self/records", told("WORKSPACE_READY", {"base": base, "branch": BRANCH}))
    await runner("POST", "/v1/self/records", told("AGENT_STARTED", {}))
    header, url = "Authorization: Bearer token-of-p1", f"http://127.0.0.1:{port}/git/run.git"
    tree = tmp_path / "tree"
    git(tmp_path, "init", "-q", str(tree))
    git(tree, "config", "http.extraHeader", header)
    await patiently(git, tree, "fetch", "-q", url, base)
    git(tree, "checkout", "-q", base)
    head = commit(tree, "b.txt", "two\n")
    await patiently(git, tree, "push", "-q", url, "HEAD:refs/moorage/runs/u1/1/checkpoints")
    point = {"epoch": 1, "iteration": 1, "changed": True, "commit": head, "recorded_at": 8}
    await runner("POST", "/v1/self/checkpoint", point)
    await patiently(git, tree, "push", "-q", url, f"HEAD:refs/heads/{BRANCH}")
    await runner("POST", "/v1/self/result", result(head))
    await operator("POST", f"{run}/pods", pod | {"pod_uid": "v1", "role": "verifier", "commit": head})
    await verifier("POST", "/v1/self/records", verifying())
    await verifier("POST", "/v1/self/verification", verification(head))
    while True:
        view = await operator("POST", f"{run}/deliver", {"epoch": 1, "commit": head})
        if [e["status"] for e in view["state"]["effects"]][-1:] == ["confirmed"]:
            break
        await asyncio.sleep(0.1)
    end = {"reason": "Completed", "message": "", "commit": head}
    await operator("POST", f"{run}/records", told("RUN_SUCCEEDED", end))
    exported = await operator.answer("GET", f"{run}/journal")
    assert isinstance(verify_export([exported.content]).chain, Intact)
    last = await operator("GET", run)
    for client in (operator, runner, verifier):
        await client.http.aclose()
    return head, last


def delivered_once(upstream: GitServer, head: str, state: Any) -> None:
    assert state["phase"] == "Succeeded"
    assert state["iteration"] == 1
    assert [e["status"] for e in state["effects"] if e["status"] != "not_dispatched"] == ["confirmed"]
    assert [u.new for u in upstream.updates if u.ref == f"refs/heads/{BRANCH}"] == [head]


@pytest.mark.rule("K1", "P1")
@pytest.mark.parametrize("point", [Point.SNAPSHOT_BEFORE, Point.SNAPSHOT_AFTER])
async def test_a_gateway_killed_around_a_snapshot_goes_on_from_the_journal(
    upstream: GitServer, tmp_path: Path, point: Point
) -> None:
    """Every record is followed by a snapshot here, and the gateway is killed at every third."""
    shots = [Shot(point, number) for number in (2, 5, 8)]
    often = {SNAPSHOTS: "1", **environment(tmp_path / "trace", *shots)}
    gateway = Killed(tmp_path)
    await gateway.start(often)
    try:
        working = asyncio.create_task(whole_run(gateway.port, resolved(upstream), tmp_path))
        while not working.done():
            assert gateway.process is not None
            ended = asyncio.create_task(gateway.process.wait())
            await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await gateway.start(often)
            ended.cancel()
        head, view = await working
    finally:
        await gateway.kill()
    assert all(fired(tmp_path / "trace", shot) for shot in shots)
    delivered_once(upstream, head, view["state"])


@pytest.mark.rule("E6", "J3", "R1", "E2")
@pytest.mark.parametrize("seed", range(3))
async def test_a_gateway_killed_at_any_moment_delivers_once(upstream: GitServer, tmp_path: Path, seed: int) -> None:
    async with running(tmp_path) as gateway:
        working = asyncio.create_task(whole_run(gateway.port, resolved(upstream), tmp_path))
        await gateway.torture(random.Random(seed), times=4)
        head, view = await working
        assert gateway.kills == 4
    delivered_once(upstream, head, view["state"])
