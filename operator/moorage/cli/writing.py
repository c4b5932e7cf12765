"""Files that a command writes where its user said: whole or not at all where that can be, straight where it can't."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from moorage.cli.exits import CliError

STDOUT = Path("-")
MAX_LINKS = 40  # as the kernel follows
DESCRIPTOR = re.compile(r"/proc/(\d+)/(?:task/\d+/)?fd/(\d+)")


def is_file(path: Path) -> bool:
    """Whether a regular file is, or would be, at the end of that path. Raises CliError."""
    if path == STDOUT:
        return False
    with _told(path):
        place = _place(path)
        return isinstance(place, Path) and _replaceable(place)


@contextlib.contextmanager
def writing(path: Path, stdout: IO[bytes]) -> Iterator[IO[bytes]]:
    """A file to be written; `-` is `stdout`. Raises CliError, and BrokenPipeError where nobody reads any more.

    A regular file is there whole or not at all: written beside its place, then renamed. Whatever else is there
    already, as a device or a FIFO, is written to, and stays what it is. A symlink stays, too, and means its target.
    """
    if path == STDOUT:
        yield stdout
        stdout.flush()
        return
    with _told(path):
        place = _place(path)
        with _renamed(place) if isinstance(place, Path) and _replaceable(place) else _straight(place) as file:
            yield file


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(f"{path} can't be written: {error.strerror}", "name a folder that exists and is yours") from None


def _place(path: Path) -> Path | int:
    """Where a path's symlinks lead: a place in the file system, or a descriptor of this process (`/dev/stdout`).

    The kernel's links to descriptors aren't followed as others are: they needn't lead to anything that has a path.
    """
    for _ in range(MAX_LINKS):
        path = path.parent.resolve() / path.name
        known = DESCRIPTOR.fullmatch(str(path))
        if known and int(known[1]) == os.getpid():
            return int(known[2])
        if known or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _replaceable(place: Path) -> bool:
    return not place.exists() or (place.is_file() and not DESCRIPTOR.fullmatch(str(place)))


def _straight(place: Path | int) -> IO[bytes]:
    descriptor = os.dup(place) if isinstance(place, int) else os.open(place, os.O_WRONLY | os.O_CLOEXEC)
    return os.fdopen(descriptor, "wb")


@contextlib.contextmanager
def _renamed(place: Path) -> Iterator[IO[bytes]]:
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}-", delete=False) as file:
        partial = Path(file.name)
        try:
            yield file
            file.close()
            partial.replace(place)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
