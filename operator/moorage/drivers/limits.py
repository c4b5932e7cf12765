"""B3: whether a driver may have another turn, for those that count by themselves. The gateway's word comes last."""

from __future__ import annotations

from types import MappingProxyType

from moorage.api.budget import Budget, ResolvedLimits
from moorage.core.constraints.judging import Context, evaluate
from moorage.core.constraints.limits import ITERATIONS, TOKENS, metered

ANOTHER = MappingProxyType({ITERATIONS.name: 1, TOKENS.name: 1})


def spent(limits: ResolvedLimits, iterations: int, tokens: int) -> str | None:
    """The hard limit that is reached, in words; None while something is left of each. 0 means 0."""
    verdict = evaluate(metered(limits), Context(iterations=iterations, tokens=tokens, asking=ANOTHER))
    return next((each.validation.message for each in verdict.judged if each.action.stops), None)


def raised(limits: ResolvedLimits, budget: Budget) -> ResolvedLimits:
    """The attempt's limits with what was raised since it began: what the gateway says is used and left make up a limit.
    Where nothing is left, its word comes first anyway.
    """
    higher = {}
    for of in (ITERATIONS, TOKENS):
        most, left = of.hard(limits), budget.left.get(of.name, 0)
        if most is not None and left > 0 and (now := budget.used.get(of.name, 0) + left) > most:
            higher[of.limit] = now
    return limits.model_copy(update=higher) if higher else limits
