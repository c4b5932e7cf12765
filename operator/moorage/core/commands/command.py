"""A command as a run's state holds it: from its admission to its end, which is told once and never changes (M2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from moorage.api.commands import CommandRequest, Receipt
from moorage.core.journal.canonical import canonical_hash
from moorage.core.journal.record import BlobRef

KEPT_CLOSED: Final = 32  # the last ones; the records of all of them stay in the journal
MOST_OPEN: Final = 32  # of one type; messages count together
MOST_JOINED: Final = 256  # open ones that ask for what another one has asked for
JOINING: Final = frozenset({"Pause", "Resume", "Cancel"})
MESSAGES: Final = frozenset({"Steer", "FollowUp"})
WAY: Final = frozenset({"authority", "surface", "input_source"})  # how a request came in


@dataclass(frozen=True)
class Command:
    """One command. `offset` is that of the record that admitted or rejected it, `digest` of what was asked, `text`
    where the words of a message lie; `at` as recorded (ms); `joins` the open one that had asked for the same.
    """

    command_id: str
    type: str
    digest: str
    state: str  # a CommandState, as text: plain data
    offset: int
    issuer: str
    at: int
    reason: str = ""
    message: str = ""
    text: BlobRef | None = None
    joins: str = ""

    @property
    def open(self) -> bool:
        """Something is still to become of it."""
        return self.state == "Accepted"

    @property
    def waits(self) -> bool:
        """M3: a message that the agent hasn't got."""
        return self.open and self.type in MESSAGES

    def receipt(self) -> Receipt:
        """What its author is told."""
        told = ("command_id", "type", "state", "reason", "message", "offset", "issuer", "at")
        return Receipt.model_validate({name: getattr(self, name) for name in told})


def known(commands: Iterable[Command], command_id: str) -> Command | None:
    """The command of that id."""
    return next((each for each in commands if each.command_id == command_id), None)


def crowd(commands: Iterable[Command], kind: str) -> int:
    """How many open ones take up the room of that type. Messages share one, and every other type has its own: what the
    agent hasn't heard keeps nobody from stopping the run. Those that join another one take up none.
    """
    shared = MESSAGES if kind in MESSAGES else {kind}
    return sum(each.open and each.type in shared and not each.joins for each in commands)


def leading(commands: Iterable[Command], kind: str) -> str:
    """The id of the open command that one of that type joins, where it would begin nothing new: the same record closes
    both. Empty where there is none.
    """
    if kind not in JOINING:
        return ""
    return next((each.command_id for each in commands if each.open and each.type == kind and not each.joins), "")


def kept(commands: tuple[Command, ...], fresh: Collection[str]) -> tuple[Command, ...]:
    """All open ones, the `fresh` that this record has closed, however many, and the last that were closed before: of
    those that had joined another one that one's end tells.
    """
    older = sorted((each for each in commands if not each.open and each.command_id not in fresh), key=_leads)
    room = max(0, KEPT_CLOSED - len(fresh))
    dropped = frozenset(each.command_id for each in older[: max(0, len(older) - room)])
    return tuple(each for each in commands if each.command_id not in dropped) if dropped else commands


def _leads(command: Command) -> bool:
    return not command.joins


def forgetful(commands: Iterable[Command]) -> bool:
    """Whether there may have been closed ones that aren't kept any more."""
    return sum(not each.open for each in commands) >= KEPT_CLOSED


def last_waiting(commands: Iterable[Command]) -> int:
    """The offset of the newest message that waits for the agent; -1 where none does."""
    return max((each.offset for each in commands if each.waits), default=-1)


def digest_of(asked: CommandRequest) -> str:
    """What is asked, and by whom: the same id with another digest is another command. Neither how it came in nor what a
    later version may ask besides makes it another one.
    """
    content: dict[str, Any] = asked.model_dump(mode="json", exclude={"command_id", *WAY}, exclude_defaults=True)
    return canonical_hash(content)
