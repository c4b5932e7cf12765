"""Paths that an agent names, kept inside its workspace (W1)."""

from __future__ import annotations

import os
from pathlib import Path

from moorage.workspace.errors import PathRefused


def resolve(root: Path, relative: str | os.PathLike[str], *, write: bool = False) -> Path:
    """The real path of `relative` below `root`, links inside the root followed.

    Raises PathRefused for absolute paths, `..`, NUL, links that lead out of the root, and writes to git's own files.
    The answer holds for this moment: whoever may rename folders in the root can still race it, so this guards an
    agent's mistakes; the sandbox guards the rest.
    """
    text = os.fspath(relative)
    if "\0" in text:
        raise PathRefused("a NUL byte in the path")
    path = Path(text)
    if path.is_absolute():
        raise PathRefused(f"{text!r} is absolute")
    if ".." in path.parts:
        raise PathRefused(f"{text!r} goes up")
    base = root.resolve(strict=True)
    try:
        real = (base / path).resolve()
    except (OSError, RuntimeError) as error:
        raise PathRefused(f"{text!r} can't be followed: {error}") from error
    if not real.is_relative_to(base):
        raise PathRefused(f"{text!r} is a link that leaves the workspace")
    if write and any(_is_git_internal(part) for part in (*path.parts, *real.relative_to(base).parts)):
        raise PathRefused(f"{text!r} belongs to git; use git itself to change it")
    return real


def _is_git_internal(part: str) -> bool:
    """`.git` as any file system may spell it."""
    return part.rstrip(" .").casefold() in {".git", "git~1"}
