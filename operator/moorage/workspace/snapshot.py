"""Pictures of a working tree, taken beside the agent's own git state (P2, W3).

A private index over the tree is kept from picture to picture, so that git's stat cache makes an unchanged tree cost
one `lstat` a file. The agent's index, HEAD and ignored files are never touched; its configuration is overruled where it
would change bytes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from moorage.workspace.git import Git

# Over whatever the agent writes into the repository's configuration.
_OVERRULED = (
    ("core.bare", "false"),
    ("core.autocrlf", "false"),
    ("core.safecrlf", "false"),
    ("core.fileMode", "true"),
    ("core.symlinks", "true"),
    ("core.ignoreCase", "false"),
    ("core.trustctime", "true"),
    ("core.checkStat", "default"),
    ("core.splitIndex", "false"),
    ("core.preloadIndex", "true"),
    ("core.excludesFile", os.devnull),
    ("core.attributesFile", os.devnull),
    ("core.fsync", "none"),
    ("core.logAllRefUpdates", "false"),
    ("checkout.workers", "1"),  # more is three times slower under gVisor and no faster beside it
    ("i18n.commitEncoding", "UTF-8"),
    ("filter.lfs.clean", ""),
    ("filter.lfs.smudge", ""),
    ("filter.lfs.process", ""),
    ("filter.lfs.required", "false"),
    ("http.proxy", ""),
)
_IGNORING = re.compile(r"^Ignoring path (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A changed path that a picture does not hold, as git spells it, and why. `size` in bytes."""

    raw: bytes
    reason: str
    size: int = 0
    too_large: bool = False

    @property
    def path(self) -> str:
        """The path for people: bytes that are no UTF-8 are escaped."""
        return printable(self.raw)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Change:
    """A path that differs from the last picture, as it is now. `mode` 0: it is gone. `size` in bytes."""

    path: bytes
    mode: int
    size: int
    readable: bool = True


def choose(changes: Sequence[Change], cap: int) -> tuple[list[bytes], list[LeftOut]]:
    """What to take and what to leave out, when new content may weigh `cap` bytes: the small ones first."""
    take, left = [], []
    room = cap
    for change in sorted(changes, key=lambda c: (c.size, c.path)):
        reason = _unfit(change)
        if reason:
            left.append(LeftOut(change.path, reason, change.size))
        elif change.size > room:
            left.append(LeftOut(change.path, f"over the cap of {cap} bytes", change.size, too_large=True))
        else:
            take.append(change.path)
            room -= change.size
    return take, left


def _unfit(change: Change) -> str | None:
    if change.path.endswith(b"/"):
        return "a git repository inside this one"
    if change.mode and not (stat.S_ISREG(change.mode) or stat.S_ISLNK(change.mode)):
        return "neither a file nor a link"
    if not change.readable:
        return "not readable"
    if stat.S_ISLNK(change.mode) and os.path.basename(change.path).lower() == b".gitmodules":  # noqa: PTH119  bytes
        return "a link in the place of .gitmodules, which git refuses"
    return None


def printable(path: bytes) -> str:
    """A path for people."""
    return path.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Shadow:
    """The private index over `tree`, in the repository `repo`. `inherit`: the volume's lock."""

    repo: Path
    tree: Path
    index: Path
    inherit: tuple[int, ...] = ()

    @property
    def git(self) -> Git:
        """Git on the tree by way of the private index."""
        env = {
            "GIT_DIR": str(self.repo),
            "GIT_WORK_TREE": str(self.tree),
            "GIT_INDEX_FILE": str(self.index),
            "GIT_LITERAL_PATHSPECS": "1",
        }
        return Git(self.tree, env, _OVERRULED, timeout=1800.0, limit=1 << 30, inherit=self.inherit)

    async def changes(self) -> list[Change]:
        """What differs from the index: one look at every file's stat."""
        flags = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all")
        out = await self.git.run("status", *flags)
        entries = [entry for entry in out.stdout.split(b"\0") if entry]
        gone = {entry[3:] for entry in entries if entry[1:2] == b"D"}  # also where a link leads to one of its name
        paths = [entry[3:] for entry in entries if entry[1:2] != b" "]
        return [Change(path, 0, 0) if path in gone else _look(self.tree, path) for path in paths]

    async def stage(self, cap: int) -> tuple[bool, list[LeftOut]]:
        """Bring the index to the tree's state. False: it was there already."""
        changes = await self.changes()
        beyond = {change.path for change in changes if not change.mode and _beyond_link(self.tree, change.path)}
        await self._forget(beyond)
        take, left = choose([change for change in changes if change.path not in beyond], cap)
        left += await self._update(take)
        if any(path == b".gitignore" or path.endswith(b"/.gitignore") for path in take):
            await self.drop_ignored()
        return bool(take or beyond), left

    async def drop_ignored(self) -> None:
        """Take out of the index what is ignored by now and in no commit of the agent's or the base."""
        out = await self.git.run("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
        ignored = {path for path in out.stdout.split(b"\0") if path}
        for commit in ("refs/moorage/base", "worktrees/tree/HEAD") if ignored else ():
            ignored -= await self._paths_of(commit)
        await self._forget(ignored)

    async def write_tree(self) -> str:
        """The tree of the index."""
        return await self.git.text("write-tree", "--missing-ok")

    async def known(self, paths: Sequence[bytes], *trees: str) -> set[bytes]:
        """Those of the paths that the index or one of the trees (or commits) holds: what a reset to it would touch."""
        if not paths:
            return set()
        inside = await self.git.run("ls-files", "-z")
        return set(paths) & set(inside.stdout.split(b"\0")).union(*[await self._paths_of(tree) for tree in trees])

    async def _update(self, paths: Sequence[bytes]) -> list[LeftOut]:
        if not paths:
            return []
        flags = ("--add", "--remove", "--replace", "-z", "--stdin")
        out = await self.git.run("update-index", *flags, stdin=b"\0".join([*paths, b""]))
        return [LeftOut(os.fsencode(path), "a name that git refuses") for path in _IGNORING.findall(out.stderr)]

    async def _forget(self, paths: Collection[bytes]) -> None:
        """Take paths out of the index without a look at the tree."""
        if paths:
            await self.git.run("update-index", "-z", "--force-remove", "--stdin", stdin=b"\0".join([*paths, b""]))

    async def _paths_of(self, commit: str) -> set[bytes]:
        out = await self.git.run("ls-tree", "-r", "-z", "--name-only", commit, ok=(0, 128))
        return set(out.stdout.split(b"\0"))


def _beyond_link(tree: Path, path: bytes) -> bool:
    """A folder above is a link now: git won't look past it, and neither may we."""
    parts = path.split(b"/")[:-1]
    return any(os.path.islink(os.path.join(os.fsencode(tree), *parts[: n + 1])) for n in range(len(parts)))  # noqa: PTH114, PTH118  bytes


def _look(tree: Path, path: bytes) -> Change:
    full = os.path.join(os.fsencode(tree), path)  # noqa: PTH118  bytes: names need not be UTF-8
    try:
        found = os.lstat(full)
    except (FileNotFoundError, NotADirectoryError):
        return Change(path, 0, 0)
    if stat.S_ISDIR(found.st_mode):
        return Change(path, found.st_mode if path.endswith(b"/") else 0, 0)
    readable = stat.S_ISLNK(found.st_mode) or os.access(full, os.R_OK)
    return Change(path, found.st_mode, found.st_size, readable)
