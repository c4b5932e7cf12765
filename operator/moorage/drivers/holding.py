"""P6: which of an agent's model requests end an iteration, told by what they carry.

A request that carries a tool's result for the first time comes after a decision with all its tool calls. One in which,
for the first time, somebody answers the model's own words comes after a decision that called none: so goes on who has
a hook or an extension that won't let it stop. Any other (the first one, a retry, a title, a count of tokens, a summary
that follows its compaction) ends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from moorage.core.models.protocol import Carried, Protocol
from moorage.core.models.spoken import PROTOCOLS
from moorage.drivers.port import Held
from moorage.drivers.untrusted import read

PREFIX = "/model"
BY_PATH = MappingProxyType({f"{PREFIX}{each.path}": each for each in PROTOCOLS.values()})
STOPPING = "the agent is being stopped, and no further decision is asked for"


def decides(held: Held) -> bool:
    """It asks for a decision."""
    return _protocol(held) is not None


def _protocol(held: Held) -> Protocol | None:
    return BY_PATH.get(held.path.partition("?")[0])


@dataclass(frozen=True)
class Carrying:
    """What a request brings: tool results, None where nobody can tell, and answers to the model's own words. `acts`:
    what it asks for may be a call, which no title or summary may.
    """

    results: Sequence[Carried] | None = ()
    replied: frozenset[str] = frozenset()
    acts: bool = False


def carrying(held: Held) -> Carrying:
    """Nothing where it is no question for a decision."""
    protocol = _protocol(held)
    if protocol is None:
        return Carrying()
    try:
        asked = read(held.body) if held.body is not None else None
    except ValueError:
        return Carrying()  # the model door refuses it
    if not isinstance(asked, dict):
        return Carrying(None)
    return Carrying(protocol.carried(asked), protocol.replied(asked), bool(asked.get("tools")))


class Conversation:
    """Which of the model's words have been answered, as the requests of one agent show it."""

    def __init__(self) -> None:
        self._known, self._length = frozenset[str](), 0

    def grown(self, replied: frozenset[str]) -> bool:
        """Whether somebody has answered words since. Who shortens a conversation writes it anew: nothing follows."""
        return bool(replied - self._known) and len(replied) > self._length

    def heard(self, replied: frozenset[str]) -> None:
        """What a request shows; one of something else (a title) shows nothing new."""
        if replied - self._known:
            self._known = self._known | replied if len(replied) > self._length else replied
            self._length = len(replied)


def refuse(held: Held, reason: str, why: str) -> None:
    """In the words of its protocol, as an error that isn't worth a retry."""
    protocol = _protocol(held)
    held.refuse(protocol.error(403, reason, why) if protocol else f"{reason}: {why}".encode())
