"""C7: what a run and its agent are told of what is left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from moorage.api.budget import Budget, ResolvedLimits
from moorage.core.constraints.context import clock_end
from moorage.core.constraints.judging import Action, Context
from moorage.core.constraints.limits import METERED, SHARED
from moorage.core.run.family import Share
from moorage.core.run.state import RunState, Violation

VIOLATED = "ConstraintViolated"


def stopping(violations: Iterable[Violation]) -> Violation | None:
    """The first of the most severe ones, where it stops the run."""
    severe = sorted((v for v in violations if Action[v.action].stops), key=lambda v: -Action[v.action])
    return severe[0] if severe else None


def warning(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Those that only warn."""
    return tuple(v for v in violations if Action[v.action] is Action.WARN_CONTINUE)


def budget_of(limits: ResolvedLimits, context: Context, state: RunState) -> Budget:
    """What the agent may know, at this moment."""
    left = {each.name: each.left(limits, context) for each in METERED}
    stop = stopping(state.violations)
    return Budget(
        used={each.name: each.used(context) for each in METERED},
        given={name: amount for name, amount in _given(state.given_away) if amount},
        left={name: amount for name, amount in left.items() if amount is not None},
        ends_at=_ends_at(limits, state),
        warnings=tuple(each.message for each in warning(state.violations)),
        exhausted=stop.message if stop else None,
    )


def _given(share: Share) -> Iterable[tuple[str, int]]:
    context = Context(**asdict(share))
    return ((each.name, each.used(context)) for each in SHARED)


def _ends_at(limits: ResolvedLimits, state: RunState) -> int | None:
    """When its time is over, if it isn't paused again."""
    return clock_end(state, limits.wall_clock_ms) if limits.wall_clock_ms is not None else None
