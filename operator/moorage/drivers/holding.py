"""P6: which of an agent's model requests end an iteration, told by the tool results that they carry.

A request that carries a result for the first time comes after a decision with all its tool calls. One that carries none
(the first one, a retry, a title, a count of tokens, a summary that follows its compaction) ends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def carried(held: Held) -> Sequence[Carried] | None:
    """The tool results in it; None where nobody can tell, and nothing where it is no question for a decision."""
    protocol = _protocol(held)
    if protocol is None:
        return ()
    try:
        asked = read(held.body) if held.body is not None else None
    except ValueError:
        return ()  # the model door refuses it
    return protocol.carried(asked) if isinstance(asked, dict) else None


def refuse(held: Held, reason: str, why: str) -> None:
    """In the words of its protocol, as an error that isn't worth a retry."""
    protocol = _protocol(held)
    held.refuse(protocol.error(403, reason, why) if protocol else f"{reason}: {why}".encode())
