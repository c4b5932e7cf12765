"""C2, B1: the limits of a run as constraints, one table for all dimensions.

Most dimensions are used up: asking for more than is left violates the limit, and 0 left means 0. A level, such as the
disk's, violates it by being above. Nobody asks for time: it passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from moorage.api.budget import ResolvedLimits
from moorage.api.quantity import dollars
from moorage.core.constraints.judging import Action, Constraint, Context, Validation

Kind = Literal["used", "level", "time"]
Limit = Callable[[ResolvedLimits], int | None]
"""None is unlimited, 0 is 0."""


@dataclass(frozen=True)
class Dimension:
    """One of what a run may use. `uses` is the context's field, `limit` the hard limit's of ResolvedLimits; `hard` and
    `soft` find its limits.
    """

    name: str
    uses: str
    limit: str
    noun: str
    reason: str
    hard: Limit
    soft: Limit = lambda _: None
    kind: Kind = "used"
    action: Action = Action.GRACEFUL_EXIT
    spelt: Callable[[int], str] = str

    def used(self, context: Context) -> int:
        """How much of it."""
        amount: int = getattr(context, self.uses)
        return amount

    def left(self, limits: ResolvedLimits, context: Context) -> int | None:
        """What is left, at least 0; None where it is unlimited."""
        most = self.hard(limits)
        return None if most is None else max(0, most - self.used(context))


def _dollars(micros: int) -> str:
    return f"${dollars(micros)}"


def _bytes(amount: int) -> str:
    return f"{amount} bytes"


def _seconds(ms: int) -> str:
    return f"{ms // 1000} s"


ITERATIONS = Dimension(
    "iterations",
    "iterations",
    "max_iterations",
    "iteration",
    "IterationsExhausted",
    lambda limits: limits.max_iterations,
)
TOKENS = Dimension(
    "tokens",
    "tokens",
    "tokens_hard",
    "token",
    "TokensExhausted",
    lambda limits: limits.tokens_hard,
    lambda limits: limits.tokens_soft,
)
COST = Dimension(
    "cost",
    "cost_micros",
    "cost_hard_micros",
    "cost",
    "CostExhausted",
    lambda limits: limits.cost_hard_micros,
    lambda limits: limits.cost_soft_micros,
    spelt=_dollars,
)
TOOL_CALLS = Dimension(
    "toolCalls",
    "tool_calls",
    "tool_calls_hard",
    "tool call",
    "ToolCallsExhausted",
    lambda limits: limits.tool_calls_hard,
    lambda limits: limits.tool_calls_soft,
)
EFFECTS = Dimension(
    "effects",
    "effects",
    "effects_hard",
    "effect",
    "EffectsExhausted",
    lambda limits: limits.effects_hard,
    lambda limits: limits.effects_soft,
)
EGRESS = Dimension(
    "egress",
    "egress_bytes",
    "egress_hard_bytes",
    "egress",
    "EgressExhausted",
    lambda limits: limits.egress_hard_bytes,
    lambda limits: limits.egress_soft_bytes,
    spelt=_bytes,
)
DISK = Dimension(
    "disk",
    "disk_bytes",
    "disk_hard_bytes",
    "disk",
    "DiskExhausted",
    lambda limits: limits.disk_hard_bytes,
    lambda limits: limits.disk_soft_bytes,
    kind="level",
    spelt=_bytes,
)
HUMAN_APPROVALS = Dimension(
    "humanApprovals",
    "human_approvals",
    "human_approvals_hard",
    "human approval",
    "HumanApprovalsExhausted",
    lambda limits: limits.human_approvals_hard,
    lambda limits: limits.human_approvals_soft,
)
WALL_CLOCK = Dimension(
    "wallClock",
    "wall_ms",
    "wall_clock_ms",
    "wall clock",
    "WallClockExceeded",
    lambda limits: limits.wall_clock_ms,
    kind="time",
    action=Action.EMERGENCY_STOP,
    spelt=_seconds,
)
METERED = (ITERATIONS, TOKENS, COST, TOOL_CALLS, EFFECTS, EGRESS, DISK, HUMAN_APPROVALS)
"""In the order in which they are judged. Time is judged by who sees it pass: the operator's plan."""

