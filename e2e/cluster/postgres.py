"""PostgreSQL's server program, installed where it is missing: tests and the bench start their own servers with it."""

import contextlib
import shutil
from pathlib import Path

from e2e.cluster.console import Console
from e2e.cluster.debian import POSTGRES_PACKAGES, ensure
from moorage.testing.postgres import PostgresMissingError, programs

_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.conf")


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
