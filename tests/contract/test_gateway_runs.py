"""The operator's and the sandboxes' doors over every store, with real git behind them."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from moorage.api.wire import (
    ResolvedAgent,
    ResolvedCheck,
    ResolvedDelivery,
    ResolvedRun,
    ResolvedWorkspace,
    SecretRef,
)
from moorage.store.memory import MemoryStore
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

PASSWORD = "correct horse"
BRANCH = "moorage/fix"
GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "GIT_TERMINAL_PROMPT": "0",
}


def git(cwd: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=cwd, env=GIT_ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {args}: {done.stderr}"
    return done.stdout.strip()


def commit(work: Path, name: str, text: str) -> str:
    (work / name).write_text(text)
    git(work, "add", "-A")
    git(work, "commit", "-qm", name)
    return git(work, "rev-parse", "HEAD")


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[GitServer]:
    (tmp_path / "srv").mkdir()
    with GitServer(tmp_path / "srv", "ada", PASSWORD) as running:
        bare = running.create("shop.git")
        work = tmp_path / "seed"
        git(tmp_path, "clone", "-q", str(bare), str(work))
        git(work, "checkout", "-q", "-b", "main")
        commit(work, "a.txt", "one\n")
        git(work, "push", "-q", "origin", "main")
        yield running


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture(params=["memory", "sqlite"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "journal.db")
    made = LocalGateway(tmp_path, store=store, clock=clock)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made
    await store.close()


def resolved(upstream: GitServer, uid: str = "u1", **changes: Any) -> ResolvedRun:
    spec = ResolvedRun(
        uid=uid,
        tenant="team-a",
        name="fix",
        session_id=uid,
        placement="cluster",
        goal="make the tests pass",
        workspace=ResolvedWorkspace(
            key="w1", kind="remote_git", url=upstream.url("shop.git"), ref="main", credentials=SecretRef(name="git")
        ),
        agent=ResolvedAgent(driver="command", command=("true",)),
        acceptance=(ResolvedCheck(name="tests", run="make test"),),
        delivery=ResolvedDelivery(branch=BRANCH),
    )
    return spec.model_copy(update=changes)


async def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, reason: str) -> str:
    assert (answer.status_code, answer.json().get("reason")) == (status, reason), answer.text
    return str(answer.json()["message"])


class Operator:
    """What the controller does, door by door."""

    def __init__(self, gateway: LocalGateway, spec: ResolvedRun) -> None:
        self.gateway, self.spec, self.door = gateway, spec, f"/v1/runs/{spec.uid}"

    @property
    def http(self) -> httpx.AsyncClient:
        return self.gateway.operator

    async def admit(self) -> Any:
        return await ok(await self.http.put(self.door, content=self.spec.model_dump_json()))

    async def fence(self, epoch: int, attempt: int | None = None) -> httpx.Response:
        body = {"epoch": epoch, "attempt": attempt or epoch, "holder": f"attempt-{epoch}", "lease": "lease-1"}
        return await self.http.post(f"{self.door}/fence", json=body)

    async def register(self, pod: str, epoch: int, role: str = "runner", commit: str | None = None) -> Any:
        body = {"pod_uid": pod, "pod_name": f"pod-{pod}", "epoch": epoch, "role": role, "commit": commit}
        return await ok(await self.http.post(f"{self.door}/pods", json=body))

    async def report(self, epoch: int, kind: str, payload: dict[str, Any], key: str = "x") -> httpx.Response:
        record = {"record_id": f"op:{kind}:{key}", "type": kind, "payload": payload, "recorded_at": 5}
        return await self.http.post(f"{self.door}/records", json={"epoch": epoch, "records": [record]})

    async def deliver(self, epoch: int, commit: str) -> httpx.Response:
        return await self.http.post(f"{self.door}/deliver", json={"epoch": epoch, "commit": commit})

    async def view(self) -> Any:
        return await ok(await self.http.get(self.door))

    async def state(self) -> Any:
        return (await self.view())["state"]

    async def records(self) -> list[Any]:
        return list(await self.gateway.deps.store.read(self.spec.uid))

    async def types(self) -> list[str]:
        return [record.type for record in await self.records()]

    async def start(self, epoch: int = 1, pod: str = "p1") -> httpx.AsyncClient:
        await self.admit()
        await ok(await self.fence(epoch))
        await self.register(pod, epoch)
        return self.gateway.sandbox(pod, self.spec.tenant)


def told(kind: str, payload: dict[str, Any], key: str = "1", epoch: int = 1) -> dict[str, Any]:
    record = {"record_id": f"{kind}:{key}", "type": kind, "payload": payload, "recorded_at": 7}
    return {"epoch": epoch, "records": [record]}


async def worktree(gateway: LocalGateway, tmp_path: Path, pod: str, name: str = "tree") -> Path:
    """A clone by way of the git door, with the token where git can find it."""
    tree = tmp_path / name
    url = f"{gateway.url}/git/run.git"
    header = f"http.extraHeader=Authorization: Bearer token-of-{pod}"
    await asyncio.to_thread(git, tmp_path, "-c", header, "clone", "-q", url, str(tree))
    await asyncio.to_thread(git, tree, "config", "http.extraHeader", header.partition("=")[2])
    return tree


async def push(tree: Path, *refspecs: str) -> None:
    await asyncio.to_thread(git, tree, "push", "-q", "origin", *refspecs)


async def work_done(gateway: LocalGateway, operator: Operator, tmp_path: Path) -> tuple[httpx.AsyncClient, str]:
    """A run whose agent has completed with one changed file."""
    runner = await operator.start()
    assignment = await ok(await runner.get("/v1/self"))
    ready = told("WORKSPACE_READY", {"base": assignment["git"]["base"], "branch": BRANCH})
    await ok(await runner.post("/v1/self/records", json=ready))
    await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {})))
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    await push(tree, f"HEAD:refs/heads/{BRANCH}")
    await ok(await runner.post("/v1/self/result", json=result(head)))
    return runner, head


def result(head: str | None, **changes: Any) -> dict[str, Any]:
    return {"epoch": 1, "outcome": "completed", "reason": "Exited", "exit_code": 0, "commit": head} | {
        "recorded_at": 9,
        **changes,
    }


def verification(head: str, exit_code: int = 0, **changes: Any) -> dict[str, Any]:
    check = {"name": "tests", "run": "make test", "exit_code": exit_code, "duration_ms": 5, "output": "2 failed"}
    return {"epoch": 1, "commit": head, "checks": [check], "recorded_at": 11} | changes


async def verified(gateway: LocalGateway, operator: Operator, head: str, exit_code: int = 0) -> None:
    await operator.register("v1", 1, "verifier", head)
    verifier = gateway.sandbox("v1", "team-a")
    await ok(await verifier.post("/v1/self/verification", json=verification(head, exit_code)))


# --- the main job ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("E1", "E5", "V3", "T2")
async def test_a_run_from_admission_to_a_pushed_branch(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, head = await work_done(gateway, operator, tmp_path)
    assert (await operator.state())["phase"] == "Verifying"
    await verified(gateway, operator, head)
    view = await ok(await operator.deliver(1, head))
    assert view["state"]["effects"][0]["status"] == "confirmed"
    await ok(await operator.report(1, "RUN_SUCCEEDED", {"reason": "Completed", "message": "", "commit": head}))
    assert (await operator.state())["phase"] == "Succeeded"
    assert [u.ref for u in upstream.updates if u.new == head] == [f"refs/heads/{BRANCH}"]
    types = await operator.types()
    at = [types.index(t) for t in ("EFFECT_INTENT", "EFFECT_DISPATCHED", "EFFECT_RECEIPT", "RUN_SUCCEEDED")]
    assert at == sorted(at)
    orders = await ok(await runner.get("/v1/self/orders?after=0"))
    assert orders["stop"] == "terminal"
    text = b"".join([stored.body async for stored in gateway.deps.store.stored("u1")]).decode()
    assert PASSWORD not in text


async def test_delivering_again_pushes_once(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    await verified(gateway, operator, head)
    first, second = await asyncio.gather(operator.deliver(1, head), operator.deliver(1, head))
    assert first.status_code == second.status_code == 200
    gateway.restart()
    await ok(await operator.deliver(1, head))
    assert len([u for u in upstream.updates if u.new == head]) == 1
    assert (await operator.types()).count("EFFECT_INTENT") == 1


async def test_nothing_is_delivered_that_has_not_passed(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    _, head = await work_done(gateway, operator, tmp_path)
    refused(await operator.deliver(1, head), 409, "NotVerified")
    await verified(gateway, operator, head, exit_code=1)
    refused(await operator.deliver(1, head), 409, "NotVerified")
    refused(await operator.deliver(1, "f" * 40), 409, "NotProposed")
    state = await operator.state()
    assert state["verification"]["passed"] is False
    assert "exit code 1" in state["verification"]["summary"]
    assert "2 failed" in state["verification"]["summary"]
    assert not [u for u in upstream.updates if u.ref != "refs/heads/main"]
