"""Pictures of a working tree, taken beside the agent's own git state (P2, W3).

A private index over the tree is kept from picture to picture, so that git's stat cache makes an unchanged tree cost
one `lstat` a file. The agent's index, HEAD and ignored files are never touched; its configuration is overruled where it
would change bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
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
    ("core.protectHFS", "true"),  # what the gateway refuses is left out by its name, not found out by a push
    ("core.protectNTFS", "true"),
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
_CHUNK = 1 << 20
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
    """A path that differs from the last picture, as it is now. `mode` 0: it is gone. `size` in bytes. `was`: mode
    (octal) and blob that the picture has under its name, empty for a new one."""

    path: bytes
    mode: int
    size: int
    readable: bool = True
    was: tuple[bytes, bytes] = (b"", b"")

    @property
    def file_mode(self) -> bytes:
        """A regular file's mode as git has it, octal."""
        return b"100755" if self.mode & stat.S_IXUSR else b"100644"


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
        flags = ("--porcelain=v2", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=all")
        out = await self.git.run("status", *flags)
        found = [_entry(entry) for entry in out.stdout.split(b"\0") if entry]
        gone = {path for path, state, _ in found if state == b"D"}  # also where a link leads to one of its name
        told = [(path, was) for path, state, was in found if state != b"."]
        return [Change(path, 0, 0) if path in gone else _look(self.tree, path, was) for path, was in told]

    async def stage(self, cap: int) -> tuple[bool, list[LeftOut]]:
        """Bring the index to the tree's state. False: it was there already."""
        found = await self.changes()
        unwritten = [change for change in found if await self._unwritten(change)]
        moded = await self._take_modes(unwritten)
        same = {change.path for change in unwritten}
        changes = [change for change in found if change.path not in same]
        beyond = {change.path for change in changes if not change.mode and _beyond_link(self.tree, change.path)}
        await self._forget(beyond)
        take, left = choose([change for change in changes if change.path not in beyond], cap)
        left += await self._update(take)
        if any(path == b".gitignore" or path.endswith(b"/.gitignore") for path in take):
            await self.drop_ignored()
        return bool(take or beyond or moded), left

    async def _unwritten(self, change: Change) -> bool:
        """Its bytes are the picture's: it differs only in what git would make of them today, such as their line ends.

        Without attributes nothing is converted, and what differs was written.
        """
        files = change.was[0] in {b"100644", b"100755"} and stat.S_ISREG(change.mode) and change.readable
        if not files or not _attributed(self.tree, change.path):
            return False
        return await asyncio.to_thread(_blob_of, self.tree, change) == change.was[1]

    async def _take_modes(self, changes: Sequence[Change]) -> bool:
        """Where no byte was written, the blob stays as it is. False: no mode has changed."""
        lines = [
            b"%b %b\t%b\0" % (change.file_mode, change.was[1], change.path)
            for change in changes
            if change.file_mode != change.was[0]
        ]
        if lines:
            await self.git.run("update-index", "-z", "--index-info", stdin=b"".join(lines))
        return bool(lines)

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


def _entry(entry: bytes) -> tuple[bytes, bytes, tuple[bytes, bytes]]:
    """Path, state in the tree, and mode and blob in the index, of a line of `status --porcelain=v2`."""
    if entry.startswith(b"? "):
        return entry[2:], b"?", (b"", b"")
    *known, path = entry.split(b" ", 8)
    return path, known[1][1:2], (known[4], known[7])


def _attributed(tree: Path, path: bytes) -> bool:
    """Some .gitattributes is above it."""
    folders = path.split(b"/")[:-1]
    above = (os.path.join(os.fsencode(tree), *folders[:n], b".gitattributes") for n in range(len(folders) + 1))  # noqa: PTH118  bytes
    return any(os.path.isfile(each) for each in above)  # noqa: PTH113  bytes


def _blob_of(tree: Path, change: Change) -> bytes:
    """The id of the file's own bytes, unconverted; none where it can't be read."""
    kind = hashlib.sha256 if len(change.was[1]) == 64 else hashlib.sha1
    digest = kind(b"blob %d\0" % change.size, usedforsecurity=False)
    try:
        with open(os.path.join(os.fsencode(tree), change.path), "rb") as file:  # noqa: PTH118, PTH123  bytes
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return b""
    return digest.hexdigest().encode()


def _look(tree: Path, path: bytes, was: tuple[bytes, bytes]) -> Change:
    full = os.path.join(os.fsencode(tree), path)  # noqa: PTH118  bytes: names need not be UTF-8
    try:
        found = os.lstat(full)
    except (FileNotFoundError, NotADirectoryError):
        return Change(path, 0, 0)
    if stat.S_ISDIR(found.st_mode):
        return Change(path, found.st_mode if path.endswith(b"/") else 0, 0)
    readable = stat.S_ISLNK(found.st_mode) or os.access(full, os.R_OK)
    return Change(path, found.st_mode, found.st_size, readable, was)
