"""O2, W3: a run that goes on with another one keeps what it began at, at any gateway, also once that is released."""

import asyncio
from pathlib import Path

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

from moorage.api.wire import ResolvedDelivery, ResolvedOrigin
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

__all__ = ["installation"]  # a fixture

pytestmark = pytest.mark.timeout(240)  # several gateways, and git at each step


async def next_one(gateway: LocalGateway, upstream: GitServer) -> Operator:
    told = {"session_id": "u1", "origin": ResolvedOrigin(uid="u1", name="fix"), "agent": AGENT, "limits": LIMITS}
    more = {"name": "more", "delivery": ResolvedDelivery(branch="moorage/more"), "acceptance": ()}
    return Operator(gateway, resolved(upstream, "u2", **told | more))


@pytest.mark.rule("O2", "W3", "P2")
@pytest.mark.parametrize("delivered", [False, True], ids=["failed", "delivered"])
async def test_what_a_run_began_at_is_its_own_at_every_gateway(
    installation: Installation, upstream: GitServer, tmp_path: Path, *, delivered: bool
) -> None:
    one, two = await installation.gateway(), await installation.gateway()
    first = Operator(one, resolved(upstream, agent=AGENT, limits=LIMITS, acceptance=()))
    runner = await agent_at_work(one, first)
    tree = await worktree(one, tmp_path, "p1")
    head = await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    point, said = await asyncio.to_thread(point_of, tree)
    await push(tree, f"{point}:refs/moorage/runs/u1/1/checkpoints", f"HEAD:refs/heads/{BRANCH}")
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, point)))
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
