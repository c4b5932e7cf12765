"""What the lines of `pi --mode json` mean. Pure; seen with pi 0.73.

pi tells each turn (one decision and its tool calls) with its usage. An end with an error is none yet: pi may try again,
and says nothing more where it doesn't.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moorage.core.models.protocol import Carried
from moorage.drivers.facts import Answered, Asked, Began, Ended, Fact, Said, Settled, Trouble, Used
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import counts, mapping, text

QUIET = frozenset(
    {"agent_start", "turn_start", "message_start", "message_update", "tool_execution_update", "auto_retry_start"}
)
USAGE = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cacheRead": "cache_read_tokens",
    "cacheWrite": "cache_write_tokens",
}
EXIT = re.compile(r"Command exited with code (\d{1,3})$")  # how its `bash` tells of a failure
CUT = "the last answer was cut by the model's limit of output tokens"


class PiEvents:
    """Implements jsonlines.Dialect."""

    def __init__(self) -> None:
        self._stop = ""  # why the last answer ended
        self._meanings: Mapping[str, Callable[[Mapping[str, Any]], Sequence[Fact]]] = {
            **dict.fromkeys(QUIET, lambda _: []),
            "session": lambda event: [Began(text(event.get("id")))],
            "message_end": lambda event: self._message(mapping(event.get("message"))),
            "tool_execution_start": lambda event: [Asked(*_call(event))],
            "tool_execution_end": lambda event: [Answered(*_call(event), _result(event))],
            "turn_end": self._turn,
            "agent_end": lambda _: self._end(),
            "auto_retry_end": self._gave_up,
        }

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        """See Dialect."""
        meaning = self._meanings.get(text(event.get("type")))
        return meaning(event) if meaning else None

    def telling(self, results: Sequence[Carried]) -> int:
        """See Dialect."""
        return len(results)

    def _message(self, message: Mapping[str, Any]) -> Sequence[Fact]:
        if message.get("role") != "assistant":
            return []
        self._stop = text(message.get("stopReason"))
        said = _words(message.get("content"))
        facts: list[Fact] = [Said(said)] if said else []
        if self._stop in {"error", "aborted"}:
            return [*facts, Trouble(text(message.get("errorMessage")) or f"the answer ended: {self._stop}")]
        return [*facts, Used(counts(mapping(message.get("usage")), USAGE))]

    def _turn(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        message = mapping(event.get("message"))
        if text(message.get("stopReason")) in {"error", "aborted"}:
            return []
        return [Settled({}, more=bool(event.get("toolResults")))]

    def _end(self) -> Sequence[Fact]:
        """An end with an error is none yet."""
        return {"stop": [Ended()], "length": [Ended(CUT, cut=True)]}.get(self._stop, [])

    def _gave_up(self, event: Mapping[str, Any]) -> Sequence[Fact]:
        return [] if event.get("success") is True else [Ended(text(event.get("finalError")) or "pi gave up")]


def _call(event: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
    return text(event.get("toolCallId")), text(event.get("toolName")), mapping(event.get("args"))


def _result(event: Mapping[str, Any]) -> ToolResult:
    said = _words(mapping(event.get("result")).get("content"))
    failed = event.get("isError") is True
    code = EXIT.search(said) if failed and event.get("toolName") == "bash" else None
    return ToolResult(ok=not failed, text=said, exit_code=int(code[1]) if code else None, size=len(said.encode()))


def _words(content: object) -> str:
    """The text parts of a message's content."""
    parts = content if isinstance(content, list) else []
    return "\n".join(text(mapping(part).get("text")) for part in parts if mapping(part).get("type") == "text")
