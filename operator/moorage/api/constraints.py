"""Limits of a run, as users write them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage.api.meta import Label
from moorage.api.quantity import Duration, Money, Quantity, Tokens
from moorage.api.rules import Fields, KeyedBy, Rule, exactly_one

MAX_EXPRESSION = 1024
MAX_CUSTOM = 16
OnViolation = Literal["Warn", "GracefulExit", "EmergencyStop"]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]


def _soft_below_hard(message: str) -> Rule:
    """Soft ≤ hard, where both are set and readable (each has a rule of its own for that)."""
    soft, hard = "string(self.soft)", "string(self.hard)"
    cel = (
        f"!has(self.soft) || !has(self.hard) || !isQuantity({soft}) || !isQuantity({hard})"
        f" || quantity({soft}).compareTo(quantity({hard})) <= 0"
    )
    return Rule(message, cel, _ordered, field="soft")


def _ordered(limit: TokenLimit | CostLimit | BytesLimit) -> bool:
    match limit.soft, limit.hard:
        case Tokens() as soft, Tokens() as hard:
            return soft.number <= hard.number
        case Money() as soft, Money() as hard:
            return soft.micros <= hard.micros
        case Quantity() as soft, Quantity() as hard:
            return soft.amount <= hard.amount
    return True


def _fewer_below_more(limit: CountLimit) -> bool:
    return limit.soft is None or limit.hard is None or limit.soft <= limit.hard


class TokenLimit(Fields):
    """Tokens of all kinds: uncached and cached input, cache writes, and output."""

    soft: Tokens | None = Field(default=None, description="From here on the agent is warned, for example 300k.")
    hard: Tokens | None = Field(
        default=None, description="Here the run stops at its next safe point, for example 500k."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _soft_below_hard("tokens.soft must not be above tokens.hard: lower soft or raise hard"),
    )


class CostLimit(Fields):
    """Cost in US dollars."""

    soft: Money | None = Field(default=None, description='From here on the agent is warned, for example "5.00".')
    hard: Money | None = Field(
        default=None, description='Here the run stops at its next safe point, for example "8.00".'
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _soft_below_hard("cost.soft must not be above cost.hard: lower soft or raise hard"),
    )


class CountLimit(Fields):
    """How often. 0 allows none."""

    soft: Count | None = Field(default=None, description="From here on the agent is warned, for example 40.")
    hard: Count | None = Field(default=None, description="So many are allowed, for example 50; 0 allows none.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "soft must not be above hard: lower soft or raise hard",
            "!has(self.soft) || !has(self.hard) || self.soft <= self.hard",
            _fewer_below_more,
            field="soft",
        ),
    )


class BytesLimit(Fields):
    """How many bytes, as a Kubernetes quantity."""

    soft: Quantity | None = Field(default=None, description="From here on the agent is warned, for example 80Mi.")
    hard: Quantity | None = Field(default=None, description="So many are allowed, for example 100Mi.")

    rules: ClassVar[tuple[Rule, ...]] = (_soft_below_hard("soft must not be above hard: lower soft or raise hard"),)


class CustomConstraint(Fields):
    """A constraint of your own: an expression, or a Python entry point of the gateway's installation."""

    name: Label = Field(description="Name of the constraint; unique in the list.")
    cel: Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION)] | None = Field(
        default=None,
        description="CEL expression that must stay true, over iterations, tokens, costMicros, wallTimeMs,"
        " modelRequests, toolCalls, effects, egressBytes, diskBytes, humanApprovals, phase, attempt, driver and model:"
        " for example 'tokens <= 100000 || toolCalls > 0'. This or entryPoint.",
    )
    entry_point: Label | None = Field(
        default=None,
        description="Name in the entry-point group moorage.constraints of what the gateway has installed. This or cel.",
    )
    on_violation: OnViolation | None = Field(
        default=None,
        description="What follows once cel is false: Warn, GracefulExit or EmergencyStop. Default: GracefulExit. An"
        " entry point says so itself.",
    )
    message: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="What people and the agent are told then. Default: the expression."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("set exactly one of cel (an expression) and entryPoint (a name)", "cel", "entryPoint"),
        Rule(
            "onViolation and message go with cel; an entry point says both itself: leave them out",
            "!has(self.entryPoint) || (!has(self.onViolation) && !has(self.message))",
            lambda custom: custom.entry_point is None or (custom.on_violation is None and custom.message is None),
            field="onViolation",
        ),
    )


class Constraints(Fields):
    """Limits that stop a run while it runs. What is left out is unlimited."""

    max_iterations: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Most iterations (decisions with their tool calls). At least 1."
    )
    tokens: TokenLimit | None = Field(default=None, description="Limits on tokens.")
    cost: CostLimit | None = Field(
        default=None,
        description="Limits on the cost of models. The run's ModelProvider must have prices for all models that the run"
        " may use.",
    )
    wall_clock: Duration | None = Field(
        default=None,
        description="Longest time from admission to the agent's end, for example 2h. Time in which the run is paused"
        " doesn't count.",
    )
    tool_calls: CountLimit | None = Field(
        default=None,
        description="Limits on tool calls. Those of an agent that runs its tools itself count once it tells of them.",
    )
    effects: CountLimit | None = Field(
        default=None,
        description="Limits on effects: requests that change something at a host of sandbox.egress, and tunnels to one"
        " that is declared to have effects. One more than hard is refused before it leaves.",
    )
    egress: BytesLimit | None = Field(
        default=None, description="Limits on the bytes to and from the hosts of sandbox.egress, in both directions."
    )
    disk: BytesLimit | None = Field(
        default=None,
        description="Limits on the bytes of the worktree and the agent's own folders, as measured at each safe point."
        " How much the volume can hold at all is sandbox.resources.disk.",
    )
    human_approvals: CountLimit | None = Field(
        default=None,
        description="Limits on how often people are asked by spec.approvals: questions that they answered, and those"
        " that wait for an answer. One more than hard isn't asked.",
    )
    custom: Annotated[tuple[CustomConstraint, ...], Field(max_length=MAX_CUSTOM), KeyedBy("name")] | None = Field(
        default=None, description="Constraints of your own. Names are unique."
    )
