"""B2, B3: may a request leave, given what is used, what is reserved for those under way, and the run's limits?

A request is let through while something is left beside all that is reserved, and its own worst case is reserved with
its record. So a limit is passed by less than the one request that was let through last, however many are asked at once
and whichever gateways die meanwhile: what nobody answers for stays reserved until it is settled at its worst case.
"""

from __future__ import annotations

from moorage.api.budget import ResolvedLimits
from moorage.core.constraints.judging import Context, evaluate
from moorage.core.constraints.limits import metered, with_more
from moorage.core.models.prices import Reserve
from moorage.gateway.facts import KEPT_ANSWERS, Facts


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


def demand_free(limits: ResolvedLimits, context: Context, facts: Facts) -> None:
    """Raise AllReserved where nothing is left beside what is reserved. `context` asks for what a model takes."""
    held = reserved(facts)
    full = len(facts.asked) >= KEPT_ANSWERS
    fuller = with_more(context, tokens=held.tokens, cost_micros=held.cost_micros)
    if full or evaluate(metered(limits), fuller).action.stops:
        raise AllReserved
