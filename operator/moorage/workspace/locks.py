"""A lock on a file that outlives nobody: git children inherit it, so that it is free only once they are gone too."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from moorage.workspace.errors import LockHeld

_PAUSE_SECONDS = 0.05


async def lock(path: Path, wait_seconds: float, held: str) -> int:
    """The descriptor that holds the lock; it is free once closed in all who inherited it. Raises LockHeld(`held`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(1 + int(wait_seconds / _PAUSE_SECONDS)):
            if _try(fd):
                return fd
            await asyncio.sleep(_PAUSE_SECONDS)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise LockHeld(held)


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
