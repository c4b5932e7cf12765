"""B3: whether a driver may have another turn, for those that count by themselves. The gateway's word comes last."""

from __future__ import annotations

from moorage.api.wire import ResolvedLimits


def spent(limits: ResolvedLimits, iterations: int, tokens: int) -> str | None:
    """The hard limit that is reached, in words; None while something is left of each. 0 means 0."""
    if limits.max_iterations is not None and iterations >= limits.max_iterations:
        return f"all {limits.max_iterations} iterations are used up"
    if limits.tokens_hard is not None and tokens >= limits.tokens_hard:
        return f"the token limit of {limits.tokens_hard} is used up ({tokens})"
    return None
