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
from moorage.core.run.family import Share
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


def share_reserved(facts: Facts) -> Share | None:
    """The same as part of the budget; None where nothing is under way."""
    held = reserved(facts)
    return Share(tokens=held.tokens, cost_micros=held.cost_micros) if facts.asked else None


def beside(context: Context, facts: Facts) -> Context:
    """The context, with all that is reserved counted as used."""
    held = reserved(facts)
    return with_more(context, tokens=held.tokens, cost_micros=held.cost_micros)


def lacking(limits: ResolvedLimits, context: Context, facts: Facts) -> str | None:
    """Why what the context asks for isn't left beside all that is reserved; None where it is."""
    worst = evaluate(metered(limits), beside(context, facts)).worst
    return worst.validation.message if worst is not None and worst.action.stops else None


def demand_free(limits: ResolvedLimits, context: Context, facts: Facts) -> None:
    """Raise AllReserved where nothing is left beside what is reserved. `context` asks for what a model takes."""
    full = len(facts.asked) >= KEPT_ANSWERS
    if full or lacking(limits, context, facts) is not None:
        raise AllReserved
