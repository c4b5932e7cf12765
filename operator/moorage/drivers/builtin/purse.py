"""B3, C7: what one conversation has used of its run's limits, and what is to be said of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from moorage.api.quantity import dollars
from moorage.api.wire import ResolvedLimits
from moorage.core.models.usage import total
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import Answer
from moorage.drivers.limits import spent

FEW_ITERATIONS = 3
SHORT = 0.2  # of the hard limit


@dataclass
class Purse:
    """`done` iterations, `tokens` and micro-dollars, those of earlier attempts with them."""

    limits: ResolvedLimits
    tokens: int
    done: int
    spent_micros: int = 0

    def take(self, answer: Answer) -> None:
        """An answer was paid for."""
        self.tokens += total(answer.usage)
        self.spent_micros = answer.spent_micros or self.spent_micros

    def spent(self) -> str | None:
        """A hard limit that is reached."""
        return spent(self.limits, self.done, self.tokens)

    def warnings(self) -> Iterator[str]:
        """What is left when little is, and that a soft limit is passed."""
        limits, left = self.limits, dict[str, str]()
        if limits.max_iterations is not None and limits.max_iterations - self.done <= FEW_ITERATIONS:
            left["steps"] = str(limits.max_iterations - self.done)
        for what, used, soft, hard, spelt in self._amounts():
            over = soft is not None and used >= soft
            if hard is None and over:
                yield prompt.over_soft(what)
            elif hard is not None and (over or hard - used <= hard * SHORT):
                left[what] = spelt(max(0, hard - used))
        if told := prompt.remaining(left):
            yield told

    def _amounts(self) -> Iterator[tuple[str, int, int | None, int | None, Callable[[int], str]]]:
        limits = self.limits
        yield "tokens", self.tokens, limits.tokens_soft, limits.tokens_hard, str
        yield "dollars", self.spent_micros, limits.cost_soft_micros, limits.cost_hard_micros, dollars
