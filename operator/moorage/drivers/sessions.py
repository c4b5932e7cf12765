"""Files in the agent's HOME that a driver writes for its program, and the name of the conversation that is kept there.

HOME is the agent's to change, so what is read from it is checked and what is written replaces whatever is in the way.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from moorage.drivers.port import Outcome, Task

NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
FOLDER = ".moorage"
LAST = 256  # bytes before what is new, by which a file is known again
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
    """Write a file of ours. A folder in its place is moved aside, since to remove a large one takes long. Raises
    OSError where HOME can't be written.
    """
    if path.is_dir() and not path.is_symlink():
        path.rename(Path(tempfile.mkdtemp(prefix=f"{path.name}-was-", dir=path.parent)) / path.name)
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

    def reader(self) -> TranscriptReader:
        """Reads them as they grow."""
        return TranscriptReader(self)


@dataclass(frozen=True)
class _Read:
    """Of a file: its inode, up to where it was read, the last bytes before that, and the calls that were found."""

    inode: int = 0
    end: int = 0
    last: bytes = b""
    calls: frozenset[str] = frozenset()


class TranscriptReader:
    """Reads what is new in them: they only grow. A file that was written anew is read anew."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._read: dict[Path, _Read] = {}
        self._reading = threading.Lock()  # who gave up on a look may look again while that goes on

    def results(self) -> frozenset[str]:
        """The calls whose results are in them. A folder or pipe in their place has none."""
        with self._reading:
            found = self._transcript.home.glob(self._transcript.pattern)
            self._read = {path: self._look(path, self._read.get(path, _Read())) for path in found}
            return frozenset[str]().union(*(read.calls for read in self._read.values()))

    def _look(self, path: Path, before: _Read) -> _Read:
        """Whole lines alone."""
        try:
            if not path.is_file():
                return _Read()
            with path.open("rb") as file:
                return self._on(file, before)
        except OSError:
            return _Read()

    def _on(self, file: BinaryIO, before: _Read) -> _Read:
        inode = os.fstat(file.fileno()).st_ino
        file.seek(before.end - len(before.last))
        if inode != before.inode or file.read(len(before.last)) != before.last:
            before = _Read(inode)
            file.seek(0)
        whole, newline, _ = file.read().rpartition(b"\n")
        if not newline:
            return before
        lines = [line for line in whole.split(b"\n") if self._transcript.mark in line]
        told = (call.decode("utf-8", "replace") for line in lines for call in self._transcript.call.findall(line))
        last = (before.last + whole + newline)[-LAST:]
        return _Read(inode, before.end + len(whole) + 1, last, before.calls.union(told))


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
    if resumed and task.continues:
        return f"{task.goal}{handoff}"
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
