"""PostgreSQL's server program, installed where it is missing: tests and the bench start their own servers with it."""

import contextlib
import secrets
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.console import Console
from e2e.cluster.debian import POSTGRES_PACKAGES, ensure
from moorage.testing.postgres import PostgresMissingError, PostgresServer, programs

_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.conf")
_ACCOUNT = "journals"


def ensure_postgres(console: Console, cache: Path) -> None:
    """Have the program on this machine, and no server of Debian's own running.

    Raises:
        HarnessError: as `ensure`.
    """
    with contextlib.suppress(PostgresMissingError):
        programs()
        return
    if shutil.which("apt-get") and not _NO_CLUSTER.exists():
        _NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
        _NO_CLUSTER.write_text("create_main_cluster = false\n")
    ensure(POSTGRES_PACKAGES, console, cache)


@dataclass(frozen=True)
class Database:
    """A database of `server` for an installation: `dsn` leads there from elsewhere, `inside` from this machine."""

    server: PostgresServer
    password: str
    dsn: str
    inside: str


@contextlib.contextmanager
def database(address: str) -> Iterator[Database]:
    """A server that others reach at an address of this machine, with a password, and an empty database of theirs."""
    port, password = _free_port(address), secrets.token_hex(16)
    with PostgresServer({"listen_addresses": address, "port": str(port)}) as server:
        server.admit(_ACCOUNT, password)
        dsn = f"postgresql://{_ACCOUNT}:{password}@{address}:{port}/{_ACCOUNT}"
        yield Database(server, password, dsn, server.dsn(_ACCOUNT))


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
