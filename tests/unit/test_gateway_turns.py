"""Turns at a provider: so many at once or in a minute, and one of each run after the other."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.models.rates import Limits
from moorage.gateway.turns import Turn, Turns
from moorage.testing.clock import StepClock

PROVIDER = ("team-a", "models")
LONG = 600.0
ONE = Limits(concurrent=1)


async def settled() -> None:
    """Let all that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


class Served:
    """Requests at one provider; `order`: the runs of those that had their turn."""

    def __init__(self, limits: Limits = ONE) -> None:
        self.clock, self.limits = StepClock(), limits
        self.turns = Turns(self.clock)
        self.order: list[str] = []
        self.held: list[Turn] = []

    async def take(
        self, run: str, tokens: int = 0, patience_s: float = LONG, provider: tuple[str, str] = PROVIDER
    ) -> bool:
        turn = await self.turns.take(provider, run, self.limits, tokens, patience_s)
        if turn is not None:
            self.order.append(run)
            self.held.append(turn)
        return turn is not None

    def give_back(self, used: int = 0, *, left: bool = True) -> None:
        self.turns.give_back(self.held.pop(0), used, left=left)


@pytest.mark.rule("C8", "Q3")
@pytest.mark.parametrize("limits", [ONE, Limits(requests=1), Limits(tokens=10)], ids=["at once", "requests", "tokens"])
async def test_a_run_that_asks_much_doesnt_starve_the_others(limits: Limits) -> None:
    served = Served(limits)
    asking = [asyncio.create_task(served.take(run, 10)) for run in ("a", "a", "a", "a", "b", "b", "c")]
    for number in range(len(asking)):
        await settled()
        assert len(served.order) == number + 1
        served.clock.advance(60_000)
        served.give_back(used=10)
    await asyncio.gather(*asking)
    assert served.order == ["a", "a", "b", "c", "a", "b", "a"]


@pytest.mark.rule("Q3", "I10")
@pytest.mark.parametrize("limits", [ONE, Limits(requests=1), Limits(tokens=10)], ids=["at once", "requests", "tokens"])
async def test_what_one_tenant_asks_holds_up_no_other(limits: Limits) -> None:
    served = Served(limits)
    asking = [asyncio.create_task(served.take(f"a{number}", 10)) for number in range(20)]
    await settled()
    assert await served.take("b", 10, patience_s=0.01, provider=("team-b", "models"))
    assert served.order == ["a0", "b"]
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_a_turn_that_doesnt_come_in_time_is_no_turn() -> None:
    served = Served()
    assert await served.take("a")
    assert not await served.take("b", patience_s=0.01)
    served.give_back()
    assert await served.take("c"), "who stopped waiting is passed over"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20), st.integers(min_value=1, max_value=3))
def test_whoever_goes_away_holds_no_turn(asked: list[tuple[str, bool]], limit: int) -> None:
    async def play() -> None:
        served = Served(Limits(concurrent=limit))
        tasks = [(asyncio.create_task(served.take(run)), goes) for run, goes in asked]
        await settled()
        began = min(limit, len(asked))
        assert len(served.order) == began
        for task, goes in tasks:
            if goes:
                task.cancel()  # some are served already, which a cancel doesn't undo
        await settled()
        while served.held:
            served.give_back()
            await settled()
        waited = [task for task, goes in tasks[began:] if not goes]
        assert len(served.order) == began + len(waited)
        assert not served.turns._providers, "nothing is kept of who is through"

    asyncio.run(play())


async def test_a_turn_that_comes_as_its_owner_goes_is_given_on() -> None:
    served = Served()
    await served.take("a")
    going = asyncio.create_task(served.take("b"))
    await settled()
    served.give_back()  # b's turn comes, and b doesn't run before it is cancelled
    going.cancel()
    await settled()
    assert going.cancelled()
    await asyncio.wait_for(served.take("c"), 30)
    assert served.order == ["a", "c"]


