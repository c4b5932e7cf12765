"""A model's answer, made safe to act on: pure.

Provider bytes are not trusted: whatever shape they have, what comes out here is either a `Answer` whose calls have
unique ids and plain JSON arguments, or a `Malformed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moorage.core.models.usage import anthropic
from moorage.drivers.untrusted import read


class Malformed(ValueError):
    """The answer is no message, or nested past all reason."""


@dataclass(frozen=True)
class Call:
    """One tool call; `id` is the provider's, made unique within the answer."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One decision. `usage` in the names of the budget vector; `stop` is the provider's stop reason. One that is
    `replayed` comes from the journal and was billed before. `spent_micros`: what the run had cost before it, where its
    cost is limited.
    """

    text: str
    calls: tuple[Call, ...]
    stop: str
    usage: Mapping[str, int]
    replayed: bool = False
    spent_micros: int | None = None

    @property
    def cut(self) -> bool:
        """It ended by the limit of output tokens, not by its own word."""
        return self.stop == "max_tokens"

    @property
    def empty(self) -> bool:
        """It says nothing at all."""
        return not self.calls and not self.text.strip()

    def without_cut_call(self) -> Answer:
        """The last call of a cut answer may lack the end of its arguments, so it isn't one."""
        return replace(self, calls=self.calls[:-1]) if self.cut else self

    def content(self) -> list[dict[str, Any]]:
        """The answer as it is sent back in the next request."""
        text = [{"type": "text", "text": self.text}] if self.text.strip() else []
        calls = [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in self.calls]
        return [*text, *calls]


def parse(body: bytes) -> Answer:
    """Read an answer. Raises Malformed."""
    try:
        told = read(body)
    except ValueError as error:
        raise Malformed(str(error) or type(error).__name__) from None
    if not isinstance(told, dict) or told.get("type") != "message" or not isinstance(told.get("content"), list):
        raise Malformed("the answer is no message")
    blocks = [block for block in told["content"] if isinstance(block, dict)]
    text = "".join(_text(block.get("text")) for block in blocks if block.get("type") == "text")
    return Answer(text.rstrip(), tuple(_calls(blocks)), str(told.get("stop_reason")), _usage(told.get("usage")))


def _calls(blocks: list[dict[str, Any]]) -> Iterator[Call]:
    seen: set[str] = set()
    for index, block in enumerate(block for block in blocks if block.get("type") == "tool_use"):
        given, arguments = _text(block.get("id")), block.get("input")
        unique = given if given and given not in seen else f"call_{index}"
        seen.add(unique)
        yield Call(unique, _text(block.get("name")), arguments if isinstance(arguments, dict) else {})


def _usage(usage: object) -> dict[str, int]:
    return {name: amount for name, amount in anthropic(usage).items() if amount}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
