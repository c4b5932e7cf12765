"""C5: whatever order gateways ask, answer and die in, no day's limit and no number at once is passed."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.store.allowances import Allowance, Ask, Short, Taken, plan_give_up, plan_settle, plan_take, summed

GATEWAYS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "answer", "die", "midnight"]),
        st.sampled_from(GATEWAYS),
        st.integers(0, 60),
        st.integers(0, 9),
        st.floats(0, 1),
    ),
    max_size=60,
)
LIMIT = st.one_of(st.none(), st.integers(0, 200))


@dataclass
class Tenant:
    allowance: Allowance
    day: int = 0

    def __post_init__(self) -> None:
        self.rows: dict[tuple[int, str], Taken] = {}
        self.open: list[Ask] = []
        self.spent: dict[int, int] = {}

    def looked_at(self) -> list[Taken]:
        return [row for row in self.rows.values() if row.day == self.day or row.open_requests]

    def step(self, what: str, gateway: str, tokens: int, cost: int, part: float) -> None:
        if what == "ask":
            plan = plan_take(self.allowance, self.looked_at(), ask := Ask("t", self.day, gateway, tokens, cost))
            if isinstance(plan, Taken):
                self.rows[plan.day, plan.gateway] = plan
                self.open.append(ask)
            elif plan.over:
                used = summed(self.looked_at(), self.day)
                assert self.allowance.models == 0 or plan.used in {used.tokens, used.cost_micros}
        elif what == "answer" and (mine := [a for a in self.open if a.gateway == gateway]):
            ask = mine[int(part * (len(mine) - 1))]
            self.open.remove(ask)
            took = int(ask.tokens * part)
            self.rows[ask.day, gateway] = plan_settle(
                self.rows[ask.day, gateway], ask, took, int(ask.cost_micros * part)
            )
            self.spent[ask.day] = self.spent.get(ask.day, 0) + took
        elif what == "die":
            for at, row in self.rows.items():
                if at[1] == gateway:
                    self.rows[at] = plan_give_up(row)
            for ask in [a for a in self.open if a.gateway == gateway]:
                self.open.remove(ask)
                self.spent[ask.day] = self.spent.get(ask.day, 0) + ask.tokens
        elif what == "midnight":
            self.day += 1


@pytest.mark.rule("C5")
@given(tokens=LIMIT, cost=LIMIT, models=st.one_of(st.none(), st.integers(0, 4)), steps=STEPS)
def test_no_limit_is_passed_in_whatever_order(
    tokens: int | None, cost: int | None, models: int | None, steps: list[tuple[str, str, int, int, float]]
) -> None:
    tenant = Tenant(Allowance(tokens, cost, models))
    for step in steps:
        tenant.step(*step)
        assert models is None or len(tenant.open) <= models
        for day in range(tenant.day + 1):
            took = summed((row for row in tenant.rows.values() if row.day == day), day)
            assert tokens is None or took.tokens + took.open_tokens <= tokens
            assert cost is None or took.cost_micros + took.open_cost_micros <= cost
            assert took.tokens == tenant.spent.get(day, 0)
            assert took.open_requests == sum(ask.day == day for ask in tenant.open)


@pytest.mark.rule("C5")
def test_what_can_never_fit_is_over_and_what_waits_for_others_is_not() -> None:
    rows = [Taken(0, "a", tokens=50, open_tokens=40, open_requests=1)]
    waits = plan_take(Allowance(tokens=100), rows, Ask("t", 0, "b", 20, 0))
    over = plan_take(Allowance(tokens=100), rows, Ask("t", 0, "b", 60, 0))
    assert isinstance(waits, Short)
    assert (waits.over, waits.holders) == (False, frozenset({"a"}))
    assert isinstance(over, Short)
    assert over.over
