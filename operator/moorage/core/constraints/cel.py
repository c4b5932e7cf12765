"""C4: a user's expression over a context, bounded by what it may say.

It is short, has no loop (no macro that goes over a list or a map) and calls a few functions whose price is that of
their arguments; so evaluating it takes microseconds, and there is nothing to interrupt. All of its names are the
context's, and it holds where nothing is used yet: an expression with a typing error, or one that says the opposite of
what was meant, is refused before the run begins.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import cel

from moorage.api.budget import ResolvedConstraint
from moorage.api.constraints import MAX_EXPRESSION
from moorage.core.constraints.judging import Action, Context, Validation, custom

NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "iterations": "iterations",
        "tokens": "tokens",
        "costMicros": "cost_micros",
        "wallTimeMs": "wall_ms",
        "modelRequests": "model_requests",
        "toolCalls": "tool_calls",
        "effects": "effects",
        "egressBytes": "egress_bytes",
        "diskBytes": "disk_bytes",
        "humanApprovals": "human_approvals",
    }
)
"""What an expression calls the context's numbers."""
WORDS = ("phase", "attempt", "driver", "model")
"""And what of its snapshot has the same name there."""
NAMES = frozenset({*NUMBERS, *WORDS})
LOOPS = re.compile(r"\b(all|exists|existsOne|exists_one|map|filter|transform[A-Za-z]*|bind)\b")
"""Macros. Their names stand in no context, so an expression that has one of these words has no use for it."""
CALLS = frozenset({"size", "startsWith", "endsWith", "contains", "int", "uint", "double", "string"})
OPERATOR = re.compile(r"^[-_!@].*")
ACTIONS: Mapping[str, Action] = MappingProxyType(
    {
        "Warn": Action.WARN_CONTINUE,
        "GracefulExit": Action.GRACEFUL_EXIT,
        "EmergencyStop": Action.EMERGENCY_STOP,
    }
)
VIOLATED = "ConstraintViolated"
FAULTS = (ValueError, TypeError, KeyError, RuntimeError, ArithmeticError)
"""What the evaluator raises, all of them by itself: nothing of ours is called from an expression."""
MUCH = 1_000_000  # of everything, for a trial: three of them can be multiplied
SAID = 200


class BadExpression(ValueError):
    """It can't be judged, or can't be meant. The message says why and what to do."""


@dataclass(frozen=True)
class Expression:
    """A constraint in CEL, compiled."""

    title: str
    text: str
    program: Any
    action: Action
    message: str

    @classmethod
    def compiled(cls, told: ResolvedConstraint) -> Expression:
        """Raise BadExpression."""
        text = told.cel or ""
        if len(text) > MAX_EXPRESSION:
            raise BadExpression(f"the expression has {len(text)} characters, at most {MAX_EXPRESSION} are taken")
        if (loop := LOOPS.search(text)) is not None:
            raise BadExpression(f"{loop[0]} isn't taken: an expression compares numbers and words, and has no loop")
        try:
            program = cel.compile(text)
        except FAULTS as error:
            raise BadExpression(f"the expression can't be read: {_brief(error)}") from None
        _demand_known(program)
        return cls(told.name, text, program, ACTIONS[told.on_violation], told.message or f"{text} is false")

    @property
    def name(self) -> str:
        """Apart from the limits'."""
        return custom(self.title)

    def demand_held(self, context: Context) -> None:
        """Raise BadExpression where it is no condition, or doesn't hold there, where nothing is used yet."""
        try:
            holds = self.program.execute(_variables(context))
            self._try_further(context)
        except FAULTS as error:
            raise BadExpression(f"the expression fails where it is tried: {_brief(error)}") from None
        if not isinstance(holds, bool):
            raise BadExpression(f"the expression is a {type(holds).__name__}, no condition: compare it with something")
        if not holds:
            raise BadExpression(
                "the expression is false where nothing is used yet, so the run would end as it begins: say what must"
                " stay true, not what must not happen"
            )

    def _try_further(self, context: Context) -> None:
        """What the first trial didn't come to: behind `||` and `&&` stands what matters later."""
        with contextlib.suppress(ArithmeticError):
            self.program.execute(_variables(context) | dict.fromkeys(NUMBERS, MUCH))

    def validate(self, context: Context) -> Validation:
        """Whether it is true. What can't be evaluated isn't."""
        try:
            holds = self.program.execute(_variables(context)) is True
        except FAULTS as error:
            return self._violated(f"{self.text} can't be evaluated: {_brief(error)}")
        return Validation(self.name, holds=True) if holds else self._violated(self.message)

    def _violated(self, why: str) -> Validation:
        return Validation(self.name, holds=False, reason=VIOLATED, message=f"constraint {self.title}: {why}")

    def on_violation(self, _: Validation) -> Action:
        """As its author said."""
        return self.action


def names_in(text: str) -> frozenset[str]:
    """What an expression reads; nothing where it can't be read itself."""
    try:
        return frozenset(cel.compile(text).variables())
    except FAULTS:
        return frozenset()


def _demand_known(program: Any) -> None:
    unknown = sorted(set(program.variables()) - NAMES)
    if unknown:
        raise BadExpression(f"{unknown[0]} isn't known here; known are: {', '.join(sorted(NAMES))}")
    calls = sorted(name for name in program.functions() if not OPERATOR.match(name) and name not in CALLS)
    if calls:
        raise BadExpression(f"{calls[0]}() isn't known here; known are: {', '.join(sorted(CALLS))}")


def _variables(context: Context) -> dict[str, Any]:
    numbers = {name: getattr(context, field) for name, field in NUMBERS.items()}
    return numbers | {name: getattr(context.state, name) for name in WORDS}


def _brief(error: Exception) -> str:
    """The first line of what the evaluator says."""
    return str(error).partition("\n")[0][:SAID]
