"""B3, C7: what the loop may still spend, and what its model is told of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moorage.api.budget import ResolvedLimits
from moorage.api.quantity import dollars
from moorage.core.constraints.limits import COST, DIMENSIONS, ITERATIONS, TOKENS
from moorage.core.models.usage import total
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import Answer
from moorage.drivers.limits import raised, spent
from moorage.drivers.port import Host

FEW_ITERATIONS = 3
SHORT = 0.2  # of the hard limit
UNITS = {
    "iterations": "steps",
    "toolCalls": "tool calls",
    "egress": "bytes of egress",
    "disk": "bytes on disk",
    "humanApprovals": "questions to people",
}


@dataclass
class Purse:
    """`tokens` and `done` (iterations) are the loop's own count; all else is as the gateway told the host."""

    limits: ResolvedLimits
    host: Host
    tokens: int = 0
    done: int = 0
    told: set[str] = field(default_factory=set)

    def take(self, answer: Answer) -> None:
        """An answer was paid for."""
        self.tokens += total(answer.usage)

    def spent(self) -> str | None:
        """Why there is no further decision; None while there may be one."""
        return self.host.budget.exhausted or spent(self._limits, self.done, self.tokens)

    @property
    def _limits(self) -> ResolvedLimits:
        return raised(self.limits, self.host.budget)

    def warnings(self) -> Iterator[str]:
        """For the model: each soft limit and constraint once, and what is left wherever that is little."""
        for warning in self.host.budget.warnings:
            if (what := warning.partition(" (")[0]) not in self.told:  # the amount behind it changes
                self.told.add(what)
                yield prompt.warned(warning)
        if said := prompt.remaining(dict(self._short())):
            yield said

    def _short(self) -> Iterator[tuple[str, str]]:
        for name, left in self._left().items():
            of = DIMENSIONS[name]
            most, soft = of.hard(self._limits) or 0, of.soft(self._limits)
            few = left <= FEW_ITERATIONS if of is ITERATIONS else left <= most * SHORT
            if few or (soft is not None and most - left >= soft):
                yield ("dollars", dollars(left)) if name == COST.name else (UNITS.get(name, name), str(left))

    def _left(self) -> dict[str, int]:
        """By our own count where there is one, since that is fresher."""
        left = {name: left for name, left in self.host.budget.left.items() if name in DIMENSIONS}
        if (most := self._limits.max_iterations) is not None:
            left[ITERATIONS.name] = max(0, most - self.done)
        if (most := self._limits.tokens_hard) is not None:
            left[TOKENS.name] = max(0, most - self.tokens)
        return left
