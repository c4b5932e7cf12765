"""What a run may fetch from a mirror and push into it, over HTTP as an agent's git does."""

import os

import pytest
from tests.contract.test_workspace_mirror import KEY, agit, commit, mirrors, server, upstream

from moorage.testing.gitdoor import GitDoor
from moorage.testing.trees import git
from moorage.workspace.mirror import ReceivePolicy
from moorage.workspace.refs import candidate_ref, checkpoint_ref, drift_ref

__all__ = ["mirrors", "server", "upstream"]  # fixtures


@pytest.fixture
async def door(mirrors, upstream):
    state = await mirrors.ensure(KEY, upstream)
    await mirrors.pin(KEY, "run-1", "base", state.revision)
    async with GitDoor(mirrors, KEY, "run-1", ReceivePolicy("run-1", 3, "moorage/run-1")).serving() as serving:
        yield serving


@pytest.fixture
async def clone(door, tmp_path):
    await agit(tmp_path, "clone", "-q", door.url, "clone")
    return tmp_path / "clone"


async def test_a_plain_clone_sees_upstreams_branches(clone):
    assert git(clone, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert "origin/main" in git(clone, "branch", "-r")
    assert git(clone, "tag") == "v1"


@pytest.mark.rule("W3", "F3")
async def test_a_run_pushes_its_own_refs_and_nothing_else(door, clone, mirrors, server):
    new = commit(clone, "new.txt", "x")
    await agit(clone, "push", "-q", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}", "HEAD:moorage/run-1")
    assert await mirrors.ref(KEY, checkpoint_ref("run-1", 3)) == new
    assert await mirrors.ref(KEY, candidate_ref("run-1", 3)) == new
    await agit(clone, "push", "-q", "origin", f"HEAD:{drift_ref('run-1', 3)}")
    for ref in (
        "refs/heads/main",
        "refs/heads/moorage/run-2",
        "refs/tags/v2",
        checkpoint_ref("run-1", 2),
        checkpoint_ref("run-1", 4),
        checkpoint_ref("run-2", 3),
        drift_ref("run-2", 3),
        "refs/moorage/runs/run-1/pins/base",
        "refs/upstream/heads/main",
        "refs/moorage/runs/run-1/3/a..b",
    ):
        said = await agit(clone, "push", "origin", f"+HEAD:{ref}", check=False)
        assert "rejected" in said or "fatal" in said, (ref, said)
    said = await agit(clone, "push", "origin", f":{checkpoint_ref('run-1', 3)}", check=False)
    assert "can't be removed" in said
    refs = git(mirrors.path(KEY), "for-each-ref", "--format=%(refname)").splitlines()
    assert sorted(refs) == sorted(
        [
            candidate_ref("run-1", 3),
            checkpoint_ref("run-1", 3),
            drift_ref("run-1", 3),
            "refs/moorage/runs/run-1/pins/base",
            "refs/upstream/heads/main",
            "refs/upstream/tags/v1",
        ]
    )
    assert server.updates == []


async def test_a_checkpoint_ref_only_goes_forward_and_a_candidate_may_be_replaced(door, clone, mirrors):
    first = commit(clone, "new.txt", "x")
    await agit(clone, "push", "-q", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}", "HEAD:moorage/run-1")
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    second = commit(clone, "other.txt", "y")
    said = await agit(clone, "push", "origin", f"+HEAD:{checkpoint_ref('run-1', 3)}", check=False)
    assert "non-fast-forward" in said
    await agit(clone, "push", "-q", "origin", "+HEAD:moorage/run-1")
    assert await mirrors.ref(KEY, checkpoint_ref("run-1", 3)) == first
    assert await mirrors.ref(KEY, candidate_ref("run-1", 3)) == second


async def test_another_runs_objects_can_be_fetched_neither_by_ref_nor_by_id(door, clone, mirrors, tmp_path):
    secret = commit(clone, "secret.txt", "x")
    await agit(clone, "push", "-q", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}")
    door.run, door.policy = "run-2", ReceivePolicy("run-2", 1, "moorage/run-2")
    assert "run-1" not in await agit(tmp_path, "ls-remote", door.url)
    git(tmp_path, "init", "-q", "thief")
    for config in ((), ("-c", "protocol.version=2")):
        said = await agit(tmp_path / "thief", *config, "fetch", door.url, secret, check=False)
        assert "not our ref" in said or "unadvertised" in said
    door.run, door.policy = "run-1", None
    await agit(tmp_path / "thief", "fetch", "-q", door.url, secret)
    said = await agit(clone, "push", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}", check=False)
    assert "403" in said


async def test_what_is_no_commit_or_too_large_or_malformed_is_refused(door, clone, mirrors):
    blob = git(clone, "hash-object", "-w", "a.txt")
    said = await agit(clone, "push", "origin", f"{blob}:{checkpoint_ref('run-1', 3)}", check=False)
    assert "blob is no commit" in said
    assert await mirrors.ref(KEY, checkpoint_ref("run-1", 3)) is None
    (clone / "big").write_bytes(os.urandom(300_000))
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "big")
    door.policy = ReceivePolicy("run-1", 3, "moorage/run-1", max_bytes=100_000)
    said = await agit(clone, "push", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}", check=False)
    assert "maximum allowed size" in said or "failed" in said
    assert await mirrors.ref(KEY, checkpoint_ref("run-1", 3)) is None
    door.policy = ReceivePolicy("run-1", 3, "moorage/run-1")
    await agit(clone, "push", "-q", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}")
    assert await mirrors.ref(KEY, checkpoint_ref("run-1", 3)) == git(clone, "rev-parse", "HEAD")


