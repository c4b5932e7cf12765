"""C5: what a tenant takes of models in a day and at once: one suite for each adapter, and two gateways."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.store.allowances import COST, KEPT_DAYS, MODELS, TOKENS, Allowance, Ask, Short, Taken
from moorage.store.port import DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore

DAY = 20_000
pytestmark = pytest.mark.rule("C5")


def ask(
    request: str, tokens: int = 100, cost: int = 10, *, tenant: str = "team-a", day: int = DAY, gateway: str = "g1"
) -> Ask:
    return Ask(tenant, request, day, gateway, tokens, cost)


@pytest.fixture(params=["postgres", "sqlite"])
async def two(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[DurableExecutionStore]]:
    """Two gateways' stores of one database."""
    stores: list[DurableExecutionStore] = []
    for _ in range(2):
        if request.param == "postgres":
            stores.append(await PostgresStore.open(request.getfixturevalue("postgres")))
        else:
            stores.append(SqliteStore(tmp_path / "journal.db"))
    yield stores
    for store in stores:
        await store.close()


async def test_an_allowance_is_set_replaced_and_taken_back(store: DurableExecutionStore) -> None:
    assert await store.allowances() == {}
    await store.set_allowance("team-a", Allowance(tokens=0, models=2))
    await store.set_allowance("team-b", Allowance(cost_micros=5))
    await store.set_allowance("team-a", Allowance(tokens=7))
    assert await store.allowances() == {"team-a": Allowance(tokens=7), "team-b": Allowance(cost_micros=5)}
    await store.set_allowance("team-a", Allowance())
    assert await store.allowances() == {"team-b": Allowance(cost_micros=5)}


async def test_a_request_takes_its_worst_case_and_gives_back_what_it_didnt_need(store: DurableExecutionStore) -> None:
    await store.set_allowance("team-a", Allowance(tokens=250, cost_micros=25))
    assert await store.take(ask("r1")) is None
    assert await store.take(ask("r2", gateway="g2")) is None
    assert await store.taken("team-a", DAY) == Taken(DAY, 0, 0, 200, 20, 2)
    short = await store.take(ask("r3"))
    assert short == Short(TOKENS, 250, 0, 100, over=False, holders=frozenset({"g1", "g2"}))
    await store.settle(ask("r1"), 40, 4)
    assert await store.taken("team-a", DAY) == Taken(DAY, 40, 4, 100, 10, 1)
    assert await store.take(ask("r3")) is None
    await store.settle(ask("r3"), 100, 10)
    await store.settle(ask("r2", gateway="g2"), 100, 10)
    assert await store.take(ask("r4")) == Short(TOKENS, 250, 240, 100, over=True)
    assert await store.take(ask("r4", 10, 5)) == Short(COST, 25, 24, 5, over=True)
    assert await store.take(ask("r4", 10, 1)) is None


async def test_what_nobody_knows_to_be_done_may_be_done_again(store: DurableExecutionStore) -> None:
    """The store did it, and its answer was lost."""
    await store.set_allowance("team-a", Allowance(tokens=250, models=2))
    for _ in range(2):
        assert await store.take(ask("r1")) is None
    assert await store.take(ask("r2")) is None
    for _ in range(3):
        await store.settle(ask("r1"), 40, 4)
    assert await store.taken("team-a", DAY) == Taken(DAY, 40, 4, 100, 10, 1), "another one's place isn't given away"
    await store.settle(ask("never noted"), 500, 500)
    assert (await store.taken("team-a", DAY)).tokens == 40


async def test_a_day_is_over_at_midnight_and_an_answer_counts_for_the_day_that_it_was_asked_in(
    store: DurableExecutionStore,
) -> None:
    await store.set_allowance("team-a", Allowance(tokens=100))
    late, early = ask("r1"), ask("r2", day=DAY + 1)
    assert await store.take(late) is None
    assert await store.take(early) is None
    await store.settle(late, 100, 0)
    assert [(await store.taken("team-a", day)).tokens for day in (DAY, DAY + 1)] == [100, 0]
    await store.settle(early, 0, 0)
    assert await store.take(ask("r3", day=DAY + 1)) is None


async def test_tenants_are_no_neighbours(store: DurableExecutionStore) -> None:
    await store.set_allowance("team-a", Allowance(tokens=0))
    assert isinstance(await store.take(ask("r1", 1)), Short)
    assert await store.take(ask("r1", tenant="team-b")) is None
    assert await store.taken("team-a", DAY) == Taken(DAY)
    await store.settle(ask("r1"), 9, 9)
    assert (await store.taken("team-b", DAY)).open_requests == 1


async def test_requests_at_once_are_counted_over_midnight_and_over_gateways(store: DurableExecutionStore) -> None:
    await store.set_allowance("team-a", Allowance(models=2))
    assert await store.take(ask("r1")) is None
    assert await store.take(ask("r2", day=DAY + 1, gateway="g2")) is None
    short = await store.take(ask("r3", day=DAY + 1))
    assert short == Short(MODELS, 2, 2, 1, over=False, holders=frozenset({"g1", "g2"}))
    await store.settle(ask("r1"), 1, 1)
    assert await store.take(ask("r3", day=DAY + 1)) is None
    await store.set_allowance("team-a", Allowance(models=0))
    assert (await store.take(ask("r4", day=DAY + 1)) or Short("", 0, 0, 0, over=False)).over


async def test_what_a_gateway_that_is_gone_had_under_way_has_taken_its_worst_case(store: DurableExecutionStore) -> None:
    await store.set_allowance("team-a", Allowance(tokens=250, models=1))
    await store.take(ask("r1", gateway="dead"))
    assert isinstance(await store.take(ask("r2")), Short)
    for _ in range(2):
        await store.give_up("team-a", "dead")
    await store.settle(ask("r1", gateway="dead"), 0, 0)
    assert await store.taken("team-a", DAY) == Taken(DAY, 100, 10)
    assert await store.take(ask("r2")) is None


async def test_days_of_long_ago_are_let_go_of(store: DurableExecutionStore) -> None:
    for number, day in enumerate((DAY, DAY + KEPT_DAYS, DAY + KEPT_DAYS + 1)):
        assert (await store.taken("team-a", DAY)).tokens == (5 if number else 0)
        await store.take(ask(f"r{number}", day=day))
        await store.settle(ask(f"r{number}", day=day), 5, 5)
    assert (await store.taken("team-a", DAY)).tokens == 0


async def test_two_gateways_at_once_never_pass_a_limit(two: list[DurableExecutionStore]) -> None:
    """Each asks, is answered and asks again, as fast as it can."""
    await two[0].set_allowance("team-a", Allowance(tokens=1_000, models=6))
    passed: list[Taken] = []

    async def runner(at: int) -> int:
        store, got = two[at % 2], 0
        for turn in range(8):
            one = ask(f"{at}-{turn}", 30, gateway=f"g{at % 2}")
            if await store.take(one) is not None:
                await asyncio.sleep(0)
                continue
            now = await store.taken("team-a", DAY)
            if now.tokens + now.open_tokens > 1_000 or now.open_requests > 6:
                passed.append(now)
            await store.settle(one, 10 + (at + turn) % 20, 1)
            got += 1
        return got

    got = await asyncio.gather(*(runner(at) for at in range(12)))
    end = await two[1].taken("team-a", DAY)
    assert passed == []
    assert (end.open_tokens, end.open_requests) == (0, 0)
    assert end.cost_micros == sum(got) > 12
