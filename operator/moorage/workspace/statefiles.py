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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from moorage.workspace.errors import Corrupt
from moorage.workspace.plumbing import write_object
from moorage.workspace.snapshot import LeftOut

CHUNK = 256 * 1024
CAP = 64 << 20
MAX_FILES = 512
INDEX = "index.json"
TITLE = "Conversation of a Moorage checkpoint"
_TRAILER = re.compile(r"^Moorage-State: ([0-9a-f]{40,64})$", re.MULTILINE)
_BLOB = b"100644"


@dataclass(frozen=True, slots=True)
class StateFiles:
    """`paths`: what is kept of `home`, files or folders, relative to it; `derived`: what goes when they are put back.
    `cap_bytes` of all files together: the newest ones are kept.
    """

    home: Path = Path()
    paths: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    cap_bytes: int = CAP

    def keep(self, repo: Path) -> tuple[str | None, tuple[LeftOut, ...]]:
        """Write them as objects; the tree's id, None where there is nothing, and what is left out. No ref moves."""
        index, chunks, left = dict[str, list[str]](), set[str](), list[LeftOut]()
        room = self.cap_bytes
        for number, (path, found) in enumerate(self._newest()):
            if found.st_size > room or number >= MAX_FILES:
                why = f"over the cap of {self.cap_bytes} bytes or {MAX_FILES} files for an agent's own"
                left.append(LeftOut(os.fsencode(path), why, found.st_size))
                continue
            content = _content(self.home / path, found.st_size)
            index[path] = [write_object(repo, b"blob", chunk) for chunk in _chunks(content)]
            chunks.update(index[path])
            room -= len(content)
        return (_write_tree(repo, index, chunks) if index else None), tuple(left)

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


def _write_tree(repo: Path, index: Mapping[str, list[str]], chunks: Iterable[str]) -> str:
    """Every object by its own id, and the index."""
    named = [(chunk.encode(), chunk) for chunk in sorted(chunks)]
    text = json.dumps(index, sort_keys=True).encode()
    named.append((INDEX.encode(), write_object(repo, b"blob", text)))  # "i" comes after every hexadecimal digit
    return write_object(repo, b"tree", b"".join(b"%b %b\0%b" % (_BLOB, n, bytes.fromhex(o)) for n, o in named))


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
