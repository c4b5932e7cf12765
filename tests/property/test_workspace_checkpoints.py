"""Whatever an agent does to its tree, a checkpoint brings it back on a new volume, byte for byte."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from moorage.testing.gitdoor import GitDoor
from moorage.testing.trees import git, snapshot
from moorage.workspace.mirror import MirrorKey, Mirrors, ReceivePolicy
from moorage.workspace.worktree import RunWorktree

KEY, RUN, BRANCH = MirrorKey("team-a", "shop"), "run-1", "moorage/run-1"

# Each example starts some fifty processes: shrinking one for minutes helps nobody.
SLOW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)

# Names that trip parsers: spaces, quotes, line breaks, leading dashes, bytes that are no UTF-8, pathspec magic.
names = st.sampled_from(["a", "b", "c d", "-x", 'q"\n', "é", os.fsdecode(b"\xff\xfe"), ".dot", "*", ":(top)", "a.log"])
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: Path(*parts))
contents = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"a\r\nb\r\n", b"\0", b"version https://git-lfs"]))
steps = st.one_of(
    st.tuples(st.just("write"), paths, contents),
    st.tuples(st.just("link"), paths, st.sampled_from(["a", "../x", "/etc/passwd", "nowhere"])),
    st.tuples(st.just("remove"), paths, st.none()),
    st.tuples(st.just("chmod"), paths, st.booleans()),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("add"), st.none(), st.none()),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("unstage"), st.none(), st.none()),
)


def apply(tree: Path, step) -> None:
    """Do it as an agent would; what the file system refuses (a file in a folder's place) is left undone."""
    kind, first, second = step
    if kind == "add":
        git(tree, "add", "-A", check=False)
    elif kind == "commit":
        git(tree, "commit", "-qam", "work", check=False)
    elif kind == "unstage":
        git(tree, "reset", "-q", check=False)
    else:
        with contextlib.suppress(OSError):
            touch(tree / first, kind, second, tree)


def touch(path: Path, kind: str, value, tree: Path) -> None:
    if kind in {"write", "link"}:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
    if kind == "write":
        path.write_bytes(value)
    elif kind == "link":
        path.symlink_to(value)
    elif kind == "chmod" and not path.is_symlink():
        path.chmod(0o755 if value else 0o644)
    elif kind == "move":
        path.rename(tree / value)
    elif kind == "remove":
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


class Volume:
    def __init__(self, door: GitDoor, folder: Path, base: str) -> None:
        self.door, self.folder, self.base, self.count = door, folder, base, 0

    async def prepare(self, epoch: int, resume: str | None, *, fresh: bool) -> RunWorktree:
        self.count += fresh
        self.door.policy = ReceivePolicy(RUN, epoch, BRANCH)
        return await RunWorktree.prepare(
            self.folder / str(self.count),
            self.door.url,
            run=RUN,
            epoch=epoch,
            base=self.base,
            branch=BRANCH,
            resume=resume,
        )


@contextlib.asynccontextmanager
async def volume():
    with tempfile.TemporaryDirectory() as folder:
        mirrors = Mirrors(Path(folder) / "mirrors", timeout=30)
        base = (await mirrors.ensure(KEY, None)).revision
        await mirrors.pin(KEY, RUN, "base", base)
        async with GitDoor(mirrors, KEY, RUN).serving() as door:
            yield Volume(door, Path(folder), base)


def visible(tree: Path) -> dict[str, tuple[str, bytes]]:
    """What is not ignored: a folder that matches hides all that is in it."""
    whole = snapshot(tree)
    return {path: whole[path] for path in whole if not any(part.endswith(".log") for part in Path(path).parts)}


def state_of_user(tree: Path) -> tuple[str, ...]:
    return (git(tree, "status", "--porcelain", "-z"), git(tree, "rev-parse", "HEAD"), git(tree, "ls-files", "-s", "-z"))


def do_all(tree: Path, actions: list[tuple]) -> None:
    for step in actions:
        apply(tree, step)


async def round_trip(history: list[list[tuple]]) -> None:
    async with volume() as place:
        worktree = await place.prepare(1, None, fresh=True)
        tree = worktree.tree
        (tree / ".gitignore").write_bytes(b"*.log\n")
        commit, head, last = place.base, place.base, {}
        for iteration, actions in enumerate(history, 1):
            await asyncio.to_thread(do_all, tree, actions)
            before, files = state_of_user(tree), snapshot(tree)
            checkpoint = await worktree.checkpoint(iteration, 1)
            assert state_of_user(tree) == before
            assert snapshot(tree) == files
            assert checkpoint.changed == (visible(tree) != last)
            assert checkpoint.left_out == ()
            await worktree.push_checkpoint(checkpoint)
            commit, last = checkpoint.commit, visible(tree)
            head = git(tree, "rev-parse", "HEAD") if checkpoint.changed else head
        worktree.close()

        moved = await place.prepare(2, commit, fresh=True)
        assert visible(moved.tree) == last
        assert git(moved.tree, "rev-parse", "HEAD") == head
        assert not (await moved.checkpoint(99, 2)).changed
        moved.close()


@settings(parent=SLOW, max_examples=15)
@given(st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=4))
@pytest.mark.rule("P2", "W3")
@pytest.mark.timeout(300)
def test_a_checkpoint_restores_any_tree_and_leaves_the_users_state_alone(history):
    asyncio.run(round_trip(history))


async def drift(kept: list[tuple], lost: list[tuple]) -> None:
    async with volume() as place:
        worktree = await place.prepare(1, None, fresh=True)
        (worktree.tree / ".gitignore").write_bytes(b"*.log\n")
        for step in kept:
            apply(worktree.tree, step)
        checkpoint = await worktree.checkpoint(1, 1)
        await worktree.push_checkpoint(checkpoint)
        want = visible(worktree.tree)
        for step in lost:
            apply(worktree.tree, step)
        drifted = visible(worktree.tree)
        worktree.close()

        again = await place.prepare(2, checkpoint.commit, fresh=False)
        assert visible(again.tree) == want
        again.close()
        if drifted != want:
            assert again.drift is not None
        if again.drift is not None:
            elsewhere = await place.prepare(2, again.drift.commit, fresh=True)
            assert visible(elsewhere.tree) == drifted
            elsewhere.close()


@settings(parent=SLOW, max_examples=10)
@given(st.lists(steps, max_size=6), st.lists(steps, max_size=6))
@pytest.mark.rule("R3")
@pytest.mark.timeout(300)
def test_drift_is_reset_and_can_be_had_again_whole(kept, lost):
    asyncio.run(drift(kept, lost))
