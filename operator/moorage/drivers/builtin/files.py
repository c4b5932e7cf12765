"""Files of the worktree as tools touch them: inside the tree only, text only, replaced in one step."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from moorage.workspace.errors import PathRefused
from moorage.workspace.paths import resolve

MAX_READ = 4 * 1024 * 1024  # bytes of a file that a tool looks at
NEW_MODE = 0o644


@dataclass(frozen=True)
class Place:
    """A worktree, and a folder on the same volume where files are made before they take their place."""

    tree: Path
    scratch: Path

    async def read(self, path: str, offset: int, limit: int) -> str:
        """Numbered lines, or the entries of a folder."""
        return await asyncio.to_thread(self._read, path, offset, limit)

    async def text(self, path: str) -> str:
        """A file as it is. Raises PathRefused where it is no text, too large or not there."""
        return await asyncio.to_thread(lambda: _text(self._resolve(path, write=False), path))

    async def write(self, path: str, content: str) -> str:
        """Make or replace a file."""
        return await asyncio.to_thread(self._write, path, content)

    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace the one occurrence of `old`."""
        return await asyncio.to_thread(self._edit, path, old, new)

    def _read(self, path: str, offset: int, limit: int) -> str:
        real = self._resolve(path, write=False)
        if real.is_dir():
            names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in real.iterdir())
            return "\n".join(names[offset - 1 : offset - 1 + limit]) or "(an empty folder)"
        lines = _text(real, path).split("\n")
        if lines[-1] == "":
            lines.pop()
        shown = lines[offset - 1 : offset - 1 + limit]
        if not shown:
            return f"(nothing there: the file has {len(lines)} lines)"
        body = "\n".join(f"{number}\t{line}" for number, line in enumerate(shown, offset))
        left = len(lines) - (offset - 1) - len(shown)
        return f"{body}\n({left} more lines)" if left > 0 else body

    def _write(self, path: str, content: str) -> str:
        real = self._resolve(path, write=True)
        if real.is_dir():
            raise PathRefused(f"{path!r} is a folder")
        made = not real.exists()
        real.parent.mkdir(parents=True, exist_ok=True)
        self._replace(real, content)
        return f"{'made' if made else 'replaced'} {path}, {len(content.encode())} bytes"

    def _edit(self, path: str, old: str, new: str) -> str:
        real = self._resolve(path, write=True)
        text = _text(real, path)
        count = text.count(old)
        if count == 0:
            raise PathRefused(f"{path}: the text to replace is not in the file; read it again and copy it exactly")
        if count > 1:
            raise PathRefused(f"{path}: the text to replace is there {count} times; give more of what is around it")
        at = text.index(old)
        self._replace(real, text[:at] + new + text[at + len(old) :])
        return f"edited {path} at line {text.count(chr(10), 0, at) + 1}"

    def _resolve(self, path: str, *, write: bool) -> Path:
        """Models like absolute paths: one that lies in the tree is taken for what it means."""
        given = Path(path)
        if given.is_absolute() and given.is_relative_to(self.tree):
            given = given.relative_to(self.tree)
        return resolve(self.tree, given, write=write)

    def _replace(self, real: Path, content: str) -> None:
        """Whoever looks sees the old file or the new one, never half of it."""
        mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else NEW_MODE
        self.scratch.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.scratch)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content.encode())
            Path(name).chmod(mode)
            Path(name).replace(real)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _text(real: Path, path: str) -> str:
    """A file as text. Raises PathRefused where it is none."""
    if not real.exists():
        raise PathRefused(f"{path!r} is not there")
    if not real.is_file():
        raise PathRefused(f"{path!r} is no regular file")
    if real.stat().st_size > MAX_READ:
        raise PathRefused(f"{path!r} has more than {MAX_READ} bytes; use bash to look at parts of it")
    try:
        return real.read_bytes().decode()
    except UnicodeDecodeError:
        raise PathRefused(f"{path!r} is no UTF-8 text; use bash to look at it") from None
