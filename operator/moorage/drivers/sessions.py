"""Files in the agent's HOME that a driver writes for its program, and the name of the conversation that is kept there.

HOME is the agent's to change, so what is read from it is checked and what is written replaces whatever is in the way.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moorage.drivers.port import Outcome, Task

NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
FOLDER = ".moorage"
BROKEN = (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError)  # what an agent can make of its HOME


def prepared(files: Mapping[Path, str]) -> Outcome | None:
    """Write what a program is to find in its HOME; an Outcome that says why where that can't be."""
    try:
        for path, text in files.items():
            put(path, text)
    except BROKEN as error:
        why = f"{error.filename}: {error.strerror}; an earlier attempt left HOME like that"
        return Outcome("failed", "CommandNotStarted", why)
    return None


def put(path: Path, text: str) -> None:
    """Write a file of ours. Raises OSError where HOME can't be written."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as fresh:  # a name that nothing stands at
        try:
            fresh.write(text)
            fresh.flush()
            Path(fresh.name).replace(path)
        finally:
            Path(fresh.name).unlink(missing_ok=True)


class Conversation:
    """Which conversation a driver's program had in an earlier attempt on this volume."""

    def __init__(self, home: Path, driver: str) -> None:
        self._file = home / self.place(driver)

    @staticmethod
    def place(driver: str) -> str:
        """Where its name is kept, relative to HOME."""
        return f"{FOLDER}/{driver}-session"

    def remember(self, name: str) -> None:
        """Keep its name; one that is none is not kept, and neither is one that the volume has no room for."""
        if NAME.fullmatch(name):
            with contextlib.suppress(OSError):
                put(self._file, name)

    def known(self) -> str | None:
        """Its name; None where there is none, or none that may stand on a command line."""
        try:
            name = _head(self._file).decode("ascii", "replace")
        except OSError:
            return None
        return name if NAME.fullmatch(name) else None


@dataclass(frozen=True)
class Transcript:
    """The files in which a program keeps its conversations, a JSON object a line. `mark` stands in a line that holds a
    tool's result, and `call` finds the id of its call there.
    """

    home: Path
    pattern: str
    mark: bytes
    call: re.Pattern[bytes]

    def holds(self, conversation: str) -> bool:
        """There is a file of that conversation, whose name ends with its own."""
        return any(path.stem.endswith(conversation) for path in self.home.glob(self.pattern))

    def results(self) -> frozenset[str]:
        """The calls whose results are in them. A folder or pipe in their place has none."""
        lines = [line for path in self.home.glob(self.pattern) for line in _lines(path) if self.mark in line]
        return frozenset(found.decode("utf-8", "replace") for line in lines for found in self.call.findall(line))


def _lines(path: Path) -> list[bytes]:
    """Whole lines alone."""
    try:
        return path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    except OSError:
        return []


def _head(path: Path, size: int = 128) -> bytes:
    """The first bytes of what may be anything: a pipe that nobody writes to has none, and is not waited for."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(opened, size)
    finally:
        os.close(opened)


def opening(task: Task, *, resumed: bool, together: bool = True) -> str:
    """What the program is told: what its conversation goes on with, where it has just stopped (N1); else the goal, and
    in a recovered attempt what is known of the earlier ones (R4). `together`: a conversation that goes on stands at the
    worktree's own safe point (P2); else it may be ahead of that.
    """
    if task.go_on_with is not None:
        return task.go_on_with if resumed else f"{task.goal}\n\n{task.go_on_with}"
    if not task.handoff and not resumed:
        return task.goal
    handoff = f"\n\n<handoff>\n{task.handoff}\n</handoff>" if task.handoff else ""
    if resumed:
        return f"{AGAIN if together else APART}{handoff}\n\nThe goal is still:\n{task.goal}"
    return f"{task.goal}{handoff}\nLook at the worktree first, then go on from there."


AGAIN = (
    "Another attempt at the same work begins. The worktree and this conversation are both as they were at the last safe"
    " point: what was decided after it is not known here, and not done. Go on from there."
)
APART = (
    "Another attempt at the same work begins. The worktree stands at its last safe point, which may be older than what"
    " you remember. Look at the files before you go on, and do again what isn't there."
)
