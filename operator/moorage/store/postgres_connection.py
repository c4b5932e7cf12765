"""One PostgreSQL connection that is durable or refused, opened again after a loss, with its errors turned into ours.

A connection that failed in any way is closed: what a half-done transaction left is then the server's to undo. Nothing
that might hold a password (a connection string, the driver's words on it) gets into an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, errors

from moorage.store.errors import NotDurable, StoreBusy, StoreError, StoreUnavailable
from moorage.store.migrations import SQL_BOOK, Migration, missing

T = TypeVar("T")
Db = AsyncConnection[Any]

CONNECT_S = 5
"""A server that doesn't answer for this long is unavailable: callers ask again."""
LOCK_MS = 5_000
"""How long a statement waits for another gateway's transaction: those take milliseconds."""
STATEMENT_MS = 30_000
"""Reading a chunk of a journal takes milliseconds; what takes this long hangs."""
_MIGRATION_LOCK = 0x6D6F6F72_6D6967  # "moormig"

# Every statement finds its rows by key. A planner that has seen a table empty would read all of it instead, until
# somebody analyses it; and what it then thinks of the price would start the compiler.
_BY_KEY = ("enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off", "jit = off")
_SESSION = (
    f"lock_timeout = {LOCK_MS}",
    f"statement_timeout = {STATEMENT_MS}",
    f"idle_in_transaction_session_timeout = {LOCK_MS}",  # a gateway that is gone holds no lock for longer
    "default_transaction_isolation = 'read committed'",  # each statement sees what the locks before it waited for
    *_BY_KEY,
)
_FACTS = """
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('server_encoding'), pg_is_in_recovery()
"""
_TRY_AGAIN = (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure, errors.QueryCanceled)


class Link:
    """One connection to the database of `dsn` (a libpq connection string), opened when it is first wanted.

    `begin` is done first on each connection; where it fails, the connection is none.
    """

    def __init__(self, dsn: str, begin: Callable[[Db], Awaitable[None]] | None = None) -> None:
        self._dsn, self._begin = dsn, begin
        self._db: Db | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def read(self, work: Callable[[Db], Awaitable[T]]) -> T:
        """Return what `work` reads; a connection that was found lost is opened again, once, since reading does no harm.

        Raise StoreBusy, StoreUnavailable, and what `work` raises.
        """
        for last in (False, True):
            db = await self.get()
            try:
                async with translated():
                    return await work(db)
            except StoreError:
                if not db.closed:
                    raise
                await self.drop(db)
                if last:
                    raise
        raise AssertionError("unreachable")

    async def get(self) -> Db:
        """Return the open connection. Raise StoreUnavailable, NotDurable."""
        async with self._opening:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            if self._db is None or self._db.closed:
                self._db = await self._connect()
            return self._db

    async def _connect(self) -> Db:
        db, begun = await connect(self._dsn), False
        try:
            if self._begin is not None:
                async with translated():
                    await self._begin(db)
            begun = True
        finally:
            if not begun:
                await db.close()
        return db

    async def drop(self, db: Db) -> None:
        """Let go of a connection that failed, or whose transaction was left half done."""
        if self._db is db:
            self._db = None
        await db.close()

    async def close(self) -> None:
        """Let go of it for good."""
        self._closed = True
        if self._db is not None:
            await self.drop(self._db)


async def connect(dsn: str) -> Db:
    """Open a connection on which a commit survives a power cut. Raise StoreUnavailable, NotDurable."""
    try:
        db = await AsyncConnection.connect(
            dsn, autocommit=True, connect_timeout=CONNECT_S, application_name="moorage", tcp_user_timeout=10_000
        )
    except psycopg.OperationalError as e:
        raise StoreUnavailable(f"PostgreSQL can't be reached: {_first_line(e)}") from None
    except psycopg.Error:
        raise StoreUnavailable(
            "the connection string of the store can't be read: give postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    try:
        async with translated():
            await check_durable(db)
            await db.execute("; ".join(f"SET {setting}" for setting in _SESSION))
    except BaseException:
        await db.close()
        raise
    return db


async def check_durable(db: Db) -> None:
    """J7: raise NotDurable unless a commit survives a power cut, and StoreUnavailable where none can be made."""
    found = await (await db.execute(_FACTS)).fetchone()
    fsync, full_pages, synchronous, encoding, standby = found or ("?",) * 5
    if fsync != "on" or full_pages != "on" or synchronous == "off":
        raise NotDurable(
            f"the database has fsync={fsync}, full_page_writes={full_pages} and synchronous_commit={synchronous}, "
            "where on, on and anything but off are needed: turn them on, for this role and database too"
        )
    if encoding != "UTF8":
        raise NotDurable(f"the database is encoded in {encoding}: make one with ENCODING 'UTF8'")
    if standby:
        raise StoreUnavailable(
            "this PostgreSQL is a standby: give target_session_attrs=read-write and the primary's host"
        )
    # as it is now, also if somebody changes the server's default while we are connected
    await db.execute(f"SET synchronous_commit = '{synchronous}'")


async def migrate(db: Db, migrations: list[Migration]) -> int:
    """Bring the database up to date; return how many steps were missing. Several gateways may do so at once.

    Raise SchemaMismatch where the database is of a newer or another version.
    """
    async with translated(), db.transaction():
        await db.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")  # another may be at it
        await db.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        await db.execute(SQL_BOOK)
        applied = dict(await (await db.execute("SELECT number, sha256 FROM schema_migrations")).fetchall())
        wanted = missing(applied, migrations)
        for step in wanted:
            await db.execute(step.sql)
            await db.execute(
                "INSERT INTO schema_migrations (number, name, sha256) VALUES (%s, %s, %s)",
                (step.number, step.name, step.sha256),
            )
        return len(wanted)


@asynccontextmanager
async def translated() -> AsyncIterator[None]:
    """Raise the store's errors for PostgreSQL's."""
    try:
        yield
    except psycopg.Error as e:
        raise _translate(e) from e


def _translate(error: psycopg.Error) -> StoreError:
    if isinstance(error, _TRY_AGAIN):
        return StoreBusy(f"another transaction holds the database ({type(error).__name__}): try again")
    name = type(error).__name__
    return StoreUnavailable(
        f"PostgreSQL can't be used ({name}: {_first_line(error)}): what was asked may be asked again"
    )


def _first_line(error: psycopg.Error) -> str:
    return (str(error).splitlines() or [""])[0]
