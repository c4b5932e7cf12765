"""A full disk has one name, whoever met it first."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from moorage.workspace.errors import DiskFull

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def disk_named() -> Iterator[None]:
    """Raises DiskFull for an OSError that says so; git's own words for it are read by the workspace."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(str(error)) from error


def bytes_below(*roots: Path) -> int:
    """Bytes of all files below the roots, as the file system allots them; links aren't followed, and what goes away
    meanwhile isn't counted.
    """
    return sum(_allotted(Path(folder, name)) for root in roots for folder, _, names in os.walk(root) for name in names)


def _allotted(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
