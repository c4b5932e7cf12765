"""Volumes as a killed or strange predecessor leaves them (W4): taken over, made again, or refused by name."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.workspace_place import BRANCH, KEY, RUN

import moorage
from moorage.testing.trees import ENV, git, snapshot
from moorage.workspace.errors import (
    LockHeld,
    SubmodulesUnsupported,
)
from moorage.workspace.mirror import LocalUpstream, ReceivePolicy
from moorage.workspace.refs import checkpoint_ref
from moorage.workspace.worktree import RunWorktree

KILLED = """
import asyncio, sys
from pathlib import Path
from moorage.workspace.worktree import RunWorktree

async def main(root, url, epoch, base, branch):
    place = dict(run="run-1", epoch=int(epoch), base=base, branch=branch)
    worktree = await RunWorktree.prepare(Path(root), url, **place)
    for number in range(1000):
        (worktree.tree / f"file-{epoch}-{number}").write_text("work")
        await worktree.push_checkpoint(await worktree.checkpoint(number, int(epoch)))
        print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.rule("W4")
async def test_what_a_killed_predecessor_left_is_taken_over(place):
    worktree = await place.prepare()
    repo, tree = worktree.shadow.repo, worktree.tree
    (tree / "lost.txt").write_text("x\n")
    for lock in ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", f"refs/heads/{BRANCH}.lock"):
        (repo / lock).parent.mkdir(parents=True, exist_ok=True)
        (repo / lock).touch()
    (repo / "worktrees/tree/index.lock").touch()
    (repo / "worktrees/tree/locked").write_text("by a ghost")
    worktree.shadow.index.with_name("index.lock").touch()
    (repo / "objects/pack/tmp_pack_x").write_text("half")
    (repo / "config").write_text("[core\nbroken")
    agents = worktree.volume.state / "agent/home/poetry.lock"
    agents.parent.mkdir(parents=True)
    agents.touch()
    again = await place.prepare(epoch=2)
    assert again.drift is not None
    assert git(again.tree, "status", "--porcelain") == ""
    assert git(again.tree, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    git(again.tree, "commit", "-q", "--allow-empty", "-m", "the agent can commit")
    assert agents.exists()


def remove_packs(worktree: RunWorktree) -> None:
    for path in [*worktree.shadow.repo.glob("objects/pack/*")]:
        path.unlink()


def replace_git_file(worktree: RunWorktree) -> None:
    (worktree.tree / ".git").unlink()
    git(worktree.tree, "init", "-q")


def branch_elsewhere(worktree: RunWorktree) -> None:
    git(worktree.tree, "checkout", "-q", "-b", "other")
    git(worktree.tree, "worktree", "add", "-q", str(worktree.volume.root / "elsewhere"), BRANCH)


def spoil_indexes(worktree: RunWorktree) -> None:
    worktree.shadow.index.write_bytes(b"DIRCgarbage")
    (worktree.shadow.repo / "worktrees/tree/index").write_bytes(b"")


DAMAGES = {
    "no worktree record": lambda w: shutil.rmtree(w.shadow.repo / "worktrees"),
    "no .git file": lambda w: (w.tree / ".git").unlink(),
    "another repository in its place": replace_git_file,
    "detached HEAD": lambda w: git(w.tree, "checkout", "-q", "--detach"),
    "unborn branch": lambda w: git(w.tree, "checkout", "-q", "--orphan", "void"),
    "branch checked out elsewhere": branch_elsewhere,
    "no repository": lambda w: shutil.rmtree(w.shadow.repo),
    "no objects": remove_packs,
    "indexes spoiled": spoil_indexes,
    "broken HEAD": lambda w: (w.shadow.repo / "HEAD").write_bytes(b"\0" * 41),
}


@pytest.mark.rule("W4")
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_worktree_is_made_again_and_its_files_are_saved(place, damage):
    worktree = await place.prepare()
    (worktree.tree / "lost.txt").write_text("precious\n")
    DAMAGES[damage](worktree)
    again = await place.prepare(epoch=2)
    assert git(again.tree, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    assert git(again.tree, "status", "--porcelain") == ""
    assert again.drift is not None
    assert git(place.door.mirrors.path(KEY), "show", f"{again.drift.commit}:lost.txt") == "precious"
    (again.tree / "a.txt").write_text("on it goes\n")
    await again.push_checkpoint(await again.checkpoint(1, 2))


async def test_a_tree_that_is_gone_is_checked_out_again(place, source):
    worktree = await place.prepare()
    shutil.rmtree(worktree.tree)
    again = await place.prepare(epoch=2)
    assert snapshot(again.tree) == snapshot(source)


async def test_two_runners_never_work_on_one_volume(place, monkeypatch):
    monkeypatch.setattr("moorage.workspace.worktree._LOCK_WAIT_SECONDS", 0.1)
    first = await place.prepare()
    place.live = None
    with pytest.raises(LockHeld, match="another runner"):
        await place.prepare(epoch=2)
    first.close()
    first.close()
    await place.prepare(epoch=2)


async def test_a_successor_waits_for_what_a_killed_runner_left_running(place, tmp_path):
    """The orphan stands for a git process of the killed runner: it holds what it inherited, and no more."""
    first = await place.prepare()
    orphan = await asyncio.create_subprocess_exec("sleep", "0.6", pass_fds=first.shadow.inherit)
    began = time.monotonic()
    await place.prepare(epoch=2)
    assert time.monotonic() - began >= 0.4
    await orphan.wait()


@pytest.mark.rule("W4")
async def test_submodules_are_refused_unless_asked_for(place, source, tmp_path):
    (source / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = https://example.com/x.git\n')
    git(source, "add", "-A")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{place.base},x")
    git(source, "commit", "-qm", "submodule")
    state = await place.door.mirrors.ensure(KEY, LocalUpstream(source))
    place.base = state.revision
    with pytest.raises(SubmodulesUnsupported, match="submodules: true"):
        await place.prepare()
    worktree = await place.prepare(submodules=True)
    assert list((worktree.tree / "x").iterdir()) == []
    (worktree.tree / "a.txt").write_text("two\n")
    proposal = await worktree.propose("done")
    assert "160000" in git(worktree.tree, "ls-tree", proposal.commit, "x")


@pytest.mark.rule("W4")
async def test_lfs_pointers_stay_pointers_and_are_reported(place, source):
    (source / ".gitattributes").write_text("*.psd filter=lfs diff=lfs merge=lfs -text\n")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12\n"
    (source / "art.psd").write_text(pointer)
    git(source, "add", "-A")
    git(source, "commit", "-qm", "lfs")
    place.base = (await place.door.mirrors.ensure(KEY, LocalUpstream(source))).revision
    worktree = await place.prepare()
    assert worktree.lfs_pointers == ("art.psd",)
    assert (worktree.tree / "art.psd").read_text() == pointer


@pytest.mark.rule("R1", "R3", "W4")
async def test_a_runner_that_is_killed_at_any_moment_has_a_successor(place, source, tmp_path):
    """A process of its own is killed with all its git children while it prepares, checkpoints and pushes, over and over
    on one volume; each time the next one finds a volume that it can use, and no byte of the agent's is gone."""
    want = snapshot(source)
    for epoch, delay in enumerate((0.3, 0.45, 0.6, 0.0, 0.02, 0.04, 0.06), 2):
        place.door.policy = ReceivePolicy(RUN, epoch, BRANCH)
        args = (str(place.root), place.door.url, str(epoch), place.base, BRANCH)
        env = {**ENV, "PYTHONPATH": str(Path(moorage.__file__).parent.parent)}
        runner = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, *args, env=env, stdout=subprocess.PIPE
        )
        if delay < 0.1:  # in the middle of the second checkpoint or its push; else while it starts and prepares
            assert await runner.stdout.readline() == b"0\n"
        await asyncio.sleep(delay)
        runner.kill()
        await runner.communicate()
    last = await place.prepare(epoch=99)
    assert snapshot(last.tree) == want
    assert git(last.tree, "status", "--porcelain") == ""
    store = place.door.mirrors.path(KEY)
    assert git(store, "for-each-ref", "refs/moorage/runs/run-1/8")
    git(store, "rev-list", "--objects", "--all", "--quiet")


@pytest.mark.skipif(os.getuid() != 0, reason="changes owners")
@pytest.mark.rule("W4")
async def test_a_volume_of_another_user_is_no_dubious_ownership(place):
    worktree = await place.prepare()
    for path in [place.root, *place.root.rglob("*")]:
        os.lchown(path, 1000, 1000)
    again = await place.prepare(epoch=2)
    (again.tree / "a.txt").write_text("two\n")
    assert (await again.checkpoint(1, 2)).changed
    environment = {**ENV, **worktree.agent_environment}
    for path in [place.root, *place.root.rglob("*")]:
        os.lchown(path, 1000, 1000)
    done = await asyncio.to_thread(
        subprocess.run,
        ["git", "status", "--porcelain"],
        cwd=again.tree,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.stdout == b" M a.txt\n"


# As another user that may write by its group alone, as a volume with fsGroup is: prepare, checkpoint, push, and then
# what an agent does with git in its own environment.
STRANGER = """
import asyncio, encodings.idna, os, subprocess, sys
from pathlib import Path
from moorage.workspace.worktree import RunWorktree

async def main(root, url, base, branch):
    worktree = await RunWorktree.prepare(Path(root), url, run="run-1", epoch=2, base=base, branch=branch)
    (worktree.tree / "a.txt").write_text("two\\n")
    await worktree.push_checkpoint(await worktree.checkpoint(1, 2))
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **worktree.agent_environment}
    for command in (["status", "--porcelain"], ["commit", "-qam", "mine"], ["log", "-1", "--format=%s"]):
        done = subprocess.run(["git", *command], cwd=worktree.tree, env=env, capture_output=True, text=True)
        print(f"{done.returncode} {done.stdout}{done.stderr}".strip())

os.setgroups([])  # only now: the interpreter may lie where a stranger can't read
os.setresgid(1000, 1000, 1000)
os.setresuid(1000, 1000, 1000)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.rule("W4")
async def test_runner_and_agent_work_on_a_volume_that_belongs_to_another_user(place):
    """Git calls a repository of another owner dubious: the volume of an earlier attempt may have one."""
    await place.prepare()
    place.release()
    for path in [place.root, *place.root.rglob("*")]:
        os.lchown(path, 2000, 1000)
        if not path.is_symlink():
            path.chmod(0o2775 if path.is_dir() else 0o664)
    place.door.policy = ReceivePolicy(RUN, 2, BRANCH)
    for folder in Path(place.root).parents:  # the test's own folders are closed to strangers
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    args = (str(place.root), place.door.url, place.base, BRANCH)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    runner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STRANGER, *args, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
    )
    said, errors = await runner.communicate()
    assert said.decode().splitlines() == ["0  M a.txt", "0", "0 mine"], errors.decode()
    store = place.door.mirrors.path(KEY)
    assert git(store, "show", f"{await place.stored(checkpoint_ref(RUN, 2))}:a.txt") == "two"


@pytest.fixture
def outside(tmp_path):
    """A folder that no run has any business in."""
    folder = tmp_path / "outside-of-all"
    folder.mkdir()
    (folder / "b.py").write_text("secret = 1\n")
    (folder / "ignored").write_text("*\n")
    return folder


@pytest.mark.rule("W1", "I10")
async def test_links_that_leave_the_repository_are_kept_as_links_and_never_followed(place, source, outside):
    (source / "file-out").symlink_to(outside / "b.py")
    (source / "folder-out").symlink_to(outside)
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/up").symlink_to("../../../../outside-of-all/b.py")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "links")
    place.base = (await place.door.mirrors.ensure(KEY, LocalUpstream(source))).revision
    before = snapshot(outside)
    worktree = await place.prepare()
    tree = worktree.tree
    (tree / "more").symlink_to(outside)
    shutil.rmtree(tree / "lib")
    (tree / "lib").symlink_to(outside)  # a folder of the base is now a link
    (tree / "deep/.gitignore").symlink_to(outside / "ignored")
    (tree / "a.txt").write_text("two\n")
    taken = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(taken)
    proposal = await worktree.propose("links")
    await worktree.push_candidate(proposal)
    store = place.door.mirrors.path(KEY)
    for commit in (taken.commit, proposal.commit):
        listed = git(store, "ls-tree", "-r", commit).splitlines()
        links = {line.split("\t")[1] for line in listed if line.startswith("120000")}
        assert links >= {"file-out", "folder-out", "deep/er/up", "more", "lib"}
        assert not [line for line in listed if line.split("\t")[1].startswith(("lib/", "more/", "folder-out/"))]
        assert git(store, "show", f"{commit}:file-out") == str(outside / "b.py")
    assert "secret" not in git(store, "log", "-p", "--all")
    assert snapshot(outside) == before
    again = await place.prepare(epoch=2)  # from the base: `lib` is a folder again
    assert (again.tree / "lib/b.py").read_text() == "b = 1\n"
    assert not (again.tree / "lib").is_symlink()
    assert snapshot(outside) == before


@pytest.mark.rule("W4", "W1")
async def test_a_tree_that_leads_elsewhere_is_no_place_to_work(place, source, outside):
    """A killed run's agent put a link, or another worktree's record, where the tree was: a ghost folder."""
    before = snapshot(outside)
    worktree = await place.prepare()
    worktree.tree.rename(place.root / "old")
    worktree.tree.symlink_to(outside)
    again = await place.prepare(epoch=2)
    assert not again.tree.is_symlink()
    assert snapshot(again.tree) == snapshot(source)
    assert snapshot(outside) == before
    (again.volume.admin / "gitdir").write_text(f"{outside / '.git'}\n")
    (again.volume.admin / "locked").write_text("by a ghost")
    (again.volume.admin / "index.lock").touch()
    (again.tree / ".git").write_text(f"gitdir: {outside}\n")
    last = await place.prepare(epoch=3)
    assert git(last.tree, "rev-parse", "--show-toplevel") == str(last.tree)
    assert git(last.tree, "symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    (last.tree / "a.txt").write_text("two\n")
    git(last.tree, "commit", "-qam", "the agent can commit")
    assert snapshot(outside) == before


@pytest.mark.rule("R1")
async def test_a_shallow_volume_goes_on_from_an_agents_own_commits(place):
    worktree = await place.prepare(depth=1)
    (worktree.tree / "a.txt").write_text("two\n")
    git(worktree.tree, "commit", "-qam", "mine")
    head = git(worktree.tree, "rev-parse", "HEAD")
    (worktree.tree / "a.txt").write_text("three\n")
    one = await worktree.checkpoint(1, 1)
    await worktree.push_checkpoint(one)
    place.lose_volume()
    again = await place.prepare(epoch=2, resume=one.commit, depth=1)
    assert git(again.tree, "rev-parse", "HEAD") == head
    assert git(again.tree, "status", "--porcelain") == "M a.txt"