SHARED: tuple[Dimension, ...] = tuple(each for each in METERED if each.kind == "used")
"""The dimensions that a parent divides among its children and itself."""

DIMENSIONS: Mapping[str, Dimension] = MappingProxyType({each.name: each for each in (*METERED, WALL_CLOCK)})
DECISION: Mapping[str, int] = MappingProxyType({"iterations": 1, "tokens": 1, "cost": 1})
"""What a request to a model asks for: a token and a micro-dollar at least; the rest of it is reserved apart."""
SOFT = "SoftLimitPassed"


@dataclass(frozen=True)
class HardLimit:
    """MaxIteration, TokenBudget, Timeout and their kin."""

    dimension: Dimension
    most: int

    @property
    def name(self) -> str:
        """The dimension's."""
        return self.dimension.name

    def validate(self, context: Context) -> Validation:
        """Whether nothing is asked for that isn't there."""
        of, used = self.dimension, self.dimension.used(context)
        asked = context.asking.get(of.name, 0)
        holds = not self._passed(used, asked)
        return Validation(self.name, holds, "" if holds else of.reason, "" if holds else self._why(used, asked))

    def _passed(self, used: int, asked: int) -> bool:
        match self.dimension.kind:
            case "used":
                return asked > 0 and used + asked > self.most
            case "level":
                return used > self.most
            case "time":
                return used >= self.most

    def _why(self, used: int, asked: int) -> str:
        of = self.dimension
        if of.kind == "time":
            return f"constraints.{of.name} of {of.spelt(self.most)} is used up"
        limit = f"the run's {of.noun} limit of {of.spelt(self.most)}"
        if used < self.most:
            return f"{limit} doesn't allow for {of.spelt(asked)} more ({of.spelt(used)} are used)"
        return f"{limit} is used up ({of.spelt(used)})"

    def on_violation(self, _: Validation) -> Action:
        """The dimension's."""
        return self.dimension.action


@dataclass(frozen=True)
class SoftLimit:
    """From here on the agent is warned (B3)."""

    dimension: Dimension
    most: int

    @property
    def name(self) -> str:
        """Apart from the hard limit of the same dimension."""
        return f"{self.dimension.name}.soft"

    def validate(self, context: Context) -> Validation:
        """Whether less was used."""
        of, used = self.dimension, self.dimension.used(context)
        if used < self.most:
            return Validation(self.name, holds=True)
        why = f"the soft {of.noun} limit of {of.spelt(self.most)} is passed ({of.spelt(used)})"
        return Validation(self.name, holds=False, reason=SOFT, message=why)

    def on_violation(self, _: Validation) -> Action:
        """Only a warning."""
        return Action.WARN_CONTINUE


def metered(limits: ResolvedLimits) -> tuple[Constraint, ...]:
    """The limits on what is used, but for time: of each dimension the soft one, then the hard one."""
    return tuple(_of(limits, METERED))


def timed(limits: ResolvedLimits) -> tuple[Constraint, ...]:
    """The limit on time."""
    return tuple(_of(limits, (WALL_CLOCK,)))


def alone(limits: ResolvedLimits, dimension: Dimension) -> tuple[Constraint, ...]:
    """The limits on one dimension."""
    return tuple(_of(limits, (dimension,)))


def _of(limits: ResolvedLimits, dimensions: tuple[Dimension, ...]) -> Iterator[Constraint]:
    for dimension in dimensions:
        if (soft := dimension.soft(limits)) is not None:
            yield SoftLimit(dimension, soft)
        if (hard := dimension.hard(limits)) is not None:
            yield HardLimit(dimension, hard)


def with_more(context: Context, **more: int) -> Context:
    """As if so much more had been used. Raises AttributeError for what no context has."""
    return replace(context, **{name: getattr(context, name) + amount for name, amount in more.items()})
