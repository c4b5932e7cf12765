"""O2, P2: a child begins with its parent's work and without what its parent's agent was told and said."""

import asyncio
from pathlib import Path

import httpx
import pytest
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
    told,
    worktree,
)

from moorage.api.wire import ResolvedDelivery, ResolvedParent
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.workspace.statefiles import TITLE


def point_of(tree: Path) -> tuple[str, str]:
    """A checkpoint of HEAD's tree, as a runner makes it, and the conversation that is its parent."""
    said = git(tree, "commit-tree", "HEAD^{tree}", "-m", TITLE)
    return git(tree, "commit-tree", "HEAD^{tree}", "-p", "HEAD^", "-p", said, "-m", "Checkpoint 1"), said


async def at_a_checkpoint(gateway: LocalGateway, upstream: GitServer, tmp_path: Path) -> tuple[str, str]:
    runner = await agent_at_work(gateway, Operator(gateway, resolved(upstream)))
    tree = await worktree(gateway, tmp_path, "p1")
    await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    point, said = await asyncio.to_thread(point_of, tree)
    await push(tree, f"{point}:refs/moorage/runs/u1/1/checkpoints")
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, point)))
    return point, said


async def started(gateway: LocalGateway, child: Operator) -> tuple[httpx.AsyncClient, str]:
    runner = await child.start(pod="p2")
    place = (await ok(await runner.get("/v1/self")))["git"]
    for kind, said in (("WORKSPACE_READY", {"base": place["base"], "branch": place["branch"]}), ("AGENT_STARTED", {})):
        await ok(await runner.post("/v1/self/records", json=told(kind, said)))
    return runner, place["base"]


@pytest.mark.rule("O2", "P2")
async def test_what_a_child_delivers_has_its_parents_work_and_not_its_conversation(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path
) -> None:
    point, said = await at_a_checkpoint(gateway, upstream, tmp_path)
    above = ResolvedParent(uid="u1", name="fix", commit=point)
    mine = {"name": "kid", "parent": above, "delivery": ResolvedDelivery(branch="moorage/kid"), "acceptance": ()}
    child = Operator(gateway, resolved(upstream, "u2", **mine))
    runner, base = await started(gateway, child)
    tree = await worktree(gateway, tmp_path, "p2", "kid")
    await asyncio.to_thread(git, tree, "fetch", "-q", "origin", base)
    await asyncio.to_thread(git, tree, "checkout", "-q", base)
    assert git(tree, "log", "--format=%s", f"{base}^") == git(tree, "log", "--format=%s", "origin/main")
    with pytest.raises(AssertionError, match="not our ref"):
        await asyncio.to_thread(git, tree, "fetch", "-q", "origin", said)
    head = await asyncio.to_thread(commit, tree, "c.txt", "three\n")
    await push(tree, "HEAD:refs/heads/moorage/kid")
    await ok(await runner.post("/v1/self/result", json=result(head)))
    view = await ok(await child.deliver(1, head))
    assert view["state"]["effects"][0]["status"] == "confirmed"
    seen = upstream.root / "shop.git"
    assert git(seen, "show", "moorage/kid:b.txt") == "two"
    subjects = git(seen, "log", "--format=%s", "moorage/kid").splitlines()
    assert subjects[:2] == ["c.txt", "The work of run fix so far"]
    assert not {TITLE, "Checkpoint 1"} & set(subjects)


@pytest.mark.rule("O2")
async def test_a_child_of_a_parent_that_changed_nothing_starts_where_that_did(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path
) -> None:
    parent = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, parent)
    tree = await worktree(gateway, tmp_path, "p1")
    point = await asyncio.to_thread(git, tree, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Checkpoint 1")
    await push(tree, f"{point}:refs/moorage/runs/u1/1/checkpoints")
    await ok(await runner.post("/v1/self/checkpoint", json=checkpoint(1, point)))
    above = ResolvedParent(uid="u1", name="fix", commit=point)
    child = Operator(gateway, resolved(upstream, "u2", name="kid", parent=above, delivery=None, acceptance=()))
    _, base = await started(gateway, child)
    assert base == (await parent.state())["workspace_base"]


@pytest.mark.rule("P2", "I6")
async def test_a_commit_on_a_checkpoint_is_not_pushed_whoever_made_it(
    gateway: LocalGateway, upstream: GitServer, tmp_path: Path
) -> None:
    """The runner is trusted with nothing: its own care about that isn't enough."""
    operator = Operator(gateway, resolved(upstream, acceptance=()))
    runner = await agent_at_work(gateway, operator)
    tree = await worktree(gateway, tmp_path, "p1")
    await asyncio.to_thread(commit, tree, "b.txt", "two\n")
    point, _ = await asyncio.to_thread(point_of, tree)
    await asyncio.to_thread(git, tree, "reset", "-q", "--hard", point)
    head = await asyncio.to_thread(commit, tree, "c.txt", "three\n")
    await push(tree, f"HEAD:refs/heads/{BRANCH}")
    await ok(await runner.post("/v1/self/result", json=result(head)))
    effect = (await ok(await operator.deliver(1, head)))["state"]["effects"][0]
    assert effect["status"] == "rejected"
    assert "HoldsConversation" in effect["detail"]
    assert not [each for each in upstream.updates if each.ref == f"refs/heads/{BRANCH}"]