async def test_hostile_objects_are_refused(door, clone, mirrors):
    blob = git(clone, "hash-object", "-w", "a.txt")
    tree = git(clone, "mktree", "--missing", stdin=f"100644 blob {blob}\t.git\n")
    evil = git(clone, "commit-tree", "-m", "evil", "-p", "HEAD", tree)
    said = await agit(clone, "push", "origin", f"{evil}:{checkpoint_ref('run-1', 3)}", check=False)
    assert "hasDotgit" in said or "rejected" in said or "unpack" in said
    assert not await mirrors.has_commit(KEY, evil)


async def test_questions_about_commits(door, clone, mirrors):
    base = git(clone, "rev-parse", "HEAD")
    new = commit(clone, "a.txt", "one\ntwo\n")
    await agit(clone, "push", "-q", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}")
    assert await mirrors.has_commit(KEY, new)
    assert not await mirrors.has_commit(KEY, "f" * 40)
    assert not await mirrors.has_commit(KEY, await mirrors.tree_of(KEY, new))
    assert await mirrors.is_ancestor(KEY, base, new)
    assert not await mirrors.is_ancestor(KEY, new, base)
    assert b"+two" in (await mirrors.diff(KEY, base, new)).data
    assert (await mirrors.diff(KEY, base, new, limit=20)).truncated
    (stat,) = await mirrors.diff_stat(KEY, base, new)
    assert (stat.path, stat.added, stat.removed) == ("a.txt", 1, 0)


@pytest.mark.rule("W5")
async def test_refs_of_a_run_go_and_its_commits_stay_for_the_retention(door, clone, mirrors):
    new = commit(clone, "new.txt", "x")
    await agit(clone, "push", "-q", "origin", f"HEAD:{checkpoint_ref('run-1', 3)}")
    await mirrors.gc(KEY, 3600)
    assert await mirrors.ref(KEY, checkpoint_ref("run-1", 3)) == new
    assert await mirrors.drop_run(KEY, "run-1") == 2
    assert await mirrors.drop_run(KEY, "run-1") == 0
    await mirrors.gc(KEY, 3600)
    assert await mirrors.has_commit(KEY, new)
    await mirrors.gc(KEY, 0, borrowed=True)
    assert await mirrors.has_commit(KEY, new)
    await mirrors.gc(KEY, 0)
    assert not await mirrors.has_commit(KEY, new)
