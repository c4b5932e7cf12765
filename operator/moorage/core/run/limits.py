"""B3: which hard limit of a run is reached, said the same at the model door, in the conditions and at the run's end."""

from __future__ import annotations

from typing import NamedTuple

from moorage.api.quantity import dollars
from moorage.api.wire import ResolvedLimits
from moorage.core.run.state import RunState, Usage


class Spent(NamedTuple):
    """A hard limit that is reached."""

    reason: str
    message: str


def spent(limits: ResolvedLimits, used: Usage) -> Spent | None:
    """The first one; None while something is left of each. 0 means 0."""
    tokens, cost = limits.tokens_hard, limits.cost_hard_micros
    if tokens is not None and used.tokens >= tokens:
        return Spent("TokensExhausted", f"the run's token limit of {tokens} is used up ({used.tokens})")
    if cost is not None and used.cost_micros >= cost:
        why = f"the run's cost limit of ${dollars(cost)} is used up (${dollars(used.cost_micros)})"
        return Spent("CostExhausted", why)
    return None


def out_of(limits: ResolvedLimits, s: RunState) -> str | None:
    """Why another attempt could do nothing. Iteration numbers may have gaps, so this never says it too late."""
    most = limits.max_iterations
    if most is not None and s.iteration >= most:
        return f"all {most} iterations are used up"
    reached = spent(limits, s.usage)
    return reached.message if reached else None
