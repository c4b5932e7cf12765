"""N1: what may be decided where an agent has stopped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """Nothing speaks against the end: it is the agent's own."""


@dataclass(frozen=True)
class Terminate:
    """It ends here, for that reason, whatever the agent would do next. `judged`: what is there is proposed all the
    same, since acceptance decides in any case.
    """

    reason: str
    message: str
    judged: bool = False


@dataclass(frozen=True)
class Nudge:
    """It goes on, and is told so. `kind` names the link of the chain that wants it."""

    kind: str
    text: str


@dataclass(frozen=True)
class CompactAndRetry:
    """Nothing fits its context any more: make that smaller and ask again."""


@dataclass(frozen=True)
class Escalate:
    """No further turn would help; a person has to look at it."""

    reason: str
    message: str


Decision = Pass | Terminate | Nudge | CompactAndRetry | Escalate
