"""Small things that git documents, written without a process of git's: refs, a commit, a worktree's record.

Under gVisor a process of git's takes longer to start than to do one of these. The formats are those of
gitrepository-layout(5) and of loose objects; whatever is larger, or depends on configuration, is git's.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from moorage.workspace.errors import Corrupt, GitFailed, LockHeld
from moorage.workspace.refs import is_sha

_HEAD_TRAILER = re.compile(r"^Moorage-Head: ([0-9a-f]{40,64})$", re.MULTILINE)
_TREE_LINE = re.compile(rb"tree ([0-9a-f]{40,64})\n")


def write_ref(git_dir: Path, ref: str, value: str) -> None:
    """Point `ref` (or HEAD) at a commit, or at `ref: …`, by git's own way: `<ref>.lock`, made by nobody else, renamed.

    Raises LockHeld where somebody is at it, GitFailed where a ref of another name stands in the way.
    """
    path = git_dir / ref
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("x") as file:
            file.write(f"{value}\n")
        lock.replace(path)
    except FileExistsError as error:
        raise (LockHeld if error.filename == str(lock) else GitFailed)(f"{ref}: {error}") from None
    except (IsADirectoryError, NotADirectoryError) as error:
        lock.unlink(missing_ok=True)
        raise GitFailed(f"{ref}: {error}") from None


def read_ref(git_dir: Path, common: Path, ref: str = "HEAD") -> str | None:
    """The commit that a ref of a worktree stands for; None where it has none, or none that we can read."""
    value = _text(git_dir / ref)
    name = value.removeprefix("ref: ")
    if name != value:
        value = _text(common / name) if name.startswith("refs/") and ".." not in name else ""
        value = value or _packed(common, name)
    return value if is_sha(value) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _packed(common: Path, name: str) -> str:
    found = (line.partition(" ") for line in _text(common / "packed-refs").splitlines())
    return next((value for value, _, ref in found if ref == name), "")


def write_commit(repo: Path, tree: str, parents: Iterable[str], message: str, identity: Mapping[str, str]) -> str:
    """A commit object of this moment; no ref moves. `identity` as git's environment names it."""
    at = f"{int(time.time())} +0000"
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    for who in ("author", "committer"):
        name, email = (identity[f"GIT_{who.upper()}_{part}"] for part in ("NAME", "EMAIL"))
        lines.append(f"{who} {name} <{email}> {at}")
    text = message.replace("\0", "").rstrip("\n")
    body = ("\n".join(lines) + f"\n\n{text}\n").encode("utf-8", "surrogateescape")
    return write_object(repo, b"commit", body)


def write_object(repo: Path, kind: bytes, body: bytes) -> str:
    """A loose object, under its name once it is whole."""
    whole = b"%b %d\0%b" % (kind, len(body), body)
    name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    path = _loose(repo, name)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_name(f"tmp_obj_{os.getpid()}_{threading.get_ident()}")
        fresh.write_bytes(zlib.compress(whole, 1))
        fresh.chmod(0o444)
        fresh.replace(path)
    return name


def is_loose(repo: Path, name: str) -> bool:
    """It lies under its own name. Where it doesn't, it may be in a pack."""
    return _loose(repo, name).exists()


def _loose(repo: Path, name: str) -> Path:
    return repo / "objects" / name[:2] / name[2:]


def author_and_committer(author: str) -> dict[str, str]:
    """Git's environment for `Name <email>`; the committer is Moorage."""
    match = re.fullmatch(r"\s*([^<>\n\0]*?)\s*<([^<>\s\0]*)>\s*", author)
    name, email = match.groups() if match else (re.sub(r"[<>\n\0]", "", author).strip(), "")
    name, email = name or "Moorage", email or "noreply@moorage.dev"
    committer = {"GIT_COMMITTER_NAME": "Moorage", "GIT_COMMITTER_EMAIL": "noreply@moorage.dev"}
    return {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, **committer}


def attach(admin: Path, tree: Path, head: str) -> None:
    """Make `tree` a worktree whose record is `admin`, below `worktrees` of its repository. Raises GitFailed."""
    try:
        admin.mkdir(parents=True)
        (admin / "commondir").write_text("../..\n")
        (admin / "gitdir").write_text(f"{tree / '.git'}\n")
        (admin / "HEAD").write_text(f"{head}\n")
        (tree / ".git").write_text(f"gitdir: {admin}\n")
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise GitFailed(f"something stands in the place of the worktree's record: {error}") from None


def batch(answer: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each object in the answer of `cat-file --batch`. Raises Corrupt for one that is missing."""
    at = 0
    while at < len(answer):
        line, _, _ = answer[at:].partition(b"\n")
        words = line.split(b" ")
        if len(words) != 3 or not words[2].isdigit():
            raise Corrupt(line.decode("utf-8", "replace"))
        begin = at + len(line) + 1
        at = begin + int(words[2]) + 1
        yield words[0].decode(), answer[begin : at - 1]


def tree_of(commit: bytes) -> str:
    """The tree of a commit object. Raises Corrupt."""
    match = _TREE_LINE.match(commit)
    if match is None:
        raise Corrupt("not a commit")
    return match[1].decode()


def recorded_head(commit: bytes) -> str | None:
    """The agent's HEAD as a checkpoint's message recorded it."""
    match = _HEAD_TRAILER.search(commit.decode("utf-8", "replace").partition("\n\n")[2])
    return match[1] if match else None


def names(tree: bytes, id_bytes: int) -> Iterator[bytes]:
    """The names in a tree object, whose ids have so many bytes."""
    at = 0
    while at < len(tree):
        space, end = tree.index(b" ", at), tree.index(b"\0", at)
        yield tree[space + 1 : end]
        at = end + 1 + id_bytes
