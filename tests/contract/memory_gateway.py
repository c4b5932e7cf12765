"""A gateway over one store, for cases whose subject no store has a say in, or that reach into it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.gateway_script import PASSWORD

from moorage.store.memory import MemoryStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway


@pytest.fixture
async def gateway(tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    """Over memory, with the password of its Git server."""
    made = LocalGateway(tmp_path, store=MemoryStore(), clock=clock)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made
