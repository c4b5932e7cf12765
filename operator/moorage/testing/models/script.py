"""What a stand-in says, and what goes wrong before it does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    """A misspelt field of a script is an error, not a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(_Strict):
    """What happens instead of the reply, to the first `times` requests for it in a conversation. In their order.

    `status`: an error in the provider's shape, with Retry-After where given. `cut`: the connection breaks after `after`
    events (streaming) or within the body. `stall`: headers, then silence for `seconds`, then a cut. `drip`: the true
    reply, `seconds` between events or 64-byte pieces. `empty`: a whole answer without any content. `overloaded`: status
    200 and then, as the one event of a stream, an error; where none was asked for, the status for it.
    """

    kind: Literal["status", "cut", "stall", "drip", "empty", "overloaded"]
    times: int = Field(default=1, ge=1)
    status: int = Field(default=500, ge=400, le=599)
    message: str = "scripted fault"
    retry_after_s: float | None = None
    after: int = Field(default=1, ge=0)
    seconds: float = Field(default=3600.0, ge=0)


class ToolCall(_Strict):
    """One call of a tool. `id` is made from the place in the script unless given (give one twice for duplicates).

    `fill` adds arguments of so many characters; `cut` ends the arguments in the middle of their JSON, as a length stop
    does. `namespace`: where the tool was offered as one of several (openai-responses alone has that).
    """

    name: str
    namespace: str | None = None
    input: dict[str, Any] = {}
    id: str | None = None
    fill: dict[str, int] = {}
    cut: bool = False

    def arguments(self) -> dict[str, Any]:
        """What the model asks for."""
        return self.input | {name: "x" * size for name, size in self.fill.items()}

    def encoded(self) -> str:
        """The same as JSON text, which is where a length stop cuts."""
        text = json.dumps(self.arguments())
        return text[: len(text) // 2] if self.cut else text


class Usage(_Strict):
    """Tokens as Anthropic counts them: `input_tokens` leaves out what came from, or went into, the cache.

    `reasoning_tokens` are part of `output_tokens`; Anthropic doesn't tell them apart.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    reasoning_tokens: int = 0


class Reply(_Strict):
    """One decision. `stop_reason` unless given: tool_use where there are tools, else end_turn."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop_reason: str | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def stop(self) -> str:
        """Why it ends."""
        return self.stop_reason or ("tool_use" if self.tools else "end_turn")

    def fault(self, attempt: int) -> Fault | None:
        """What the request number `attempt` (from 0) for this reply meets."""
        for fault in self.faults:
            if attempt < fault.times:
                return fault
            attempt -= fault.times
        return None


class Conversation(_Strict):
    """Replies for conversations whose first message of the user holds `when`."""

    when: str
    replies: tuple[Reply, ...] = Field(min_length=1)


class Script(_Strict):
    """All that a stand-in says: `conversations` in their order, and `replies` for whatever fits none of them.

    `by` says which reply comes next. `steps`: by how far the conversation is, as the request tells it. `requests`: by
    how many different requests were answered, for agents that shorten what they send.
    """

    replies: tuple[Reply, ...] = Field(min_length=1)
    conversations: tuple[Conversation, ...] = ()
    by: Literal["steps", "requests"] = "steps"

    def choose(self, opening: str, done: int) -> tuple[int, Reply]:
        """The reply after `done` steps, or requests, and its number; past the end the last one is repeated.

        A step is one answered tool call, or one answer without any.
        """
        fitting = (c.replies for c in self.conversations if c.when in opening)
        replies: Sequence[Reply] = next(fitting, self.replies)
        if self.by == "requests":
            number = min(done, len(replies) - 1)
            return number, replies[number]
        for number, (end, reply) in enumerate(_ends(replies)):
            if done < end:
                return number, reply
        return len(replies) - 1, replies[-1]


def _ends(replies: Sequence[Reply]) -> Iterator[tuple[int, Reply]]:
    end = 0
    for reply in replies:
        end += max(1, sum(not tool.cut for tool in reply.tools))  # a call that was cut is never answered
        yield end, reply


def load(path: Path) -> Script:
    """Read a script. Raises ValidationError with the place of each mistake."""
    return Script.model_validate(yaml.safe_load(path.read_text()))
