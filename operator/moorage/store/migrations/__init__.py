"""Forward-only migrations: numbered SQL files, applied once each, in order, each in one transaction.

A file that was released is never edited: its SHA-256 is kept in the database, and a difference refuses to start.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from moorage.store.errors import SchemaMismatch

_NAME = re.compile(r"^(\d{4})_\w+\.sql$")
SQL_BOOK = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number INTEGER PRIMARY KEY,
    name   TEXT NOT NULL,
    sha256 TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """What the database remembers of it."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self) -> Iterator[str]:
        """Yield whole statements; a trigger's body is part of its statement."""
        pending = ""
        for line in self.sql.splitlines(keepends=True):
            pending += line
            if sqlite3.complete_statement(pending):
                yield pending
                pending = ""
        if pending.strip():
            raise SchemaMismatch(f"migration {self.name} ends in the middle of a statement")


def released(dialect: str) -> list[Migration]:
    """Return the migrations of this version, in order, numbered from 1 without gaps."""
    folder = resources.files(__name__).joinpath(dialect)
    found = sorted(entry.name for entry in folder.iterdir() if _NAME.match(entry.name))
    migrations = [Migration(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in found]
    if [m.number for m in migrations] != list(range(1, len(migrations) + 1)):
        raise SchemaMismatch(f"migrations of {dialect} must be numbered from 0001 without gaps: {found}")
    return migrations


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> int:
    """Bring an autocommit connection's database up to date; return how many steps were missing.

    Several processes may do so at once. Raise SchemaMismatch where the database is of a newer or another version.
    """
    if not missing(_applied(connection), migrations):
        return 0
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(SQL_BOOK)
        wanted = missing(_applied(connection), migrations)
        for migration in wanted:
            _apply(connection, migration)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return len(wanted)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    for statement in migration.statements():
        connection.execute(statement)
    connection.execute(
        "INSERT INTO schema_migrations (number, name, sha256) VALUES (?, ?, ?)",
        (migration.number, migration.name, migration.sha256),
    )


def missing(applied: Mapping[int, str], migrations: Sequence[Migration]) -> list[Migration]:
    """The steps that aren't in the database, after checking those that are: `applied` has each number's SHA-256."""
    for migration in migrations:
        if migration.number in applied and applied[migration.number] != migration.sha256:
            raise SchemaMismatch(f"the database was made with another {migration.name}: use the version that made it")
    if newer := applied.keys() - {m.number for m in migrations}:
        raise SchemaMismatch(
            f"the database is at migration {max(newer)}, this version knows {len(migrations)}: use a newer moorage"
        )
    return [m for m in migrations if m.number not in applied]


def _applied(connection: sqlite3.Connection) -> dict[int, str]:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'")
    if known.fetchone() is None:
        return {}
    return dict(connection.execute("SELECT number, sha256 FROM schema_migrations").fetchall())
