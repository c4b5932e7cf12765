"""Anthropic's Messages protocol, as much of it as metering needs: pure functions and one incremental reader.

Anthropic's `input_tokens` leaves cached tokens out; cache reads and writes come beside it. The vector keeps them apart,
so that none is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from moorage.api.tokens import ANTHROPIC

PROTOCOL = "anthropic-messages"
EVENT_STREAM = "text/event-stream"
CHARACTERS_PER_TOKEN = 4  # for what was cut before its usage came: an estimate, and marked as one
MAX_EVENT = 8 * 1024 * 1024  # bytes of one event; a longer one is passed on and not looked at

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(status: int, message: str) -> bytes:
    """An error in the provider's own shape."""
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def usage_vector(usage: object) -> dict[str, int]:
    """B1's names for a usage object; what isn't a count is left out."""
    if not isinstance(usage, Mapping):
        return {}
    return {ours: usage[theirs] for theirs, ours in ANTHROPIC.items() if _is_count(usage.get(theirs))}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass
class Reading:
    """What is known of one answer. `complete`: it came to its own end. `characters`: text and arguments streamed."""

    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str | None = None
    complete: bool = False
    characters: int = 0

    def settled(self) -> tuple[dict[str, int], bool]:
        """The usage, and whether it is an estimate: a cut answer has told its input at best."""
        if self.complete:
            return self.usage, False
        streamed = -(-self.characters // CHARACTERS_PER_TOKEN)
        output = max(self.usage.get("output_tokens", 0), streamed)
        return {**self.usage, "output_tokens": output}, True


def read_message(body: bytes) -> Reading:
    """The reading of an answer that came in one piece."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Reading(characters=len(body))
    if not isinstance(message, dict) or message.get("type") != "message":
        return Reading()
    reason = message.get("stop_reason")
    return Reading(usage_vector(message.get("usage")), reason if isinstance(reason, str) else None, complete=True)


class StreamReader:
    """Follows server-sent events while they pass by, chunk by chunk, however they are cut."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._held = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> bool:
        """Take the next bytes; True once the message has come to its end."""
        for line in self._lines(chunk):
            if line.startswith(b"data:"):
                self._event(line[5:])
        return self.reading.complete

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        self._held += chunk
        *lines, rest = bytes(self._held).split(b"\n")
        self._held = bytearray(rest)
        for line in lines:
            if not self._skipping:
                yield line.rstrip(b"\r")
            self._skipping = False
        if len(self._held) > MAX_EVENT:
            self._held.clear()
            self._skipping = True

    def _event(self, data: bytes) -> None:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if isinstance(event, dict):
            self._told(event)

    def _told(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self._count(_object(event, "message").get("usage"))
        elif kind == "content_block_delta":
            delta = _object(event, "delta")
            texts = (delta.get(name) for name in ("text", "partial_json", "thinking"))
            self.reading.characters += sum(len(text) for text in texts if isinstance(text, str))
        elif kind == "message_delta":
            self._count(event.get("usage"))
            reason = _object(event, "delta").get("stop_reason")
            self.reading.stop_reason = reason if isinstance(reason, str) else self.reading.stop_reason
        elif kind == "message_stop":
            self.reading.complete = True

    def _count(self, usage: object) -> None:
        """Usage is told as totals so far: the last word on each name counts, and none falls."""
        for name, amount in usage_vector(usage).items():
            self.reading.usage[name] = max(amount, self.reading.usage.get(name, 0))


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = event.get(name)
    return value if isinstance(value, Mapping) else {}
