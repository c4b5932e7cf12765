"""A process that opens a database as this version does, when told so; it may kill itself in the middle of a migration.

    python migrating.py WHERE [STATEMENT]    WHERE: a path, or PostgreSQL's connection string

It says `ready`, waits for a line, and opens the database. With STATEMENT it dies by SIGKILL before that statement of
the migration, counted from 1, if there is one; else it says `done`.
"""

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from moorage.store import sqlite_connection
from moorage.store.migrations import migrate, released


class Mortal:
    """Whoever says the n-th statement dies."""

    def __init__(self, last: int) -> None:
        self._left = last

    def say(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def on_sqlite(path: str, mortal: Mortal) -> None:
    class Watched(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            mortal.say()
            return super().execute(*arguments)

    db = sqlite3.connect(path, isolation_level=None, timeout=30, factory=Watched)
    migrate(db, released("sqlite"))
    db.close()
    sqlite_connection.connect(Path(path), busy_timeout_ms=30_000).close()


async def on_postgres(dsn: str, mortal: Mortal) -> None:
    from moorage.store import postgres_connection  # noqa: PLC0415  slow to import, and these processes are many

    db = await postgres_connection.connect(dsn)
    said = db.execute

    async def execute(*arguments: Any, **more: Any) -> Any:
        mortal.say()
        return await said(*arguments, **more)

    db.execute = execute  # type: ignore[method-assign]
    await postgres_connection.migrate(db, released("postgres"))
    await db.close()


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(where: str, last: int = 0) -> None:
    say("ready")
    sys.stdin.readline()
    mortal = Mortal(last)
    if "dbname=" in where:
        asyncio.run(on_postgres(where, mortal))
    else:
        on_sqlite(where, mortal)
    say("done")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
