"""C5: whatever order gateways ask, are answered, repeat and die in, no day's limit and no number at once is passed."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.store.allowances import Allowance, Ask, Short, short_of
from moorage.store.memory import MemoryStore

GATEWAYS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask again", "answer", "answer again", "die", "midnight"]),
        st.sampled_from(GATEWAYS),
        st.integers(0, 60),
        st.integers(0, 9),
        st.floats(0, 1),
    ),
    max_size=60,
)
LIMIT = st.one_of(st.none(), st.integers(0, 200))


class Tenant:
    """What is truly under way and was truly spent, beside what the store says of it."""

    def __init__(self) -> None:
        self.store, self.day, self.number = MemoryStore(), 0, 0
        self.open: list[Ask] = []
        self.over: list[Ask] = []
        self.spent: dict[int, int] = {}

    async def step(self, what: str, gateway: str, tokens: int, cost: int, part: float) -> None:
        mine = [ask for ask in self.open if ask.gateway == gateway]
        match what:
            case "ask":
                self.number += 1
                ask = Ask("t", f"r{self.number}", self.day, gateway, tokens, cost)
                if await self.store.take(ask) is None:
                    self.open.append(ask)
            case "ask again" if mine:
                assert await self.store.take(mine[-1]) is None
            case "answer" if mine:
                ask = mine[int(part * (len(mine) - 1))]
                self._ended(ask, took := int(ask.tokens * part))
                await self.store.settle(ask, took, int(ask.cost_micros * part))
            case "answer again" if self.over:
                await self.store.settle(self.over[-1], 50, 50)
            case "die":
                await self.store.give_up("t", gateway)
                for ask in mine:
                    self._ended(ask, ask.tokens)
            case "midnight":
                self.day += 1

    def _ended(self, ask: Ask, took: int) -> None:
        self.open.remove(ask)
        self.over.append(ask)
        self.spent[ask.day] = self.spent.get(ask.day, 0) + took


@pytest.mark.rule("C5")
@given(tokens=LIMIT, cost=LIMIT, models=st.one_of(st.none(), st.integers(0, 4)), steps=STEPS)
def test_no_limit_is_passed_in_whatever_order(
    tokens: int | None, cost: int | None, models: int | None, steps: list[tuple[str, str, int, int, float]]
) -> None:
    async def live() -> None:
        tenant = Tenant()
        await tenant.store.set_allowance("t", Allowance(tokens, cost, models))
        for step in steps:
            await tenant.step(*step)
            assert models is None or len(tenant.open) <= models
            for day in range(tenant.day + 1):
                took = await tenant.store.taken("t", day)
                assert took.tokens == tenant.spent.get(day, 0)
                assert took.open_tokens == sum(ask.tokens for ask in tenant.open if ask.day == day)
                assert took.open_requests == len(tenant.open)
                assert tokens is None or took.tokens + took.open_tokens <= tokens
                assert cost is None or took.cost_micros + took.open_cost_micros <= cost

    asyncio.run(live())


@pytest.mark.rule("C5")
def test_what_can_never_fit_is_over_and_what_waits_for_others_is_not() -> None:
    others = [Ask("t", "r1", 0, "a", 40, 0)]
    waits = short_of(Allowance(tokens=100), (50, 0), others, Ask("t", "r2", 0, "b", 20, 0))
    over = short_of(Allowance(tokens=100), (50, 0), others, Ask("t", "r2", 0, "b", 60, 0))
    assert isinstance(waits, Short)
    assert (waits.over, waits.holders) == (False, frozenset({"a"}))
    assert isinstance(over, Short)
    assert over.over
