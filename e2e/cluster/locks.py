"""File locks between harnesses; a lock file may be deleted by whoever holds it.

The kernel gives a lock back when its last holder dies, so a file that a killed harness left behind locks nothing. What
the harness runs to its end (`shell.run_logged`) holds the lock too: it may outlive a killed harness, and the next one
must not touch what it still works on.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on `path` for the length of the block, waiting for it as long as need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as handle:
            os.set_inheritable(handle.fileno(), True)
            _wait(handle, path)
            if path.exists() and path.stat().st_ino == os.fstat(handle.fileno()).st_ino:
                yield
                return


def _wait(handle: IO[str], path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another harness, or what a killed one left running ({path} is locked)", file=sys.stderr)
        fcntl.flock(handle, fcntl.LOCK_EX)


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
