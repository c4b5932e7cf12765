"""One run's way from its mirror to its volume, over real HTTP; fixtures that contract tests of worktrees share."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.testing.gitdoor import GitDoor
from moorage.testing.trees import git
from moorage.workspace.mirror import LocalUpstream, MirrorKey, Mirrors, ReceivePolicy
from moorage.workspace.worktree import RunWorktree, WorktreeOptions

KEY = MirrorKey("team-a", "shop")
RUN = "run-1"
BRANCH = "moorage/run-1"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    work = tmp_path / "source"
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    (work / "a.txt").write_text("one\n")
    (work / "lib").mkdir()
    (work / "lib/b.py").write_text("b = 1\n")
    (work / ".gitignore").write_text("*.log\nbuild/\n")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "outside").symlink_to("/etc/passwd")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "base")
    return work


class Place:
    """One run's way from its mirror to its volume."""

    def __init__(self, door: GitDoor, tmp_path: Path, base: str) -> None:
        self.door, self.base, self.root = door, base, tmp_path / "volume"
        self.live: RunWorktree | None = None

    async def prepare(self, epoch: int = 1, resume: str | None = None, **options) -> RunWorktree:
        self.door.policy = ReceivePolicy(RUN, epoch, BRANCH)
        self.release()
        self.live = await RunWorktree.prepare(
            self.root,
            self.door.url,
            run=RUN,
            epoch=epoch,
            base=self.base,
            branch=BRANCH,
            resume=resume,
            options=WorktreeOptions(**options),
        )
        return self.live

    def release(self) -> None:
        if self.live:
            self.live.close()

    async def stored(self, ref: str) -> str | None:
        return await self.door.mirrors.ref(KEY, ref)

    def lose_volume(self) -> None:
        shutil.rmtree(self.root)


@pytest.fixture
async def place(tmp_path: Path, source: Path) -> AsyncIterator[Place]:
    mirrors = Mirrors(tmp_path / "mirrors", timeout=30.0)
    state = await mirrors.ensure(KEY, LocalUpstream(source))
    await mirrors.pin(KEY, RUN, "base", state.revision)
    async with GitDoor(mirrors, KEY, RUN, ReceivePolicy(RUN, 1, BRANCH)).serving() as door:
        one = Place(door, tmp_path, state.revision)
        yield one
        one.release()
