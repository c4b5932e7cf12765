"""O2, W3: a run that goes on with another one keeps what it began at, at any gateway, also once that is released."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.test_gateway_sessions import AGENT, FAILED, LIMITS, point_of
from tests.contract.test_shared_mirrors import Installation, installation
from tests.gateway_script import (
    BRANCH,
    Operator,
    agent_at_work,
    checkpoint,
    commit,
    git,
    ok,
    push,
    resolved,
    result,
    worktree,
)

from moorage.api.wire import ResolvedAgent, ResolvedDelivery, ResolvedOrigin
from moorage.store.errors import StoreUnavailable
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

__all__ = ["installation"]  # a fixture

pytestmark = pytest.mark.timeout(240)  # several gateways, and git at each step


COMMAND = ResolvedAgent(driver="command", command=("true",))


async def next_one(gateway: LocalGateway, upstream: GitServer, agent: ResolvedAgent = AGENT) -> Operator:
    told = {"session_id": "u1", "origin": ResolvedOrigin(uid="u1", name="fix"), "agent": agent, "limits": LIMITS}
    more = {"name": "more", "delivery": ResolvedDelivery(branch="moorage/more"), "acceptance": ()}
    return Operator(gateway, resolved(upstream, "u2", **told | more))


async def with_a_commit(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path, **changes: Any
) -> tuple[Operator, httpx.AsyncClient, str, str, str]:
    """A run at work: its operator and its runner; its commit, its checkpoint, and the conversation in that."""
    first = Operator(gateway, resolved(upstream, **{"agent": AGENT, "limits": LIMITS, "acceptance": ()} | changes))
    runner = await agent_at_work(gateway, first)
    tree = await worktree(gateway, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    point, said = await asyncio.to_thread(point_of, tree) if first.spec.agent is not COMMAND else (head, "")
    await push(tree, f"{point}:refs/moorage/runs/u1/1/checkpoints", f"HEAD:refs/heads/{BRANCH}")
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, point)))
    return first, runner, head, point, said


@pytest.mark.rule("O2", "W3", "P2")
@pytest.mark.parametrize("delivered", [False, True], ids=["failed", "delivered"])
async def test_what_a_run_began_at_is_its_own_at_every_gateway(
    installation: Installation, upstream: GitServer, tmp_path: Path, *, delivered: bool
) -> None:
    one, two = await installation.gateway(), await installation.gateway()
    first, runner, head, point, said = await with_a_commit(one, upstream, tmp_path)
    if delivered:
        await ok(await runner.post("/v1/self/result", json=result(head)))
        await ok(await first.deliver(1, head))
        await ok(await first.report(1, "RUN_SUCCEEDED", {"reason": "Delivered", "message": "", "commit": head}))
    else:
        await ok(await first.report(1, "RUN_FAILED", FAILED))
    second = await next_one(two, upstream)
    place = (await ok(await (await second.start(pod="p2")).get("/v1/self")))["git"]
    begins = place["resume"]["commit"]
    assert (begins == point) is not delivered
    await ok(await two.operator.post("/v1/runs/u1/release"))
    installation.lose(one)
    installation.lose(two)
    three = await installation.gateway()
    again = (await ok(await three.sandbox("p2", "team-a").get("/v1/self")))["git"]
    assert again == place
    clone = await worktree(three, tmp_path, "p2", "next")
    await asyncio.to_thread(git, clone, "fetch", "-q", "origin", begins)
    assert git(clone, "show", f"{begins}:b.txt") == "two"
    assert git(clone, "cat-file", "-t", said) == "commit"


@pytest.mark.rule("O2", "W3", "P2")
@pytest.mark.parametrize("agent", [AGENT, COMMAND], ids=["conversation", "none"])
async def test_what_upstream_never_had_is_kept_for_the_run_that_begins_at_it(
    installation: Installation, upstream: GitServer, tmp_path: Path, agent: ResolvedAgent
) -> None:
    """So it is with a branch, too, that was taken away upstream once it was merged as another commit."""
    one = await installation.gateway()
    unpushed = ResolvedDelivery(branch=BRANCH, push=False)
    first, runner, head, _, _ = await with_a_commit(one, upstream, tmp_path, agent=agent, delivery=unpushed)
    await ok(await runner.post("/v1/self/result", json=result(head)))
    await ok(await first.report(1, "RUN_SUCCEEDED", {"reason": "Delivered", "message": "", "commit": head}))
    second = await next_one(one, upstream, agent)
    place = (await ok(await (await second.start(pod="p2")).get("/v1/self")))["git"]
    assert place["base"] == head
    await ok(await one.operator.post("/v1/runs/u1/release"))
    installation.lose(one)
    two = await installation.gateway()
    assert (await ok(await two.sandbox("p2", "team-a").get("/v1/self")))["git"] == place
    clone = await worktree(two, tmp_path, "p2", "next")
    await asyncio.to_thread(git, clone, "fetch", "-q", "origin", head)
    assert git(clone, "show", f"{head}:b.txt") == "two"


@pytest.mark.rule("O2", "W3", "R7")
@pytest.mark.parametrize("released", [False, True], ids=["kept", "released"])
async def test_another_gateway_goes_on_where_one_had_said_the_base_and_kept_nothing(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, released: bool
) -> None:
    """Its mirror has the base, and not the checkpoint."""
    one, two = await installation.gateway(), await installation.gateway()
    first, _, _, point, _ = await with_a_commit(one, upstream, tmp_path)
    await ok(await first.report(1, "RUN_FAILED", FAILED))
    other = Operator(two, resolved(upstream, "u9", acceptance=(), delivery=ResolvedDelivery(branch="moorage/u9")))
    await ok(await (await other.start(pod="v1")).get("/v1/self"))
    second = await next_one(one, upstream)

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(one.deps.store, "keep_push", away)
    await second.start(pod="p2")
    assert (await one.sandbox("p2", "team-a").get("/v1/self")).status_code == 503
    assert "BASE_FIXED" in await second.types()
    if released:
        await ok(await two.operator.post("/v1/runs/u1/release"))
    answer = await two.sandbox("p2", "team-a").get("/v1/self")
    if released:
        assert "begin a new run from the branch that it delivered" in answer.json()["message"]
    else:
        assert (await ok(answer))["git"]["resume"]["commit"] == point
