"""Every store, and a gateway over each that a cluster has, with real git behind it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.local_machine import Machine
from tests.gateway_script import PASSWORD, commit, git
from tests.workspace_place import place, source

from moorage.store.memory import MemoryStore
from moorage.store.port import DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.s3 import S3Server

__all__ = ["place", "source"]  # fixtures


@pytest.fixture(scope="session")
def s3_server(unseen: set[int]) -> Iterator[S3Server]:
    """One for all tests of this process: each has a bucket of its own."""
    with S3Server() as running:
        unseen.add(running.pid)
        yield running


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[GitServer]:
    (tmp_path / "srv").mkdir()
    with GitServer(tmp_path / "srv", "ada", PASSWORD) as running:
        bare = running.create("shop.git")
        work = tmp_path / "seed"
        git(tmp_path, "clone", "-q", str(bare), str(work))
        git(work, "checkout", "-q", "-b", "main")
        commit(work, "a.txt", "one\n")
        git(work, "push", "-q", "origin", "main")
        yield running


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """Without bubblewrap, unless a test asks for a grade of isolation: `machine` is its parameter then."""
    (tmp_path / "machine").mkdir()
    made = Machine(tmp_path / "machine", getattr(request, "param", False))
    yield made
    made.close()


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


async def opened(adapter: str, request: pytest.FixtureRequest) -> DurableExecutionStore:
    match adapter:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(request.getfixturevalue("tmp_path") / "journal.db")
        case _:
            return await PostgresStore.open(request.getfixturevalue("postgres"))


@pytest.fixture(params=["memory", "postgres", "sqlite"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[DurableExecutionStore]:
    """Every adapter, empty."""
    store = await opened(request.param, request)
    yield store
    await store.close()


@pytest.fixture(params=["postgres", "sqlite"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    store = await opened(request.param, request)
    made = LocalGateway(tmp_path, store=store, clock=clock)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made
    await store.close()
