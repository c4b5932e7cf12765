"""Limits of a run, as users write them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from moorage.api.quantity import Duration, Money, Tokens
from moorage.api.rules import Fields, Rule


def _soft_below_hard(message: str) -> Rule:
    """Soft ≤ hard, where both are set and readable (each has a rule of its own for that)."""
    soft, hard = "string(self.soft)", "string(self.hard)"
    cel = (
        f"!has(self.soft) || !has(self.hard) || !isQuantity({soft}) || !isQuantity({hard})"
        f" || quantity({soft}).compareTo(quantity({hard})) <= 0"
    )
    return Rule(message, cel, _ordered, field="soft")


def _ordered(limit: TokenLimit | CostLimit) -> bool:
    match limit.soft, limit.hard:
        case Tokens() as soft, Tokens() as hard:
            return soft.number <= hard.number
        case Money() as soft, Money() as hard:
            return soft.micros <= hard.micros
    return True


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
