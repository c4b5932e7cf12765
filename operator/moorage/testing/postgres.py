"""A PostgreSQL server of one's own for tests: a fresh cluster in a folder that goes with it, reached by a unix socket.

It keeps every promise that a real one keeps (fsync is on); only it is small, trusts whoever can open its socket, and
dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psycopg

START_S = 30
"""A server that was killed recovers first: its journal is short, so that takes a second or two."""


class PostgresMissingError(RuntimeError):
    """The server's programs aren't on this machine."""


def programs() -> Path:
    """Return the folder of `postgres` and `initdb`, the newest version's. Raise PostgresMissingError."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    on_path = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    for folder in (*reversed(debian), *on_path):
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    raise PostgresMissingError("PostgreSQL's server isn't installed: install what Debian calls postgresql")


class PostgresServer:
    """A server and its cluster. `settings` are server settings, such as {"fsync": "off"}."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._programs = programs()
        small = {"shared_buffers": "32MB", "listen_addresses": "", "port": "5432", "max_connections": "60"}
        self._settings = small | (settings or {})
        self._user = _unprivileged()
        self._serial = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="moorage-postgres-"))

    def __enter__(self) -> Self:
        try:
            self._initdb()
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def dsn(self, database: str = "postgres") -> str:
        """Return the connection string of a database."""
        return f"host={self.folder} port={self._settings['port']} user=moorage dbname={database}"

    def create_database(self, **options: str) -> str:
        """Make an empty database and return its connection string; `options` are those of CREATE DATABASE."""
        name = self._fresh("database")
        self._execute(f"CREATE DATABASE {name} {' '.join(f'{key} {value}' for key, value in options.items())}")
        return self.dsn(name)

    def admit(self, name: str, password: str) -> None:
        """Make a role and a database of its own, both of that name, for who comes over the network with a password."""
        self._execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        self._execute(f"CREATE DATABASE {name} OWNER {name}")
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host {name} {name} all scram-sha-256\n")
        self._execute("SELECT pg_reload_conf()")

    @contextlib.contextmanager
    def schema(self) -> Iterator[str]:
        """Make an empty schema for a while, far faster than a database; yields its connection string."""
        name = self._fresh("schema")
        self._execute(f"CREATE SCHEMA {name}")
        yield f"{self.dsn()} options='-c search_path={name}'"
        self._execute(f"DROP SCHEMA {name} CASCADE")

    def _fresh(self, kind: str) -> str:
        self._serial += 1
        return f"{kind}_{self._serial}"

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as db:
            db.execute(statement.encode())

    @property
    def pid(self) -> int:
        """The server's main process."""
        if self._process is None:
            raise RuntimeError("the server isn't running")
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        until = time.monotonic() + START_S
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        while True:
            self._process = self._spawn("postgres", "-D", str(self.folder / "data"), "-k", str(self.folder), *settings)
            while self._process.poll() is None:
                with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.dsn(), connect_timeout=1):
                    return
                self._refuse_later_than(until)
                time.sleep(0.02)
            self._refuse_later_than(until)  # it ended: processes of the one that was killed may still be going
            time.sleep(0.1)

    def kill(self) -> None:
        """End it as a power cut would, but for the disk: SIGKILL, and no word to anybody."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def remove(self) -> None:
        """Stop it and forget all of it."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # at once: what it holds is thrown away
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initdb(self) -> None:
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        made = self._spawn("initdb", "-D", str(self.folder / "data"), "-U", "moorage", "-A", "trust", "-E", "UTF8",
                           "--locale", "C", "--no-sync", "--no-instructions")  # fmt: skip
        if made.wait():
            raise PostgresMissingError(f"initdb failed: {self._log().read_text(errors='replace')[-2000:]}")

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        argv = ["setpriv", "--pdeathsig", "QUIT"]
        if self._user is not None:
            argv += [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}", "--clear-groups"]
        with self._log().open("ab") as log:
            return subprocess.Popen(
                [*argv, str(self._programs / program), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            )  # fmt: skip

    def _refuse_later_than(self, until: float) -> None:
        if time.monotonic() > until:
            raise TimeoutError(f"PostgreSQL doesn't start: {self._log().read_text(errors='replace')[-2000:]}")

    def _log(self) -> Path:
        return self.folder / "log"


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run it as: PostgreSQL refuses root, and asks for a user that has a name."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresMissingError("neither of the users postgres and nobody is there to run PostgreSQL as")
