"""The last checkpoint of a run's worktree beside it: what it changes, and a checkout of its own for who must not touch
the agent's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from moorage.workspace.plumbing import attach
from moorage.workspace.volume import write_sparse
from moorage.workspace.worktree import RunWorktree

NAME = "beside"


class Changes(NamedTuple):
    """Paths of the last checkpoint that aren't as in the base (removed ones too), and all that it has."""

    changed: frozenset[str]
    present: frozenset[str]


async def changes(worktree: RunWorktree) -> Changes:
    """What the last checkpoint holds. Paths are read as UTF-8; other bytes are kept as surrogates."""
    git = worktree.shadow.git
    flags = ("-r", "-z", "--name-only")
    differ = await git.run("diff-tree", *flags, "--no-renames", worktree.base_tree, worktree.last_tree)
    listed = await git.run("ls-tree", *flags, worktree.last_tree)
    return Changes(_paths(differ.stdout), _paths(listed.stdout))


@contextlib.asynccontextmanager
async def beside(worktree: RunWorktree, place: Path) -> AsyncIterator[Path]:
    """A fresh checkout of the last checkpoint at `place`, which is removed afterwards. Raises WorkspaceError."""
    admin = worktree.volume.repo / "worktrees" / NAME
    try:
        await asyncio.to_thread(_attached, worktree, admin, place)
        git = worktree.shadow.git
        plain = tuple(item for item in git.config if item[0] != "core.bare")
        await replace(git, cwd=place, env={}, config=plain).run("read-tree", "--reset", "-u", worktree.last_tree)
        yield place
    finally:
        await asyncio.to_thread(_remove, admin, place)


def _attached(worktree: RunWorktree, admin: Path, place: Path) -> None:
    """An empty worktree there, whatever an earlier one left."""
    _remove(admin, place)
    place.mkdir(parents=True)
    attach(admin, place, worktree.last)
    write_sparse(admin, worktree.options.sparse)


def _paths(told: bytes) -> frozenset[str]:
    return frozenset(os.fsdecode(path) for path in told.split(b"\0") if path)


def _remove(*folders: Path) -> None:
    """All of them, also where a command took the right to write from a folder of its own."""
    for folder in (each for each in folders if os.path.lexists(each)):
        shutil.rmtree(folder, onerror=lambda _do, path, _why: _force(Path(path)))


def _force(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.parent.chmod(0o700)
        path.chmod(0o700)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()
