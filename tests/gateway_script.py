"""What an operator, a runner and a verifier say to a gateway, step by step: shared by the tests of its doors."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import httpx

from moorage.api.wire import (
    ResolvedAgent,
    ResolvedCheck,
    ResolvedDelivery,
    ResolvedRun,
    ResolvedWorkspace,
    SecretRef,
)
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.trees import git

PASSWORD = "correct horse"
BRANCH = "moorage/fix"


def commit(work: Path, name: str, text: str) -> str:
    (work / name).write_text(text)
    git(work, "add", "-A")
    git(work, "commit", "-qm", name)
    return git(work, "rev-parse", "HEAD")


def resolved(upstream: GitServer | str, uid: str = "u1", **changes: Any) -> ResolvedRun:
    """A run in the repository of that server, or at that address."""
    url = upstream if isinstance(upstream, str) else upstream.url("shop.git")
    spec = ResolvedRun(
        uid=uid,
        tenant="team-a",
        name="fix",
        session_id=uid,
        placement="cluster",
        goal="make the tests pass",
        workspace=ResolvedWorkspace(
            key="w1", kind="remote_git", url=url, ref="main", credentials=SecretRef(name="git")
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
        door = (
            f"{self.door}/as-child" if self.spec.parent else f"{self.door}/as-next" if self.spec.origin else self.door
        )
        return await ok(await self.http.put(door, content=self.spec.model_dump_json()))

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


async def agent_at_work(gateway: LocalGateway, operator: Operator) -> httpx.AsyncClient:
    """A run whose agent has started in its worktree."""
    runner = await operator.start()
    assignment = await ok(await runner.get("/v1/self"))
    ready = told("WORKSPACE_READY", {"base": assignment["git"]["base"], "branch": BRANCH})
    await ok(await runner.post("/v1/self/records", json=ready))
    await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {})))
    return runner


async def work_done(gateway: LocalGateway, operator: Operator, tmp_path: Path) -> tuple[httpx.AsyncClient, str]:
    """A run whose agent has completed with one changed file."""
    runner = await agent_at_work(gateway, operator)
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


def checkpoint(iteration: int, head: str | None, epoch: int = 1) -> dict[str, Any]:
    return {"epoch": epoch, "iteration": iteration, "changed": head is not None, "commit": head, "recorded_at": 8}


def beat(epoch: int = 1, seq: int = 1) -> dict[str, Any]:
    return {"work_id": "u1", "epoch": epoch, "progress_seq": seq, "observed_at": 3}


VERIFIER_KEY = "only the verifier knows"


def verifying(epoch: int = 1, key: str = VERIFIER_KEY) -> dict[str, Any]:
    """What a verifier tells before its first command."""
    return told("VERIFICATION_STARTED", {"key_sha256": hashlib.sha256(key.encode()).hexdigest()}, key[:16], epoch)


def verification(head: str, exit_code: int = 0, **changes: Any) -> dict[str, Any]:
    check = {"name": "tests", "run": "make test", "exit_code": exit_code, "duration_ms": 5, "output": "2 failed"}
    return {"epoch": 1, "commit": head, "key": VERIFIER_KEY, "checks": [check], "recorded_at": 11} | changes


async def verified(gateway: LocalGateway, operator: Operator, head: str, exit_code: int = 0) -> None:
    await operator.register("v1", 1, "verifier", head)
    verifier = gateway.sandbox("v1", "team-a")
    await ok(await verifier.post("/v1/self/records", json=verifying()))
    await ok(await verifier.post("/v1/self/verification", json=verification(head, exit_code)))
