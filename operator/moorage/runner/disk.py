"""A full disk has one name, whoever met it first."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

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
