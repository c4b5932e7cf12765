"""A lock on a file that outlives nobody: git children inherit it, so that it is free only once they are gone too.

Git's own lock files do outlive it; who holds ours may say which of them are stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from moorage.workspace.errors import LockHeld

_PAUSE_SECONDS = 0.05
_LONG_HELD_SECONDS = 30.0


async def lock(path: Path, wait_seconds: float, held: str, *, shared: bool = False) -> int:
    """The descriptor that holds the lock; it is free once closed in all who inherited it. `shared`: with others who
    have it so. Raises LockHeld(`held`)."""
    fd = _opened(path)
    try:
        for _ in range(1 + int(wait_seconds / _PAUSE_SECONDS)):
            if _try(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                return fd
            await asyncio.sleep(_PAUSE_SECONDS)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise LockHeld(held)


@contextlib.contextmanager
def nobody(path: Path) -> Iterator[bool]:
    """Whether nobody has the lock, in any way; nobody gets it before the end then."""
    fd = _opened(path)
    try:
        yield _try(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def remove_stale_locks(path: Path, *, alone: bool) -> None:
    """Lock files of git processes that died: all of them where we are `alone`, else those that are older than any
    push holds one. Names don't tell them apart: whoever removes a run's ref holds the lock of all packed refs."""
    for found in path.rglob("*.lock"):
        with contextlib.suppress(FileNotFoundError):
            if alone or time.time() - found.stat().st_mtime > _LONG_HELD_SECONDS:
                found.unlink()


def _opened(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
