"""The runner's end of git against a real mirror over real HTTP."""

import asyncio
import os
import subprocess

import pytest
from tests.workspace_place import BRANCH, KEY, RUN

from moorage.testing.trees import git, snapshot
from moorage.workspace.errors import (
    BadRef,
    DiskFull,
    NetworkUnreachable,
    PathRefused,
    RefMissing,
    Refused,
)
from moorage.workspace.mirror import LocalUpstream, ReceivePolicy
from moorage.workspace.paths import resolve
from moorage.workspace.port import WorkspaceKind, WorkspaceProvider, WorkspaceRequest
from moorage.workspace.provider import WorktreeProvider
from moorage.workspace.refs import candidate_ref, checkpoint_ref, drift_ref
from moorage.workspace.worktree import RunWorktree, WorktreeOptions


@pytest.mark.rule("W2")
async def test_a_fresh_worktree_is_on_the_runs_branch_at_the_base(place, source):
    worktree = await place.prepare()
    assert snapshot(worktree.tree) == snapshot(source)
    assert git(worktree.tree, "rev-parse", "HEAD") == place.base
    assert git(worktree.tree, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    assert git(worktree.tree, "status", "--porcelain") == ""
    assert worktree.drift is None


@pytest.mark.rule("W3", "P2")
async def test_a_checkpoint_holds_all_that_changed_and_touches_nothing_of_the_users(place):
    worktree = await place.prepare()
    tree = worktree.tree
    (tree / "staged.txt").write_text("staged\n")
    git(tree, "add", "staged.txt")
    (tree / "staged.txt").write_text("and changed\n")
    (tree / "a.txt").write_text("unstaged\n")
    (tree / "new").mkdir()
    (tree / "new/untracked").write_text("untracked\n")
    (tree / "x.log").write_text("ignored\n")
    (tree / "lib/b.py").unlink()
    before = (git(tree, "status", "--porcelain"), git(tree, "rev-parse", "HEAD"), (tree / "x.log").read_text())
    one = await worktree.checkpoint(1, 1)
    assert (git(tree, "status", "--porcelain"), git(tree, "rev-parse", "HEAD"), (tree / "x.log").read_text()) == before
    assert one.changed
    assert one.parent == place.base
    names = git(tree, "ls-tree", "-r", "--name-only", one.commit).split()
    assert names == [".gitignore", "a.txt", "new/untracked", "outside", "run.sh", "staged.txt"]
    assert git(tree, "show", f"{one.commit}:staged.txt") == "and changed"
    await worktree.push_checkpoint(one)
    assert await place.stored(checkpoint_ref(RUN, 1)) == one.commit

    same = await worktree.checkpoint(2, 1)
    assert (same.changed, same.commit, same.tree) == (False, one.commit, one.tree)
    (tree / "x.log").write_text("more\n")
    assert not (await worktree.checkpoint(3, 1)).changed
    (tree / "a.txt").write_text("again\n")
    two = await worktree.checkpoint(4, 1)
    assert two.parent == one.commit
    await worktree.push_checkpoint(two)
    assert await place.stored(checkpoint_ref(RUN, 1)) == two.commit


@pytest.mark.rule("W3")
async def test_checkpoints_survive_the_agents_own_gc(place):
    worktree = await place.prepare()
    (worktree.tree / "a.txt").write_text("two\n")
    one = await worktree.checkpoint(1, 1)
    git(worktree.tree, "reset", "-q", "--hard")
    git(worktree.tree, "gc", "-q", "--prune=now")
    (worktree.tree / "c.txt").write_text("three\n")
    two = await worktree.checkpoint(2, 1)
    await worktree.push_checkpoint(two)
    assert two.parent == one.commit
    assert git(place.door.mirrors.path(KEY), "show", f"{one.commit}:a.txt") == "two"


@pytest.mark.rule("R1", "W3")
async def test_a_new_volume_goes_on_from_the_checkpoint(place):
    worktree = await place.prepare()
    tree = worktree.tree
    (tree / "a.txt").write_text("committed\n")
    git(tree, "commit", "-qam", "agent's own")
    head = git(tree, "rev-parse", "HEAD")
    (tree / "new.bin").write_bytes(bytes(range(256)))
    (tree / "run.sh").chmod(0o644)
    (tree / "link").symlink_to("nowhere")
    one = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(one)
    want = snapshot(tree)
    place.lose_volume()
    again = await place.prepare(epoch=2, resume=one.commit)
    assert snapshot(again.tree) == want
    assert git(again.tree, "rev-parse", "HEAD") == head
    assert git(again.tree, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    assert git(again.tree, "status", "--porcelain").splitlines() == ["M run.sh", "?? link", "?? new.bin"]
    assert again.drift is None
    assert not (await again.checkpoint(2, 2)).changed


@pytest.mark.rule("R3")
async def test_drift_is_saved_at_the_gateway_before_the_reset(place):
    worktree = await place.prepare()
    tree = worktree.tree
    (tree / "a.txt").write_text("safe\n")
    one = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(one)
    want = snapshot(tree)
    (tree / "a.txt").write_text("drifted\n")
    (tree / "lost.txt").write_text("after the safe point\n")
    git(tree, "add", "lost.txt")
    git(tree, "commit", "-qm", "drifted commit")
    lost_head = git(tree, "rev-parse", "HEAD")
    (tree / "x.log").write_text("ignored\n")
    again = await place.prepare(epoch=2, resume=one.commit)
    assert again.drift is not None
    assert again.drift.pushed
    store = place.door.mirrors.path(KEY)
    assert await place.stored(drift_ref(RUN, 2)) == again.drift.commit
    assert git(store, "show", f"{again.drift.commit}:lost.txt") == "after the safe point"
    assert git(store, "show", f"{again.drift.commit}:a.txt") == "drifted"
    assert git(store, "merge-base", "--is-ancestor", lost_head, again.drift.commit) == ""
    assert snapshot(again.tree) == want | {"x.log": ("-", b"ignored\n")}
    assert git(again.tree, "rev-parse", "HEAD") == place.base


@pytest.mark.rule("R3")
async def test_nothing_is_reset_when_the_drift_cannot_be_saved(place):
    worktree = await place.prepare()
    (worktree.tree / "lost.txt").write_text("precious\n")
    url, place.door.url = place.door.url, "http://127.0.0.1:1/git/run.git"
    with pytest.raises(NetworkUnreachable):
        await place.prepare(epoch=2)
    assert (worktree.tree / "lost.txt").read_text() == "precious\n"
    place.door.url = url
    again = await place.prepare(epoch=2)
    assert again.drift is not None
    assert not (again.tree / "lost.txt").exists()


@pytest.mark.rule("W4")
async def test_odd_files_are_kept_or_left_out_by_name(place):
    worktree = await place.prepare()
    (worktree.tree / os.fsdecode(b'caf\xe9 \n\t"x')).write_text("latin\n")
    nested = worktree.tree / "vendor/nested"
    nested.mkdir(parents=True)
    git(nested, "init", "-q")
    (nested / "file").write_text("x")
    os.mkfifo(worktree.tree / "pipe")
    (worktree.tree / "big").write_bytes(b"x" * 2000)
    (worktree.tree / "git~1").write_text("x")
    (worktree.tree / ".g\u200cit").write_text("x")
    (worktree.tree / ".gitmodules").symlink_to("a.txt")
    one = await worktree.checkpoint(1, 1, size_cap_bytes=1000)
    await worktree.push_checkpoint(one)
    assert {(entry.path, entry.size) for entry in one.left_out} >= {("big", 2000), ("vendor/nested/", 0)}
    assert {entry.path for entry in one.left_out} == {"big", "vendor/nested/", "git~1", ".g\u200cit", ".gitmodules"}
    assert all(entry.reason for entry in one.left_out)
    names = git(worktree.tree, "ls-tree", "-r", "-z", "--name-only", one.commit).split("\0")
    assert os.fsdecode(b'caf\xe9 \n\t"x') in names
    before = snapshot(worktree.tree)
    again = await place.prepare(epoch=2, resume=one.commit)
    assert again.drift is not None
    assert git(again.tree, "cat-file", "-s", f"{again.drift.commit}:big") == "2000"
    assert snapshot(again.tree) == {path: kept for path, kept in before.items() if path != "big"}


@pytest.mark.rule("R3")
async def test_what_no_commit_can_hold_is_moved_aside_and_not_destroyed(place):
    worktree = await place.prepare(size_cap_bytes=1000)
    (worktree.tree / "a.txt").write_bytes(b"y" * 5000)
    again = await place.prepare(epoch=2, size_cap_bytes=1000)
    assert again.drift is not None
    assert again.drift.aside == ("a.txt",)
    assert (place.root / ".moorage/aside/2/a.txt").read_bytes() == b"y" * 5000
    assert (again.tree / "a.txt").read_text() == "one\n"


async def test_the_agents_configuration_changes_no_checkpoint(place):
    worktree = await place.prepare()
    tree = worktree.tree
    for key, value in {
        "core.autocrlf": "true",
        "core.fileMode": "false",
        "core.fsmonitor": "/bin/false",
        "core.hooksPath": "/tmp",
        "commit.gpgSign": "true",
        "filter.lfs.clean": "false",
        "filter.lfs.required": "true",
        "core.excludesFile": "/dev/stdin",
    }.items():
        git(tree, "config", key, value)
    (tree / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    (tree / "d.bin").write_bytes(b"big\r\n")
    (tree / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (tree / "a.txt").chmod(0o755)
    one = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(one)
    want = snapshot(tree)
    place.lose_volume()
    assert snapshot((await place.prepare(epoch=2, resume=one.commit)).tree) == want


async def test_shallow_partial_and_sparse(place, source):
    for n in range(4):
        (source / "a.txt").write_text(f"{n}\n")
        git(source, "commit", "-qam", str(n))
    place.base = (await place.door.mirrors.ensure(KEY, LocalUpstream(source))).revision
    shallow = await place.prepare(depth=1)
    assert git(shallow.tree, "rev-list", "--count", "HEAD") == "1"
    (shallow.tree / "a.txt").write_text("work\n")
    one = await shallow.checkpoint(1, 1)
    await shallow.push_checkpoint(one)
    assert await place.stored(checkpoint_ref(RUN, 1)) == one.commit
    place.lose_volume()
    resumed = await place.prepare(epoch=2, resume=one.commit, depth=1)
    assert (resumed.tree / "a.txt").read_text() == "work\n"
    place.lose_volume()

    sparse = await place.prepare(epoch=3, filter="blob:none", sparse=("lib",))
    assert sorted(p.name for p in sparse.tree.iterdir()) == [".git", ".gitignore", "a.txt", "lib", "outside", "run.sh"]
    (sparse.tree / "lib/b.py").write_text("b = 2\n")
    two = await sparse.checkpoint(1, 3)
    await sparse.push_checkpoint(two)
    proposal = await sparse.propose("sparse")
    await sparse.push_candidate(proposal)
    assert proposal.files == 1


async def test_a_sparse_checkout_keeps_what_it_does_not_show(place, source):
    (source / "docs").mkdir()
    (source / "docs/guide.md").write_text("guide\n")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "docs")
    place.base = (await place.door.mirrors.ensure(KEY, LocalUpstream(source))).revision
    worktree = await place.prepare(filter="blob:none", sparse=("lib",))
    assert not (worktree.tree / "docs").exists()
    (worktree.tree / "lib/b.py").write_text("b = 2\n")
    proposal = await worktree.propose("sparse")
    assert git(worktree.tree, "ls-tree", "-r", "--name-only", proposal.commit).split().count("docs/guide.md") == 1
    await worktree.push_candidate(proposal)


async def test_local_runs_borrow_objects_from_the_mirror(place):
    worktree = await place.prepare(alternates=place.door.mirrors.path(KEY))
    assert not list((worktree.shadow.repo / "objects/pack").glob("*.pack"))
    (worktree.tree / "a.txt").write_text("two\n")
    await worktree.push_checkpoint(await worktree.checkpoint(1, 1))


async def test_a_proposal_builds_on_the_agents_commits_and_leaves_the_branch_alone(place):
    worktree = await place.prepare()
    tree = worktree.tree
    empty = await worktree.propose("nothing")
    assert (empty.empty, empty.commit, empty.files) == (True, place.base, 0)
    (tree / "a.txt").write_text("two\n")
    git(tree, "commit", "-qam", "the agent's")
    head = git(tree, "rev-parse", "HEAD")
    whole = await worktree.propose("not needed")
    assert (whole.commit, whole.files) == (head, 1)
    (tree / "rest.txt").write_text("rest\n")
    rest = await worktree.propose("Finish the job", "Grace Höpper <grace@example.com>")
    assert git(tree, "rev-parse", f"{rest.commit}^") == head
    assert (
        git(tree, "log", "-1", "--format=%an|%ae|%cn|%s", rest.commit)
        == "Grace Höpper|grace@example.com|Moorage|Finish the job"
    )
    assert git(tree, "rev-parse", "HEAD") == head
    await worktree.push_candidate(rest)
    assert await place.stored(candidate_ref(RUN, 1)) == rest.commit


async def test_a_proposal_on_rewritten_history_is_one_commit_on_the_base(place):
    worktree = await place.prepare()
    tree = worktree.tree
    git(tree, "checkout", "-q", "--orphan", "fresh")
    (tree / "a.txt").write_text("two\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "no parents")
    proposal = await worktree.propose("Squashed")
    assert git(tree, "rev-parse", f"{proposal.commit}^") == place.base


async def test_what_is_ignored_by_the_end_is_not_delivered(place):
    worktree = await place.prepare()
    tree = worktree.tree
    (tree / "dist").mkdir()
    (tree / "dist/bundle.js").write_text("x")
    one = await worktree.checkpoint(1, 1)
    assert "dist/bundle.js" in git(tree, "ls-tree", "-r", "--name-only", one.commit)
    (tree / ".gitignore").write_text("dist/\nrun.sh\n")
    proposal = await worktree.propose("x")
    names = git(tree, "ls-tree", "-r", "--name-only", proposal.commit).split()
    assert "dist/bundle.js" not in names
    assert "run.sh" in names
    assert (tree / "dist/bundle.js").exists()


async def test_a_push_that_the_gateway_refuses_says_why(place):
    worktree = await place.prepare()
    (worktree.tree / "a.txt").write_text("two\n")
    one = await worktree.checkpoint(1, 1)
    place.door.policy = ReceivePolicy(RUN, 2, BRANCH)
    with pytest.raises(Refused, match="runs/run-1/2/"):
        await worktree.push_checkpoint(one)


@pytest.mark.rule("P5")
async def test_a_push_without_an_answer_is_no_refusal_and_may_be_repeated(place):
    worktree = await place.prepare()
    (worktree.tree / "a.txt").write_text("two\n")
    one = await worktree.checkpoint(1, 1)
    for fault in (("before", 503), ("after", 502), ("before", 425)):
        place.door.faults.append(fault)
        with pytest.raises(NetworkUnreachable):
            await worktree.push_checkpoint(one)
        assert (await place.stored(checkpoint_ref(RUN, 1)) is None) is (fault == ("before", 503))
        (worktree.tree / "a.txt").write_text(f"{fault}\n")
        one = await worktree.checkpoint(2, 1)
    await worktree.push_checkpoint(one)
    assert await place.stored(checkpoint_ref(RUN, 1)) == one.commit
    (worktree.tree / "a.txt").write_text("three\n")
    place.door.faults.append(("before", 409))
    with pytest.raises(Refused):
        await worktree.push_checkpoint(await worktree.checkpoint(3, 1))


async def test_a_cancelled_or_broken_checkpoint_does_not_spoil_the_next(place):
    worktree = await place.prepare()
    for number in range(400):
        (worktree.tree / f"f{number}").write_text(f"{number}\n")
    for delay in (0.005, 0.01, 0.02, 0.03):
        task = asyncio.create_task(worktree.checkpoint(1, 1))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    for name in ("index.lock", "repo.git/HEAD.lock", "repo.git/refs/moorage/last.lock"):
        (worktree.volume.state / name).touch()
    (worktree.shadow.repo / "config").write_text("[broken")
    one = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(one)
    assert len(git(worktree.tree, "ls-tree", "-r", "--name-only", one.commit).split()) == 405
    git(place.door.mirrors.path(KEY), "rev-list", "--objects", "--all", "--quiet")


async def test_checkpoints_asked_for_at_once_are_taken_one_by_one(place):
    worktree = await place.prepare()
    (worktree.tree / "a.txt").write_text("two\n")
    taken = await asyncio.gather(*(worktree.checkpoint(n, 1) for n in range(3)), worktree.save_drift(1))
    assert [one.changed for one in taken[:3]] == [True, False, False]
    assert taken[3] is None


async def test_bad_requests_have_names(place):
    for base in ("main", "0" * 39 + "1"):
        place.base = base
        with pytest.raises(RefMissing):
            await place.prepare()
    with pytest.raises(BadRef):
        await RunWorktree.prepare(place.root, place.door.url, run=RUN, epoch=1, base="0" * 40, branch="-x")


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small file system")
async def test_a_full_disk_has_a_name_and_nothing_is_lost(place):
    place.root.mkdir()
    mounted = await asyncio.to_thread(
        subprocess.run, ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place.root], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount here")
    try:
        worktree = await place.prepare()
        (worktree.tree / "a.txt").write_text("two\n")
        one = await worktree.checkpoint(1, 1)
        await worktree.push_checkpoint(one)
        (worktree.tree / "noise").write_bytes(os.urandom(1_700_000))
        with pytest.raises(DiskFull, match="larger"):
            await worktree.checkpoint(2, 1)
        (worktree.tree / "noise").write_bytes(b"small")
        two = await worktree.checkpoint(2, 1)
        assert two.parent == one.commit
        await worktree.push_checkpoint(two)
    finally:
        place.release()
        place.live = None
        await asyncio.to_thread(subprocess.run, ["umount", "-l", place.root], check=True)


@pytest.mark.rule("W1")
@pytest.mark.parametrize("kind", WorkspaceKind)
async def test_workspaces_are_acquired_and_released_by_id(place, tmp_path, kind):
    provider: WorkspaceProvider = WorktreeProvider(tmp_path / "volumes", WorktreeOptions())
    request = WorkspaceRequest(RUN, kind, place.door.url, place.base, BRANCH)
    workspace = await provider.acquire(request)
    assert (workspace.id, workspace.kind) == (RUN, kind)
    assert workspace.metadata == {"git.remote": place.door.url, "git.branch": BRANCH, "git.commit": place.base}
    assert (workspace.root / "a.txt").read_text() == "one\n"
    with pytest.raises(PathRefused):
        resolve(workspace.root, "outside")
    assert (await provider.acquire(request)).root == workspace.root
    await provider.release(RUN)
    await provider.release(RUN)
    assert not workspace.root.exists()
    with pytest.raises(BadRef):
        await provider.release("../x")
    with pytest.raises(RefMissing):
        await provider.acquire(WorkspaceRequest(RUN, kind, place.door.url))
