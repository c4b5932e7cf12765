"""What is kept of pushes, in a bucket and in mirrors, and for how long; it is had again from there (W3, W5, P5)."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_shared_mirrors import (
    CHECKPOINTS,
    Installation,
    by_way_of,
    installation,
    mirror_refs,
    pushed,
    seen,
    write,
)
from tests.gateway_script import (
    BRANCH,
    Operator,
    agent_at_work,
    ok,
    push,
    refused,
    resolved,
    worktree,
)

from moorage.gateway.gate import Gate
from moorage.gateway.housekeeping import Housekeeping
from moorage.gateway.mirroring import SharedRefs
from moorage.testing.clock import StepClock
from moorage.testing.gitserver import GitServer
from moorage.testing.trees import git
from moorage.workspace.mirror import MirrorKey
from moorage.workspace.refs import candidate_ref

__all__ = ["installation"]  # a fixture
pytestmark = pytest.mark.timeout(240)  # several gateways, and git at each step


@pytest.mark.rule("W3")
async def test_few_packs_are_needed_however_many_pushes_there_were(
    installation: Installation, upstream: GitServer, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("moorage.gateway.mirroring.WHOLE_EVERY", 4)
    one = await installation.gateway()
    await agent_at_work(one, Operator(one, resolved(upstream)))
    tree = await worktree(one, tmp_path, "p1")
    candidate = ""
    for n in range(9):
        head = await write(tree, f"file-{n}")
        await push(tree, f"HEAD:{CHECKPOINTS}")
        if n == 0:
            candidate = head
            await push(tree, f"HEAD:refs/heads/{BRANCH}")
    kept = await one.deps.store.kept_pushes("u1")
    assert [(push.number, push.whole) for push in kept] == [(8, True), (9, False)]
    two = await installation.gateway()
    refs = await seen(two, tmp_path)
    assert (refs[CHECKPOINTS], refs[candidate_ref("u1", 1)]) == (head, candidate)
    await by_way_of(two, tree)
    await write(tree, "file-10")
    await push(tree, f"HEAD:{CHECKPOINTS}")
    assert refs != await seen(one, tmp_path)


@pytest.mark.rule("W5", "J8")
async def test_a_released_runs_packs_go_and_so_do_its_refs_at_every_gateway(
    installation: Installation, upstream: GitServer, tmp_path: Path, clock: StepClock
) -> None:
    one, two = await installation.gateway(), await installation.gateway()
    operator = Operator(one, resolved(upstream))
    await pushed(one, operator, tmp_path)
    assert CHECKPOINTS in await seen(two, tmp_path)
    (kept,) = await one.deps.store.kept_pushes("u1")
    assert kept.pack.sha256 in await installation.blobs.digests("team-a")
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
    await ok(await one.operator.post(f"{operator.door}/release"))
    clock.advance(one.deps.settings.orphan_age_ms + 1)
    for gateway in (one, two):
        await Housekeeping(Gate(gateway.deps)).once()
        assert not [ref for ref in mirror_refs(gateway) if "/u1/" in ref]
    assert kept.pack.sha256 not in await installation.blobs.digests("team-a")
    gone = await two.reader("ada", "team-a").get(f"{operator.door}/result")
    refused(gone, 404, "NotFound")


@pytest.mark.rule("W5")
async def test_a_mirror_that_no_run_needs_goes_once_nobody_uses_it(
    installation: Installation, upstream: GitServer, tmp_path: Path
) -> None:
    """It is a cache: the volume is not for every repository that there ever was. The next run makes it anew."""
    one = await installation.gateway()
    operator = Operator(one, resolved(upstream))
    await pushed(one, operator, tmp_path)
    key, mirrors, refs = MirrorKey("team-a", "w1"), one.deps.mirrors, one.gate.refs.inner
    assert isinstance(refs, SharedRefs)

    async def round_of_housekeeping(idle_s: int) -> bool:
        """Whether the mirror is there afterwards."""
        refs._idle_s = idle_s
        await Housekeeping(one.gate).once()
        return mirrors.path(key).is_dir()

    assert await round_of_housekeeping(0)  # a run lives
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
    assert await round_of_housekeeping(0)  # its result may be asked for
    assert refs._runs.keys() == {"u1"}
    await ok(await one.operator.post(f"{operator.door}/release"))
    (left := mirrors._root / ".scratch-left").mkdir()
    os.utime(left, (0, 0))
    assert not await round_of_housekeeping(0)
    assert not list(mirrors._root.glob(".scratch-*"))
    assert not refs._runs
    again = Operator(one, resolved(upstream, uid="u2"))
    await again.admit()
    await ok(await again.fence(1))
    await again.register("p2", 1)
    assert (await ok(await one.sandbox("p2", "team-a").get("/v1/self")))["git"]["base"]
    assert mirrors.path(key).is_dir()


@pytest.mark.rule("W5")
async def test_a_mirror_that_somebody_has_used_stays_for_a_while(
    installation: Installation, upstream: GitServer
) -> None:
    one = await installation.gateway()
    operator = Operator(one, resolved(upstream))
    await agent_at_work(one, operator)
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
    await ok(await one.operator.post(f"{operator.door}/release"))
    await Housekeeping(one.gate).once()
    assert one.deps.mirrors.path(MirrorKey("team-a", "w1")).is_dir()


@pytest.mark.rule("W5")
async def test_the_mirror_of_a_run_that_came_during_a_round_stays(
    installation: Installation, upstream: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading all journals may take an hour."""
    one = await installation.gateway(idle_ms=0)
    mirror = one.deps.mirrors.path(MirrorKey("team-a", "w1"))
    operator, later = Operator(one, resolved(upstream)), Operator(one, resolved(upstream, uid="u2"))
    await agent_at_work(one, operator)
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
    await ok(await one.operator.post(f"{operator.door}/release"))
    collect = installation.blobs.collect_orphans

    async def meanwhile(*args: Any) -> list[str]:
        await later.admit()
        return await collect(*args)

    monkeypatch.setattr(installation.blobs, "collect_orphans", meanwhile)
    await Housekeeping(one.gate).once()
    assert mirror.is_dir()


