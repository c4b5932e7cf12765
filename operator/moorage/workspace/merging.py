"""W7: another run's commit into a worktree that an agent works in, whole or not at all.

The merge is made beside the tree, of a picture of it, and of nothing but three trees. No history tells what both come
from: a shallow workspace lacks it, and a child begins with a copy of its parent's work. What comes of it without a
conflict is then put into the tree as one patch, which git applies to all files or to none. A conflict changes nothing
and is named by its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moorage.points import Point, reached
from moorage.workspace.errors import GitFailed
from moorage.workspace.git import Git
from moorage.workspace.snapshot import printable

Commit = Callable[[str, Iterable[str], str], str]


@dataclass(frozen=True)
class Merged:
    """What came of it: the files that both have changed, where there is a conflict; else how many files are new."""

    conflicts: tuple[str, ...] = ()
    files: int = 0
    problem: str = ""

    @property
    def ok(self) -> bool:
        """The tree has it."""
        return not self.conflicts and not self.problem


async def merge_into(git: Git, commit: Commit, *, base: str, ours: str, theirs: str) -> Merged:
    """Merge what was changed from tree `base` to tree `theirs` into the worktree, which stands exactly as the tree
    `ours` says. `git` works on that; `commit` makes a commit of a tree, its parents and a message.
    """
    began = commit(base, (), "Where a merge begins")
    sides = [commit(tree, (began,), "A side of a merge") for tree in (ours, theirs)]
    out = await git.run("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", *sides, ok=(0, 1))
    tree, *names = [each for each in out.stdout.split(b"\0") if each]
    if out.code == 1:
        return Merged(conflicts=tuple(sorted({printable(name) for name in names})))
    patch = (await git.run("diff-tree", "-r", "-p", "--binary", "--full-index", ours, os.fsdecode(tree))).stdout
    if not patch:
        return Merged()
    reached(Point.MERGE_BEFORE)
    try:
        await git.run("apply", "--binary", "--whitespace=nowarn", "-", stdin=patch)
    except GitFailed as error:
        return Merged(problem=str(error))
    reached(Point.MERGE_AFTER)
    return Merged(files=patch.count(b"\ndiff --git ") + patch.startswith(b"diff --git "))
