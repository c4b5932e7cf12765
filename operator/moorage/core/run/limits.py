"""B3: which hard limit of a run is reached, said the same at the model door, in the conditions and at the run's stop;
and what a raise of one comes to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from moorage.api.quantity import dollars
from moorage.api.wire import ResolvedLimits, ResolvedRun
from moorage.core.run.state import Raise, RunState, Usage


class Spent(NamedTuple):
    """A hard limit that is reached; `limit` is its field of ResolvedLimits."""

    reason: str
    message: str
    limit: str


def spent(
    limits: ResolvedLimits, used: Usage, *, iterations: int | None = None, lived_ms: int | None = None
) -> Spent | None:
    """The first one; None while something is left of each. 0 means 0. What is None isn't known here, and not judged."""
    tokens, cost = limits.tokens_hard, limits.cost_hard_micros
    if tokens is not None and used.tokens >= tokens:
        why = f"the run's token limit of {tokens} is used up ({used.tokens})"
        return Spent("TokensExhausted", why, "tokens_hard")
    if cost is not None and used.cost_micros >= cost:
        why = f"the run's cost limit of ${dollars(cost)} is used up (${dollars(used.cost_micros)})"
        return Spent("CostExhausted", why, "cost_hard_micros")
    most = limits.max_iterations
    if most is not None and iterations is not None and iterations >= most:
        return Spent("IterationsExhausted", f"all {most} iterations of the run are used up", "max_iterations")
    return clock_spent(limits, lived_ms) if lived_ms is not None else None


def clock_spent(limits: ResolvedLimits, lived_ms: int) -> Spent | None:
    """The wall clock alone, after that much time."""
    clock = limits.wall_clock_ms
    if clock is None or lived_ms < clock:
        return None
    return Spent("WallClockExceeded", f"constraints.wallClock of {clock // 1000} s is used up", "wall_clock_ms")


def lived_ms(s: RunState, now: int) -> int:
    """What counts against wallClock: the time since admission, without that in which the run was paused."""
    until = now if s.idle_since is None else s.idle_since
    return max(0, until - s.admitted_at - s.idle_ms) if s.admitted_at is not None else 0


# --- raising ----------------------------------------------------------------------------------------------------------


def in_force(admitted: ResolvedLimits, raised: Iterable[Raise]) -> ResolvedLimits:
    """The admitted limits with what was raised since. What was unlimited stays so."""
    higher = {
        each.limit: each.to
        for each in raised
        if (before := getattr(admitted, each.limit, None)) is not None and each.to > before
    }
    return admitted.model_copy(update=higher) if higher else admitted


def raises(now: ResolvedLimits, wanted: ResolvedLimits | None) -> dict[str, int]:
    """Which limits are wanted higher than they are, by name. None is a limit that isn't spoken of."""
    if wanted is None:
        return {}
    asked = {name: (getattr(now, name), getattr(wanted, name)) for name in sorted(ResolvedLimits.model_fields)}
    return {name: to for name, (at, to) in asked.items() if at is not None and to is not None and to > at}


def widens(now: ResolvedLimits, wanted: ResolvedLimits) -> bool:
    """Whether the limits are the same, or some of them higher."""
    return in_force(now, [Raise(name, to, 0) for name, to in raises(now, wanted).items()]) == wanted


class _Written(NamedTuple):
    """How a user writes a limit."""

    path: str
    spelt: Callable[[int], Any]


WRITTEN: Mapping[str, _Written] = MappingProxyType(
    {
        "max_iterations": _Written("constraints.maxIterations", int),
        "tokens_hard": _Written("constraints.tokens.hard", int),
        "cost_hard_micros": _Written("constraints.cost.hard", dollars),
        "wall_clock_ms": _Written("constraints.wallClock", lambda ms: f"{ms // 1000}s"),
    }
)


def how_to_raise(spec: ResolvedRun, limit: str) -> str:
    """What to do about a limit that is used up, with twice as much as an example."""
    path, spelt = WRITTEN[limit]
    if spec.placement == "local":
        return f"to go on, raise {path} in the manifest and run it again"
    patch: Any = spelt(2 * (getattr(spec.limits, limit) or 1))
    for name in reversed(("spec", *path.split("."))):
        patch = {name: patch}
    return f"to go on, raise it: kubectl patch ar {spec.name} -n {spec.tenant} --type=merge -p '{json.dumps(patch)}'"
