"""A gateway over each store, with real git behind it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.gateway_script import PASSWORD, commit, git

from moorage.store.memory import MemoryStore
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer


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
def clock() -> StepClock:
    return StepClock()


@pytest.fixture(params=["memory", "sqlite"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "journal.db")
    made = LocalGateway(tmp_path, store=store, clock=clock)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made
    await store.close()
