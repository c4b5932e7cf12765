"""C5: allowances of one gateway among several, some of which are gone."""

import asyncio

import pytest
import structlog

from moorage.core.models.prices import Reserve
from moorage.gateway.allowances import FRESH_MS, Allowances, AllTaken, DayExhausted
from moorage.store.allowances import Allowance
from moorage.store.errors import StoreUnavailable
from moorage.store.memory import MemoryStore
from moorage.store.peers import Alone
from moorage.testing.clock import StepClock

pytestmark = pytest.mark.rule("C5")
WORST = Reserve(90, 10, 7)


class Living(Alone):
    """Knows who else lives."""

    def __init__(self, *alive: str) -> None:
        super().__init__()
        self.alive = set(alive)

    async def gone(self, name: str) -> bool:
        return name not in self.alive


def of(store: MemoryStore, clock: StepClock, *alive: str) -> tuple[Allowances, Living]:
    peers = Living(*alive)
    return Allowances(store, peers, clock, structlog.get_logger()), peers


async def test_what_a_lost_gateway_had_under_way_counts_at_its_worst_case_and_holds_no_place() -> None:
    store, clock = MemoryStore(), StepClock()
    await store.set_allowance("t", Allowance(tokens=250, models=1))
    lost, lost_peers = of(store, clock)
    async with lost.taken("t", "r1", WORST):
        pass
    here, peers = of(store, clock, lost_peers.me)
    with pytest.raises(AllTaken):
        async with here.taken("t", "r2", WORST):
            pass
    peers.alive.clear()
    async with here.taken("t", "r2", WORST):
        pass
    await here.answered("r2", {"input_tokens": 20, "output_tokens": 3})
    assert (await store.taken("t", here.today())).tokens == 123
    async with here.taken("t", "r3", WORST):
        pass
    await here.answered("r3", None)
    with pytest.raises(DayExhausted, match="used 223 tokens of 250 tokens"):
        async with here.taken("t", "r4", WORST):
            pass


async def test_who_has_none_costs_the_store_nothing_and_another_gateways_word_is_heard_soon() -> None:
    store, clock = MemoryStore(), StepClock()
    here, _ = of(store, clock)
    async with here.taken("t", "r1", WORST):
        pass
    assert (await store.taken("t", here.today())).open_requests == 0
    await store.set_allowance("t", Allowance(tokens=0))
    clock.advance(FRESH_MS)
    with pytest.raises(DayExhausted):
        async with here.taken("t", "r2", WORST):
            pass


async def test_what_fails_within_gives_all_of_it_back() -> None:
    store, clock = MemoryStore(), StepClock()
    here, _ = of(store, clock)
    await here.tell("t", Allowance(tokens=100))
    for error in (ValueError(), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with here.taken("t", "r", WORST):
                raise error
    async with here.taken("t", "r", WORST):
        pass


async def test_what_the_store_cant_take_now_is_settled_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), StepClock()
    here, _ = of(store, clock)
    await here.tell("t", Allowance(tokens=150, models=1))
    async with here.taken("t", "r", WORST):
        pass
    with monkeypatch.context() as away:
        away.setattr(store, "settle", unavailable)
        await here.answered("r", {"output_tokens": 1})
    assert (await store.taken("t", here.today())).open_requests == 1
    async with here.taken("t", "r2", WORST):
        pass
    assert (await store.taken("t", here.today())).tokens == 1


async def unavailable(*_: object) -> None:
    raise StoreUnavailable("away")


async def test_who_waits_for_a_place_hears_of_one_at_once() -> None:
    store, clock = MemoryStore(), StepClock()
    here, _ = of(store, clock)
    await here.tell("t", Allowance(models=1))
    async with here.taken("t", "r", WORST):
        pass
    bell = here.bell("t").arm()
    await here.answered("r", {})
    assert bell.is_set()
    bell = here.bell("t").arm()
    await here.tell("t", Allowance(models=2))
    assert bell.is_set()


async def committed_and_lost(store: MemoryStore, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store does it once, and its answer never comes."""
    real = getattr(store, what)

    async def lost(*arguments: object) -> None:
        await real(*arguments)
        monkeypatch.setattr(store, what, real)
        raise StoreUnavailable("the link broke at the commit")

    monkeypatch.setattr(store, what, lost)


async def test_an_answer_whose_settling_got_lost_gives_nobody_elses_place_away(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), StepClock()
    here, _ = of(store, clock)
    await here.tell("t", Allowance(models=2))
    for name in ("r1", "r2"):
        async with here.taken("t", name, WORST):
            pass
    await committed_and_lost(store, "settle", monkeypatch)
    await here.answered("r1", {"output_tokens": 1})
    async with here.taken("t", "r3", WORST):
        pass
    with pytest.raises(AllTaken):
        async with here.taken("t", "r4", WORST):
            pass
    assert (await store.taken("t", here.today())).tokens == 1


async def test_a_request_whose_noting_got_lost_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), StepClock()
    here, _ = of(store, clock)
    await here.tell("t", Allowance(models=1))
    await committed_and_lost(store, "take", monkeypatch)
    with pytest.raises(StoreUnavailable):
        async with here.taken("t", "r1", WORST):
            pass
    async with here.taken("t", "r2", WORST):
        pass
    assert (await store.taken("t", here.today())).open_requests == 1
