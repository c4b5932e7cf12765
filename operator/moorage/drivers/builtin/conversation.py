"""What the loop needs of a protocol: a conversation that it can have without knowing in whose words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from moorage.core.models.protocol import Protocol as Spoken
from moorage.drivers.builtin.answer import Answer, Call
from moorage.drivers.builtin.context import Entries, Said
from moorage.drivers.builtin.tools import Definition
from moorage.drivers.telling import ToolResult

MAX_OUTPUT_TOKENS = 8_192
NOTHING = "(nothing)"  # a result without text: some providers refuse an empty one


class Conversation(Protocol):
    """All that was said. It grows at its end alone, so that providers can cache what comes before."""

    @property
    def spoken(self) -> Spoken:
        """The protocol."""

    @property
    def no_tools(self) -> object:
        """What `tool_choice` is where no tool may be called."""

    def request(self, model: str, tools: Sequence[Definition]) -> dict[str, Any]:
        """What to ask, the whole conversation with it."""

    def resume(self, request: Mapping[str, Any]) -> None:
        """Be where this request of `request` was made, in whichever attempt."""

    def say(self, text: str) -> None:
        """As the user."""

    def entries(self) -> Entries:
        """All that was said, in nobody's words. What a protocol doesn't keep (whether a call failed) is lost."""

    def rebuild(self, entries: Entries) -> None:
        """Have only that been said."""

    def heard(self, answer: Answer) -> None:
        """The model's answer, as the loop acts on it; one that isn't empty."""

    def results(self, results: Sequence[tuple[Call, ToolResult]]) -> None:
        """Of all calls of the answer that was heard last, in their order (M6)."""

    def read(self, body: bytes) -> Answer:
        """Raise Malformed where the bytes are no answer."""


def said_again(talk: Conversation, entries: Entries) -> None:
    """Say all of it to a conversation in which nothing was said."""
    for entry in entries:
        if isinstance(entry, Said):
            talk.say(entry.text)
            continue
        talk.heard(Answer(entry.text, tuple(call for call, _ in entry.done), "", {}))
        if entry.done:
            talk.results(entry.done)