# --- what a minute brings ---------------------------------------------------------------------------------------------


async def at_once(served: Served, run: str, tokens: int = 0) -> bool:
    """Whether a turn comes without waiting."""
    taking = asyncio.create_task(served.take(run, tokens))
    await settled()
    if not taking.done():
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        return False
    return taking.result()


@pytest.mark.rule("Q3")
async def test_a_minutes_requests_and_then_one_for_each_share_of_it() -> None:
    served = Served(Limits(requests=60))
    assert all([await at_once(served, "a") for _ in range(60)])
    assert not await at_once(served, "a")
    served.clock.advance(999)
    assert not await at_once(served, "a")
    served.clock.advance(1)
    assert await at_once(served, "a")
    assert not await at_once(served, "a")


@pytest.mark.rule("Q3")
async def test_tokens_are_taken_as_expected_and_settled_as_used() -> None:
    served = Served(Limits(tokens=600))
    assert await at_once(served, "a", 100)
    served.give_back(used=900)  # 300 more than there are
    served.clock.advance(30_000)
    assert not await at_once(served, "a", 1)
    served.clock.advance(100)
    assert await at_once(served, "a", 1)
    served.give_back(used=0)  # refused
    assert await at_once(served, "a", 1)


async def test_a_request_that_never_left_took_nothing() -> None:
    served = Served(Limits(requests=1, tokens=100))
    assert await at_once(served, "a", 100)
    assert not await at_once(served, "b", 100)
    served.give_back(left=False)
    assert await at_once(served, "b", 100)


async def test_a_refused_request_was_one_and_took_no_tokens() -> None:
    served = Served(Limits(requests=1, tokens=100))
    assert await at_once(served, "a", 100)
    served.give_back(used=0)
    assert not await at_once(served, "b", 100), "one a minute"
    served.clock.advance(60_000)
    assert await at_once(served, "b", 100)


async def test_time_alone_lets_the_next_one_in() -> None:
    served = Served(Limits(tokens=60_000))
    await served.take("a", 60_000)
    waiting = asyncio.create_task(served.take("b", 1))
    await settled()
    assert not waiting.done()
    served.clock.advance(1)
    assert await asyncio.wait_for(waiting, 30), "nobody gave a turn back"


async def test_one_that_is_too_large_for_what_is_left_holds_back_the_others_and_starves_nowhere() -> None:
    served = Served(Limits(tokens=600))
    assert await at_once(served, "a", 300)
    large = asyncio.create_task(served.take("b", 600))
    await settled()
    small = asyncio.create_task(served.take("c", 1))
    await settled()
    assert not large.done()
    assert not small.done()
    served.clock.advance(30_000)
    served.give_back(used=300)
    assert await large
    small.cancel()
    await asyncio.gather(small, return_exceptions=True)


async def test_a_provider_that_has_had_a_minutes_rest_is_forgotten() -> None:
    served = Served(Limits(requests=10))
    await served.take("a")
    served.give_back(used=1)
    assert served.turns._providers
    served.clock.advance(60_000)
    assert await served.turns.take("another", "a", ONE, 0, LONG)
    assert list(served.turns._providers) == ["another"]


@pytest.mark.rule("Q3")
@given(
    st.integers(min_value=1, max_value=5),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(min_value=0, max_value=40_000)), max_size=30),
)
def test_no_more_leave_than_a_minutes_and_what_came_in_since(per_minute: int, asked: list[tuple[str, int]]) -> None:
    async def play() -> None:
        served, elapsed = Served(Limits(requests=per_minute)), 0
        for run, later in asked:
            await at_once(served, run)
            assert len(served.order) <= per_minute + per_minute * elapsed // 60_000
            served.clock.advance(later)
            elapsed += later
        served.clock.advance(60_000)
        assert await at_once(served, "a"), "and after a minute's rest there is always one"

    asyncio.run(play())
