"""C1, C2: constraints, and how several of them are judged as one.

A constraint looks at a `Context` and at nothing else: not at the clock, not at the tools that were called, so that the
same context always comes to the same verdict, on every gateway and in every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Protocol


class Action(IntEnum):
    """What follows from a violation, from least to most severe."""

    ALLOW = 0
    WARN_CONTINUE = 1
    GRACEFUL_EXIT = 2
    EMERGENCY_STOP = 3

    @property
    def stops(self) -> bool:
        """The run doesn't go on under it."""
        return self >= Action.GRACEFUL_EXIT


@dataclass(frozen=True)
class Snapshot:
    """Where a run stands: all that a constraint learns of its state beside what was used."""

    phase: str = ""
    attempt: int = 0
    driver: str = ""
    model: str = ""


@dataclass(frozen=True)
class Context:
    """C1: what a run has used, in the smallest units: counts, tokens, micro-dollars, milliseconds, bytes.

    `asking` has the dimensions (see `moorage.core.constraints.limits`) of which something is asked for at this moment,
    and how much of it: asking for more than is left is the violation, and having used all of it isn't.
    """

    iterations: int = 0
    tokens: int = 0
    cost_micros: int = 0
    wall_ms: int = 0
    model_requests: int = 0
    tool_calls: int = 0
    effects: int = 0
    egress_bytes: int = 0
    disk_bytes: int = 0
    human_approvals: int = 0
    state: Snapshot = field(default_factory=Snapshot)
    asking: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Validation:
    """What one constraint says of a context. `reason` is one word for programs, `message` is for people."""

    constraint: str
    holds: bool
    reason: str = ""
    message: str = ""


class Constraint(Protocol):
    """C1. Both methods are pure and quick: they are asked at every decision of an agent."""

    @property
    def name(self) -> str:
        """Unique among a run's constraints."""

    def validate(self, context: Context) -> Validation:
        """Whether it holds."""

    def on_violation(self, validation: Validation) -> Action:
        """What follows where it doesn't."""


def custom(name: str) -> str:
    """What a user's constraint is called among those of its run: never as a limit is."""
    return f"custom.{name}"


Factory = Callable[[], Constraint]
"""What an entry point is: a class or a function that takes nothing and makes a constraint, one for each run."""


@dataclass(frozen=True)
class Judged:
    """A validation, and what follows from it."""

    validation: Validation
    action: Action


@dataclass(frozen=True)
class Verdict:
    """What all constraints came to: each that was asked, in order, and the most severe action among them."""

    judged: tuple[Judged, ...] = ()

    @property
    def action(self) -> Action:
        """Of the most severe violation."""
        return max((each.action for each in self.judged), default=Action.ALLOW)

    @property
    def worst(self) -> Judged | None:
        """The first violation of that action; None where all constraints hold."""
        return next((each for each in self.violations if each.action is self.action), None)

    @property
    def violations(self) -> tuple[Judged, ...]:
        """Those that don't hold, in order."""
        return tuple(each for each in self.judged if not each.validation.holds)


NOTHING_WAIVED: Mapping[str, Action] = MappingProxyType({})


def evaluate(
    constraints: Iterable[Constraint], context: Context, waived: Mapping[str, Action] = NOTHING_WAIVED
) -> Verdict:
    """C2: in the order of registration; the first EMERGENCY_STOP ends it, and nobody behind it is asked.

    C3: a constraint that is `waived`, by its name, warns instead of what a person has let pass, or of less than that;
    of what is graver nobody has said a word.
    """
    judged: list[Judged] = []
    for constraint in constraints:
        validation = constraint.validate(context)
        action = Action.ALLOW if validation.holds else constraint.on_violation(validation)
        if action <= waived.get(validation.constraint, Action.ALLOW):
            action = min(action, Action.WARN_CONTINUE)
        judged.append(Judged(validation, action))
        if action is Action.EMERGENCY_STOP:
            break
    return Verdict(tuple(judged))
