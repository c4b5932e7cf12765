"""B3: which hard limit of a run is reached, said the same at the model door, in the conditions and at the run's stop;
and what a raise of one comes to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from moorage.api.budget import ResolvedLimits
from moorage.api.quantity import dollars
from moorage.api.wire import ResolvedRun
from moorage.core.constraints.context import used
from moorage.core.constraints.judging import Context, Verdict, evaluate
from moorage.core.constraints.limits import COST, DIMENSIONS, ITERATIONS, TOKENS, Dimension, alone, metered, timed
from moorage.core.run.state import Raise, RunState

NUMBERS = sorted(ResolvedLimits.model_fields.keys() - {"custom"})
"""What can be raised."""


class Spent(NamedTuple):
    """A hard limit that is reached; `limit` is its field of ResolvedLimits."""

    reason: str
    message: str
    limit: str


def spent(
    limits: ResolvedLimits, s: RunState, *, iterations: int | None = None, lived_ms: int | None = None
) -> Spent | None:
    """The first that leaves nothing for another decision, or for what was refused last; None where there is none. 0
    means 0. What is None isn't known here, and not judged.
    """
    asking = {v.constraint: 1 for v in s.violations} | {TOKENS.name: 1, COST.name: 1}
    if iterations is not None:
        asking[ITERATIONS.name] = 1
    context = used(s, iterations=iterations or 0, wall_ms=lived_ms or 0, asking=asking)
    found = _first(evaluate(metered(limits), context))
    return found or (clock_spent(limits, lived_ms) if lived_ms is not None else None)


def spent_of(dimension: Dimension, limits: ResolvedLimits, s: RunState) -> Spent | None:
    """Whether there is none left of that dimension, whatever is left of others."""
    return _first(evaluate(alone(limits, dimension), used(s, iterations=0, wall_ms=0, asking={dimension.name: 1})))


def clock_spent(limits: ResolvedLimits, lived_ms: int) -> Spent | None:
    """The wall clock alone, after that much time."""
    return _first(evaluate(timed(limits), Context(wall_ms=lived_ms)))


def _first(verdict: Verdict) -> Spent | None:
    found = next((each.validation for each in verdict.judged if each.action.stops), None)
    return Spent(found.reason, found.message, DIMENSIONS[found.constraint].limit) if found else None


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
    asked = {name: (getattr(now, name), getattr(wanted, name)) for name in NUMBERS}
    return {name: to for name, (at, to) in asked.items() if at is not None and to is not None and to > at}


def widens(now: ResolvedLimits, wanted: ResolvedLimits) -> bool:
    """Whether the limits are the same, or some of them higher."""
    return in_force(now, [Raise(name, to, 0) for name, to in raises(now, wanted).items()]) == wanted


def ineffective(now: ResolvedLimits, wanted: ResolvedLimits | None) -> tuple[str, ...]:
    """How a user writes those limits that were asked for after admission and don't count: tighter ones than there are,
    and those of what is unlimited.
    """
    if wanted is None:
        return ()
    asked = ((name, getattr(now, name), getattr(wanted, name)) for name in NUMBERS)
    return tuple(WRITTEN[name].path for name, at, to in asked if to is not None and (at is None or to < at))


class _Written(NamedTuple):
    """How a user writes a limit."""

    path: str
    spelt: Callable[[int], Any]


WRITTEN: Mapping[str, _Written] = MappingProxyType(
    {
        "max_iterations": _Written("constraints.maxIterations", int),
        "tokens_soft": _Written("constraints.tokens.soft", int),
        "tokens_hard": _Written("constraints.tokens.hard", int),
        "cost_soft_micros": _Written("constraints.cost.soft", dollars),
        "cost_hard_micros": _Written("constraints.cost.hard", dollars),
        "tool_calls_soft": _Written("constraints.toolCalls.soft", int),
        "tool_calls_hard": _Written("constraints.toolCalls.hard", int),
        "effects_soft": _Written("constraints.effects.soft", int),
        "effects_hard": _Written("constraints.effects.hard", int),
        "egress_soft_bytes": _Written("constraints.egress.soft", str),
        "egress_hard_bytes": _Written("constraints.egress.hard", str),
        "disk_soft_bytes": _Written("constraints.disk.soft", str),
        "disk_hard_bytes": _Written("constraints.disk.hard", str),
        "human_approvals_soft": _Written("constraints.humanApprovals.soft", int),
        "human_approvals_hard": _Written("constraints.humanApprovals.hard", int),
        "wall_clock_ms": _Written("constraints.wallClock", lambda ms: f"{ms // 1000}s"),
    }
)


def bounded_by(spec: ResolvedRun, limit: str) -> str | None:
    """C4: the ResourceConstraint whose limit it is; None where it is the run's own."""
    taken, path = spec.contract, WRITTEN[limit].path
    if taken is None or path not in taken.set_by or getattr(spec.limits, limit) is None:
        return None
    own = getattr(taken.own, limit)
    return f"rcon/{taken.set_by[path]}" if own is None or own > getattr(spec.limits, limit) else None


def how_to_raise(spec: ResolvedRun, limit: str) -> str:
    """What to do about a limit that is used up, with twice as much as an example."""
    path, spelt = WRITTEN[limit]
    if (who := bounded_by(spec, limit)) is not None:
        return f"to go on, have {path} of {who} raised, which allows {spelt(getattr(spec.limits, limit) or 0)}"
    if spec.placement == "local":
        return f"to go on, raise {path} in the manifest and run it again"
    patch: Any = spelt(2 * (getattr(spec.limits, limit) or 1))
    for name in reversed(("spec", *path.split("."))):
        patch = {name: patch}
    return f"to go on, raise it: kubectl patch ar {spec.name} -n {spec.tenant} --type=merge -p '{json.dumps(patch)}'"
