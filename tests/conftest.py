"""A real PostgreSQL for whatever asks for one, and how Hypothesis looks for failures."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import cache_root
from e2e.cluster.postgres import ensure_postgres
from moorage import procfs
from moorage.runner import processes
from moorage.testing.postgres import PostgresServer

settings.register_profile(
    "moorage", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # no test fails on time
settings.load_profile("moorage")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the server where a test will want it: within a test, its time limit would end that."""
    if not any(_wants_postgres(item) for item in session.items):
        return
    try:
        ensure_postgres(Console(), cache_root())
    except HarnessError as error:
        raise pytest.UsageError(f"the tests of the PostgreSQL store need its server: {error}") from error


def _wants_postgres(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    named = set(getattr(item, "fixturenames", ()))
    given = parameters.params.values() if parameters else ()
    return bool({"postgres", "postgres_server"} & named) or "postgres" in given


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for all tests of this process. A runner that a test has in this process doesn't see it: at its end it kills
    whatever descends from it.
    """
    everything = procfs.processes
    with PostgresServer() as server, pytest.MonkeyPatch.context() as patch:

        def without_the_server() -> dict[int, procfs.Entry]:
            table = everything()
            hidden = {server.pid} | procfs.below({server.pid}, table)
            return {pid: entry for pid, entry in table.items() if pid not in hidden}

        patch.setattr(processes, "processes", without_the_server)
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty schema: its connection string."""
    with postgres_server.schema() as dsn:
        yield dsn
