"""The load of `make soak`, at a real gateway for a moment: what it expects is what comes."""

import random

import pytest

from e2e.soak.__main__ import processes
from e2e.soak.judge import Load
from e2e.soak.load import Amount, Soak, session
from e2e.soak.world import World

pytestmark = pytest.mark.timeout(180)  # two processes begin and end
AMOUNT = Amount(seconds=3, readers=4, agents=2, lines=20.0, requests=20.0, requests_a_run=3, stays_s=(0.1, 0.5))


@pytest.mark.rule("M4", "B3")
async def test_all_that_was_asked_for_comes_once_and_is_counted() -> None:
    load = Load()
    async with processes() as (_, url, model), session() as http:
        await Soak(World(http, url, model), AMOUNT, load, random.Random(1)).run()
    assert load.failed == []
    assert (load.chunks, load.counted) == (3, load.requests)
    assert load.lines > 0
