"""A lock on a file that outlives nobody: git children inherit it, so that it is free only once they are gone too."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from pathlib import Path

from moorage.workspace.errors import LockHeld


async def lock(path: Path, wait_seconds: float, held: str) -> int:
    """The descriptor that holds the lock; it is free once closed in all who inherited it. Raises LockHeld(`held`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_seconds
    try:
        while not _try(fd, held if time.monotonic() > deadline else None):
            await asyncio.sleep(0.05)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _try(fd: int, give_up: str | None) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if give_up is not None:
            raise LockHeld(give_up) from None
        return False
    return True
