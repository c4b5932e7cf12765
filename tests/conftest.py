"""A real PostgreSQL and a real Gitea for whatever asks for one, and how Hypothesis looks for failures."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.gateway_script import PASSWORD

from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import cache_root
from e2e.cluster.postgres import ensure_postgres
from e2e.cluster.programs import Programs
from moorage import procfs
from moorage.runner import processes
from moorage.testing.gitea import GiteaServer
from moorage.testing.postgres import PostgresServer

settings.register_profile(
    "moorage", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # no test fails on time
settings.load_profile("moorage")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the servers that a test will want: within a test, its time limit would end an installation or a build."""
    wanted = {name for item in session.items for name in _named(item)}
    try:
        if wanted & {"postgres", "postgres_server"}:
            ensure_postgres(Console(), cache_root())
        if "gitea_server" in wanted:
            Programs(cache_root()).build(["gitea"], Console())
    except HarnessError as error:
        raise pytest.UsageError(f"some of these tests need a server that isn't here: {error}") from error


def _named(item: pytest.Item) -> set[str]:
    """A test's fixtures, and those that it asks for by a parameter."""
    parameters = getattr(item, "callspec", None)
    given = parameters.params.values() if parameters else ()
    return {*getattr(item, "fixturenames", ()), *(each for each in given if isinstance(each, str))}


@pytest.fixture(scope="session")
def unseen() -> Iterator[set[int]]:
    """Servers that no runner of a test sees that has it in this process: at its end it kills what descends from it."""
    hidden: set[int] = set()

    def without_servers() -> dict[int, procfs.Entry]:
        table = procfs.processes()
        servers = hidden | procfs.below(hidden, table)
        return {pid: entry for pid, entry in table.items() if pid not in servers}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "processes", without_servers)
        yield hidden


@pytest.fixture(scope="session")
def postgres_server(unseen: set[int]) -> Iterator[PostgresServer]:
    """One for all tests of this process."""
    with PostgresServer() as server:
        unseen.add(server.pid)
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty schema: its connection string."""
    with postgres_server.schema() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def gitea_server(unseen: set[int]) -> Iterator[GiteaServer]:
    """One for all tests of this process: each has a repository of its own."""
    with GiteaServer(Programs(cache_root()).path("gitea"), "ada", PASSWORD) as server:
        unseen.add(server.pid)
        yield server
