"""One SQLite connection that is durable or refuses to be used, with SQLite's errors turned into the store's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moorage.store.disk import sync_folder
from moorage.store.errors import NotDurable, StoreBusy, StoreError, StoreFull, StoreUnavailable
from moorage.store.migrations import migrate, released

BUSY_TIMEOUT_MS = 2000
"""How long a call waits for another process's transaction."""
LOOP_WAIT_MS = 5
"""How long of that the event loop itself may stand still: other processes' commits mostly take less."""

_CHECKPOINT_PAGES = 1000
"""4 MiB of log, after which it is written over from its beginning: a sync takes half as long where no file grows. The
append that comes to its end waits for two more syncs, one in some two hundred."""
_FULL, _EXTRA = 2, 3
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def connect(path: Path, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> sqlite3.Connection:
    """Open or create the database at `path`, in WAL mode with `synchronous=FULL`, at this version's schema.

    Raise NotDurable, StoreBusy, StoreUnavailable or SchemaMismatch.
    """
    with translated(str(path)):
        connection = sqlite3.connect(path, timeout=busy_timeout_ms / 1000, isolation_level=None)
        try:
            _configure(connection, busy_timeout_ms)
            check_durable(connection)
            migrate(connection, released("sqlite"))
        except BaseException:
            connection.close()
            raise
    sync_folder(path.parent)
    return connection


def check_durable(connection: sqlite3.Connection) -> None:
    """J7: raise NotDurable unless a commit on this connection survives a power cut."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    if mode != "wal" or synchronous not in {_FULL, _EXTRA}:
        raise NotDurable(
            f"the database has journal_mode={mode} and synchronous={synchronous}, where wal and 2 (FULL) are needed: "
            "give the path of a file on a local disk"
        )


def begin(connection: sqlite3.Connection) -> None:
    """Take the write lock; raise what SQLite says where another process has it."""
    connection.execute("BEGIN IMMEDIATE")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what has begun at the end; roll back on any error."""
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo what is done inside when it raises, and nothing else of the transaction."""
    connection.execute("SAVEPOINT work")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # else SQLite itself has rolled everything back
            connection.execute("ROLLBACK TO work")
            connection.execute("RELEASE work")
        raise
    connection.execute("RELEASE work")


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Raise the store's errors for SQLite's."""
    try:
        yield
    except sqlite3.Error as e:
        raise _translate(e, path) from e


def _translate(error: sqlite3.Error, path: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _BUSY:
        return StoreBusy(f"{path} is held by another process: nothing was written, try again")
    if code is not None and code & 0xFF == sqlite3.SQLITE_FULL:
        return StoreFull(path)
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return StoreUnavailable(f"{path} can't be used ({name}: {error}): check the disk's space, rights and health")


def _configure(connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(busy_timeout_ms)}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone stops at the drive's cache
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA recursive_triggers = ON")
