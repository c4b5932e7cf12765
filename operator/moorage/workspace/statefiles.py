"""P2: the files in which an agent's program keeps its conversation, in the same checkpoint as the tree.

They become a commit of their own, a parent of the checkpoint's commit: both come and go by one update of one ref, so
that no tree is ever met with the conversation of another moment. Nothing that is delivered has it for an ancestor.

A file is kept in chunks, named by their content, so that one which only grows costs what is new. `index.json` says how
they go together:

    {"<path relative to HOME>": ["<chunk's object id>", …], …}
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from moorage.workspace.errors import Corrupt
from moorage.workspace.plumbing import is_loose, write_object
from moorage.workspace.snapshot import LeftOut

CHUNK = 256 * 1024
CAP = 64 << 20
MAX_FILES = 512
SETTLED_NS = 2_000_000_000
INDEX = "index.json"
TITLE = "Conversation of a Moorage checkpoint"
_TRAILER = re.compile(r"^Moorage-State: ([0-9a-f]{40,64})$", re.MULTILINE)
_BLOB = b"100644"


@dataclass(frozen=True, slots=True)
class Known:
    """A file as it was kept: what told it from others then, its chunks, and how many bytes they hold."""

    sign: tuple[int, ...]
    chunks: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Kept:
    """The tree's id, None where there is nothing; what is left out; and `files` of it that needn't be read again as
    long as they look the same.
    """

    tree: str | None = None
    left_out: tuple[LeftOut, ...] = ()
    files: Mapping[str, Known] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateFiles:
    """`paths`: what is kept of `home`, files or folders, relative to it; `derived`: what goes when they are put back.
    `cap_bytes` of all files together: the newest ones are kept. `settled_ns`: how long after a file's last change its
    time stamp tells the next one; a file system's clock may be so coarse.
    """

    home: Path = Path()
    paths: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    cap_bytes: int = CAP
    settled_ns: int = SETTLED_NS

    def keep(self, repo: Path, before: Mapping[str, Known]) -> Kept:
        """Write them as objects; no ref moves. `before`: the `files` of the last time. It takes as long as they are
        large, so it is nothing for an event loop.
        """
        index, left = dict[str, Known](), list[LeftOut]()
        room = self.cap_bytes
        for number, (path, found) in enumerate(self._newest()):
            if found.st_size > room or number >= MAX_FILES:
                why = f"over the cap of {self.cap_bytes} bytes or {MAX_FILES} files for an agent's own"
                left.append(LeftOut(os.fsencode(path), why, found.st_size))
                continue
            index[path] = _unchanged(repo, before.get(path), found) or self._kept(repo, path, found)
            room -= index[path].size
        again = {path: known for path, known in index.items() if known.sign}
        return Kept(_write_tree(repo, index) if index else None, tuple(left), again)

    def _kept(self, repo: Path, path: str, found: os.stat_result) -> Known:
        settled = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > self.settled_ns
        content = _content(self.home / path, found.st_size)
        chunks = tuple(write_object(repo, b"blob", chunk) for chunk in _chunks(content))
        return Known(_sign(found) if settled else (), chunks, len(content))

    def _newest(self) -> list[tuple[str, os.stat_result]]:
        """Regular files below the paths, the newest first. Links lead nowhere."""
        found = [each for path in self.paths for each in _files(self.home / path)]
        known = [(path.relative_to(self.home).as_posix(), told) for path, told in found]
        return sorted(known, key=lambda each: (-each[1].st_mtime_ns, each[0]))

    def put_back(self, index: Mapping[str, bytes], aside: Path) -> None:
        """Have `home` hold exactly these files below the paths. What stands there is moved to `aside` first."""
        for path in dict.fromkeys((*self.derived, *self.paths)):
            _move_aside(self.home, path, aside)
        for name, content in index.items():
            target = self.home / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(0o600)

    def covers(self, name: str) -> bool:
        """A path that lies in what is kept, and leads nowhere else."""
        parts = PurePosixPath(name).parts
        plain = bool(parts) and ".." not in parts and not name.startswith("/") and "\0" not in name
        return plain and any(parts[: len(own)] == own for own in (PurePosixPath(path).parts for path in self.paths))


def trailer(state: str | None) -> str:
    """The line in a checkpoint's message."""
    return f"Moorage-State: {state}\n" if state else ""


def recorded_state(commit: bytes) -> str | None:
    """The conversation's commit, as a checkpoint's message recorded it."""
    match = _TRAILER.search(commit.decode("utf-8", "replace").partition("\n\n")[2])
    return match[1] if match else None


def read_index(text: bytes) -> dict[str, list[str]]:
    """Which chunks make which file. Raises Corrupt."""
    try:
        told = json.loads(text)
        index = {str(path): [str(chunk) for chunk in chunks] for path, chunks in told.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise Corrupt("the index of a conversation's files can't be read") from None
    if not all(re.fullmatch(r"[0-9a-f]{40,64}", chunk) for chunks in index.values() for chunk in chunks):
        raise Corrupt("the index of a conversation's files names what is no object")
    return index


def _write_tree(repo: Path, index: Mapping[str, Known]) -> str:
    """Every object by its own id, and the index."""
    chunks = {chunk for known in index.values() for chunk in known.chunks}
    named = [(chunk.encode(), chunk) for chunk in sorted(chunks)]
    text = json.dumps({path: known.chunks for path, known in index.items()}, sort_keys=True).encode()
    named.append((INDEX.encode(), write_object(repo, b"blob", text)))  # "i" comes after every hexadecimal digit
    return write_object(repo, b"tree", b"".join(b"%b %b\0%b" % (_BLOB, n, bytes.fromhex(o)) for n, o in named))


def _sign(found: os.stat_result) -> tuple[int, ...]:
    """Differs once the file does, as long as that is no moment after the last change."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _unchanged(repo: Path, known: Known | None, found: os.stat_result) -> Known | None:
    """What is known of a file, if that is still so and its chunks are where we put them: git may have packed them."""
    same = known is not None and known.sign == _sign(found)
    return known if same and known and all(is_loose(repo, chunk) for chunk in known.chunks) else None


def _files(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode):
            for inner in sorted(path.iterdir()):
                yield from _files(inner)
        elif stat.S_ISREG(found.st_mode) and _spelt(path):
            yield path, found
    except OSError:
        return  # gone meanwhile, or not ours to read


def _spelt(path: Path) -> bool:
    """Its name is text, as JSON has it."""
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def _content(path: Path, most: int) -> bytes:
    """Of a file that is written line by line, its whole lines: another one would be appended to half a line."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(most)
            return content[: content.rfind(b"\n") + 1] if path.suffix == ".jsonl" else content
    return b""


def _chunks(content: bytes) -> list[bytes]:
    return [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]


def _move_aside(home: Path, path: str, aside: Path) -> None:
    """Nothing of an earlier attempt is destroyed; what its predecessor has put there already is kept beside it."""
    found = home / path
    if not found.is_symlink() and not found.exists():
        return
    target = aside / path
    number = 0
    while target.is_symlink() or target.exists():
        number += 1
        target = aside / str(number) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(found, target)
