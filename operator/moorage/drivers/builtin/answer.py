"""A model's answer, made safe to act on: pure.

Provider bytes are not trusted: whatever shape they have, what comes out here is either a `Answer` whose calls have
unique ids and plain JSON arguments, or a `Malformed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moorage.drivers.untrusted import read

CUT = "max_tokens"
DECLINED = "refusal"
NO_ROOM = "model_context_window_exceeded"


class Malformed(ValueError):
    """The answer is none, or nested past all reason."""


@dataclass(frozen=True)
class Call:
    """One tool call; `id` is the provider's, made unique within the answer."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One decision. `usage` in the names of the budget vector; `stop` is why it ended: CUT, DECLINED, NO_ROOM, or the
    provider's word for its own end. One that is `replayed` comes from the journal and was billed before.
    """

    text: str
    calls: tuple[Call, ...]
    stop: str
    usage: Mapping[str, int]
    replayed: bool = False

    @property
    def cut(self) -> bool:
        """It ended by the limit of output tokens, not by its own word."""
        return self.stop == CUT

    @property
    def empty(self) -> bool:
        """It says nothing at all."""
        return not self.calls and not self.text.strip()

    def without_cut_call(self) -> Answer:
        """The last call of a cut answer may lack the end of its arguments, so it isn't one."""
        return replace(self, calls=self.calls[:-1]) if self.cut else self


def opened(body: bytes) -> dict[str, Any]:
    """The object that an answer is. Raises Malformed."""
    try:
        told = read(body)
    except ValueError as error:
        raise Malformed(str(error) or type(error).__name__) from None
    if not isinstance(told, dict):
        raise Malformed("the answer is no object")
    return told


def calls(given: Iterable[tuple[object, object, object]]) -> Iterator[Call]:
    """Of their ids, names and arguments, whatever these are."""
    seen: set[str] = set()
    for index, (call_id, name, arguments) in enumerate(given):
        told = text(call_id)
        unique = told if told and told not in seen else f"call_{index}"
        seen.add(unique)
        yield Call(unique, text(name), arguments if isinstance(arguments, dict) else {})


def counted(vector: Mapping[str, int]) -> dict[str, int]:
    """What was used at all."""
    return {name: amount for name, amount in vector.items() if amount}


def text(value: object) -> str:
    """The string; an empty one where it is none."""
    return value if isinstance(value, str) else ""
