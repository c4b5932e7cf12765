"""B2, B3: may a request leave, given what is used, what is reserved for those under way, and the run's limits?

A request is let through while something is left beside all that is reserved, and its own worst case is reserved with
its record. So a limit is passed by less than the one request that was let through last, however many are asked at once
and whichever gateways die meanwhile: what nobody answers for stays reserved until it is settled at its worst case.
"""

from __future__ import annotations

from moorage.api.wire import ResolvedLimits
from moorage.core.models.prices import Reserve
from moorage.core.run.limits import Spent, spent
from moorage.core.run.state import Usage
from moorage.gateway.errors import Refusal
from moorage.gateway.facts import KEPT_ANSWERS, Facts


class Exhausted(Refusal):
    """A hard limit is reached. 0 left means 0, and asking again doesn't help."""

    status, reason = 400, "BudgetExhausted"

    def __init__(self, spent: Spent) -> None:
        self.spent = spent
        super().__init__(spent.message)


class AllReserved(Exception):
    """All that is left is reserved for requests under way; what they don't need comes back."""


def reserved(facts: Facts) -> Reserve:
    """All that requests without an answer may come to."""
    open_ = [question.reserve for question in facts.asked.values()]
    return Reserve(
        sum(each.input_tokens for each in open_),
        sum(each.output_tokens for each in open_),
        sum(each.cost_micros for each in open_),
    )


def demand_left(limits: ResolvedLimits, used: Usage) -> None:
    """Raise Exhausted where a hard limit is reached."""
    if (reached := spent(limits, used)) is not None:
        raise Exhausted(reached)


def demand_free(limits: ResolvedLimits, used: Usage, facts: Facts) -> None:
    """Raise Exhausted as `demand_left` does, AllReserved where there is nothing left beside what is reserved."""
    demand_left(limits, used)
    held = reserved(facts)
    full = len(facts.asked) >= KEPT_ANSWERS
    tokens = limits.tokens_hard is not None and used.tokens + held.tokens >= limits.tokens_hard
    cost = limits.cost_hard_micros is not None and used.cost_micros + held.cost_micros >= limits.cost_hard_micros
    if full or tokens or cost:
        raise AllReserved