@pytest.mark.rule("W3", "P5")
@pytest.mark.parametrize("remade", [False, True])
async def test_a_run_whose_mirror_was_removed_has_all_of_it_again(
    installation: Installation, upstream: GitServer, tmp_path: Path, remade: bool
) -> None:
    """`remade`: somebody has brought the repository again meanwhile, and nothing of the run."""
    one = await installation.gateway(idle_ms=0)
    tree, head = await pushed(
        one, Operator(one, resolved(upstream)), tmp_path, f"HEAD:{CHECKPOINTS}", f"HEAD:refs/heads/{BRANCH}"
    )
    assert await one.gate.refs.forget(()) == 1
    if remade:
        other = Operator(one, resolved(upstream, uid="u2", delivery=None))
        await other.admit()
        await ok(await other.fence(1))
        await other.register("p2", 1)
        await ok(await one.sandbox("p2", "team-a").get("/v1/self"))
        assert CHECKPOINTS not in mirror_refs(one)
    refs = await seen(one, tmp_path)
    assert refs[CHECKPOINTS] == refs[candidate_ref("u1", 1)] == head
    await write(tree, "file-2")
    await push(tree, f"HEAD:{CHECKPOINTS}")


@pytest.mark.rule("W2", "R1")
@pytest.mark.parametrize("how", ["shallow", "moved on", "rewritten", "ephemeral"])
async def test_the_base_is_found_again_whatever_became_of_its_branch(
    installation: Installation, upstream: GitServer, tmp_path: Path, how: str
) -> None:
    """It is in no pack: a remote gives it by a branch that holds it, or by its id."""
    space = resolved(upstream).workspace
    change = {"depth": 1} if how == "shallow" else {"kind": "ephemeral", "url": None, "ref": None, "credentials": None}
    spec = resolved(upstream, delivery=None)
    if how in {"shallow", "ephemeral"}:
        spec = spec.model_copy(update={"workspace": space.model_copy(update=change)})
    one = await installation.gateway()
    _, head = await pushed(one, Operator(one, spec), tmp_path)
    seed = tmp_path / "seed"
    if how == "rewritten":
        await asyncio.to_thread(git, seed, "commit", "--amend", "-qm", "another root")
        await asyncio.to_thread(git, seed, "push", "-qf", "origin", "main")
    elif how != "ephemeral":
        await write(seed, "more")
        await asyncio.to_thread(git, seed, "push", "-q", "origin", "main")
    installation.lose(one)
    two = await installation.gateway()
    assert (await seen(two, tmp_path))[CHECKPOINTS] == head
    again = await worktree(two, tmp_path, "p1", "again")
    await asyncio.to_thread(git, again, "fetch", "-q", "origin", CHECKPOINTS)
    await asyncio.to_thread(git, again, "checkout", "-q", head)
    assert (again / "file-1").exists()
    await write(again, "file-2")
    await push(again, f"HEAD:{CHECKPOINTS}")
