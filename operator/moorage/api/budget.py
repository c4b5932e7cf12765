"""B1, C7: the limits of a run as its processes know them, and what they tell its agent of what is left."""

from __future__ import annotations

from typing import Literal

from moorage.api.wirebase import Wire


class ResolvedConstraint(Wire):
    """C4: an expression, or an entry point, which says itself what follows."""

    name: str
    cel: str | None = None
    entry_point: str | None = None
    on_violation: Literal["Warn", "GracefulExit", "EmergencyStop"] = "GracefulExit"
    message: str | None = None


class ResolvedLimits(Wire):
    """Limits as integers; None is unlimited, 0 means 0."""

    max_iterations: int | None = None
    tokens_soft: int | None = None
    tokens_hard: int | None = None
    cost_soft_micros: int | None = None
    cost_hard_micros: int | None = None
    wall_clock_ms: int | None = None
    tool_calls_soft: int | None = None
    tool_calls_hard: int | None = None
    effects_soft: int | None = None
    effects_hard: int | None = None
    egress_soft_bytes: int | None = None
    egress_hard_bytes: int | None = None
    disk_soft_bytes: int | None = None
    disk_hard_bytes: int | None = None
    human_approvals_soft: int | None = None
    human_approvals_hard: int | None = None
    custom: tuple[ResolvedConstraint, ...] = ()


class Budget(Wire):
    """C7: what a run has used and has left, by dimension, in the smallest units (see docs/constraints.md).

    `given`: what of `used` was given to child runs, or used by them. `left` names those that have a hard limit, and no
    others: what isn't named is unlimited, and 0 left is nothing left. `ends_at`: when the run's time is over (ms).
    `warnings`: soft limits that are passed and constraints that warn, in words. `exhausted`: why the run is to stop;
    None while it goes on.
    """

    used: dict[str, int] = {}
    given: dict[str, int] = {}
    left: dict[str, int] = {}
    ends_at: int | None = None
    warnings: tuple[str, ...] = ()
    exhausted: str | None = None
