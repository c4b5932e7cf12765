"""Turns at a provider: so many at once, and one of each run after the other."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.turns import Turns

PROVIDER = ("team-a", "models")
LONG = 600.0


async def settled() -> None:
    """Let all that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def served(turns: Turns, order: list[str], run: str, limit: int = 1) -> None:
    assert await turns.take(PROVIDER, run, limit, LONG)
    order.append(run)


@pytest.mark.rule("C8")
async def test_a_run_that_asks_much_doesnt_starve_the_others() -> None:
    turns, order = Turns(), list[str]()
    asking = [asyncio.create_task(served(turns, order, run)) for run in ("a", "a", "a", "a", "b", "b", "c")]
    for _ in asking:
        await settled()
        turns.give_back(PROVIDER)
    await asyncio.gather(*asking)
    assert order == ["a", "a", "b", "c", "a", "b", "a"]


async def test_a_turn_that_doesnt_come_in_time_is_no_turn() -> None:
    turns = Turns()
    assert await turns.take(PROVIDER, "a", 1, LONG)
    assert not await turns.take(PROVIDER, "b", 1, 0.01)
    turns.give_back(PROVIDER)
    assert await turns.take(PROVIDER, "c", 1, LONG), "who stopped waiting is passed over"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20), st.integers(min_value=1, max_value=3))
def test_whoever_goes_away_holds_no_turn(asked: list[tuple[str, bool]], limit: int) -> None:
    async def play() -> None:
        turns, order = Turns(), list[str]()
        tasks = [(asyncio.create_task(served(turns, order, run, limit)), goes) for run, goes in asked]
        await settled()
        began = min(limit, len(asked))
        assert len(order) == began
        for task, goes in tasks:
            if goes:
                task.cancel()  # some are served already, which a cancel doesn't undo
        await settled()
        for served_before in range(len(asked)):
            if served_before < len(order):
                turns.give_back(PROVIDER)
                await settled()
        waited = [task for task, goes in tasks[began:] if not goes]
        assert len(order) == began + len(waited)
        assert not turns._providers, "nothing is kept of who is through"

    asyncio.run(play())


async def test_a_turn_that_comes_as_its_owner_goes_is_given_on() -> None:
    turns, order = Turns(), list[str]()
    await served(turns, order, "a")
    going = asyncio.create_task(served(turns, order, "b"))
    await settled()
    turns.give_back(PROVIDER)  # b's turn comes, and b doesn't run before it is cancelled
    going.cancel()
    await settled()
    assert going.cancelled()
    await asyncio.wait_for(served(turns, order, "c"), 30)
    assert order == ["a", "c"]
