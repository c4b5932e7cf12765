"""File locks between harnesses; a lock file may be deleted by whoever holds it.

The kernel gives a lock back when its holder dies, so a file that a killed harness left behind locks nothing.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on `path` for the length of the block, waiting for it as long as need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if path.exists() and path.stat().st_ino == os.fstat(handle.fileno()).st_ino:
                yield
                return


def held(path: Path) -> bool:
    """Whether somebody holds the lock on `path` at this moment."""
    try:
        with path.open("r+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
