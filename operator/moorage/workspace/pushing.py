"""What a push to the gateway comes to: done, or why not, by the name of the file where that is the reason."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from moorage.workspace.errors import ContentRefused, Refused, WorkspaceError, classify
from moorage.workspace.git import Git, Output
from moorage.workspace.snapshot import printable

_BAD_OBJECT = re.compile(r"object ([0-9a-f]{40,64}): (\w+: [^;)]*)")  # as fsck tells it


async def push(git: Git, url: str, refs: Mapping[str, str], base: str, *, force: bool = False) -> None:
    """Push commits, all of which come after `base`, to refs. Raises Refused with the gateway's words, ContentRefused,
    NetworkUnreachable, …
    """
    sign = "+" if force else ""
    specs = [f"{sign}{commit}:{ref}" for ref, commit in refs.items()]
    out = await git.run("push", "--porcelain", "--no-verify", url, *specs, ok=(0, 1))
    if out.code:
        raise await _reason(git, out, tuple(refs.values()), base)


async def _reason(git: Git, out: Output, commits: tuple[str, ...], base: str) -> WorkspaceError:
    """Content that git refuses is named by its path."""
    error = _no(out)
    if not isinstance(error, Refused):
        return error
    if "pack exceeds maximum" in error.detail:
        return ContentRefused(error.detail)
    match = _BAD_OBJECT.search(error.detail)
    if match is None:
        return error
    listed = await git.run("rev-list", "--objects", *commits, "--not", base)
    names = dict(line.split(" ", 1) for line in os.fsdecode(listed.stdout).splitlines() if " " in line)
    path = printable(os.fsencode(names.get(match[1], match[1]))) or "the top folder"
    return ContentRefused(f"{path}: {match[2]}")


def _no(out: Output) -> WorkspaceError:
    """The gateway's no to a ref, or no answer of its."""
    words = [line.split("\t")[-1] for line in out.text.splitlines() if line.startswith("!")]
    if words and not any("remote failure" in word for word in words):
        return Refused("; ".join(words))
    return classify(out.stderr or "; ".join(words))
