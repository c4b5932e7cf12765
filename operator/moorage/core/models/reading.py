"""What is known of one answer while it passes by, and one incremental reader of events for all protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from moorage.core.models.usage import Vector

EVENT_STREAM = "text/event-stream"
CHARACTERS_PER_TOKEN = 4  # for what was cut before its usage came: an estimate, and marked as one
MAX_EVENT = 8 * 1024 * 1024  # bytes of one event; a longer one is passed on and not looked at
INWARD = frozenset({"input_tokens", "cache_read_tokens", "cache_write_tokens"})


@dataclass
class Reading:
    """What is known of one answer.

    `complete`: it came to its own end. `concluding`: what decides is there, and only the rest of the bookkeeping is to
    come. `unfinished`: it came, and the provider goes on with it. `characters`: text and arguments that were streamed.
    `error`: an event says that the provider failed. `calls`: of tools that whoever asked is to run.
    """

    usage: Vector = field(default_factory=dict)
    stop_reason: str | None = None
    complete: bool = False
    characters: int = 0
    concluding: bool = False
    unfinished: bool = False
    error: bool = False
    calls: int = 0
    named: set[object] = field(default_factory=set, repr=False)  # calls that are told in parts, as far as they were

    def settled(self, asked: int = 0, most: int | None = None) -> tuple[Vector, bool]:
        """The usage, and whether it is an estimate: a cut answer has told its input at best.

        `asked`: bytes of the request, by which the input is estimated that nobody told. `most`: tokens of output that
        there can be: long words are few tokens.
        """
        if self.complete and "output_tokens" in self.usage:
            return self.usage, False
        streamed = _tokens(self.characters)
        output = max(self.usage.get("output_tokens", 0), streamed if most is None else min(streamed, most))
        inward = {} if self.usage.keys() & INWARD or not asked else {"input_tokens": _tokens(asked)}
        return {**self.usage, **inward, "output_tokens": output}, True

    def counted(self, vector: Vector) -> None:
        """All of the usage is told at once, perhaps again and again: the last word counts, where it says anything.

        A later word may say of tokens that they were cached, which an earlier one had not: the two don't add up.
        """
        self.usage = dict(vector) or self.usage

    def grown(self, vector: Vector) -> None:
        """Parts of the usage are told as totals so far: the last word on each name counts, and none falls."""
        for name, amount in vector.items():
            self.usage[name] = max(amount, self.usage.get(name, 0))

    def stopped(self, reason: object) -> None:
        """Why it ends, where that is said."""
        self.stop_reason = reason if isinstance(reason, str) else self.stop_reason

    def streamed(self, *texts: object) -> None:
        """Text of whatever kind that has passed by."""
        self.characters += sum(len(text) for text in texts if isinstance(text, str))


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


Take = Callable[[Reading, Mapping[str, Any]], None]
"""Enters one event of a stream into the reading."""


class StreamReader:
    """Follows server-sent events while they pass by, chunk by chunk, however they are cut.

    `end`: an event's data that is no JSON and ends the stream, where the protocol has such a thing.
    """

    def __init__(self, take: Take, end: bytes | None = None) -> None:
        self.reading = Reading()
        self._take, self._end = take, end
        self._held = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> bool:
        """Take the next bytes; True once the answer has come to its end."""
        for line in self._lines(chunk):
            if line.startswith(b"data:"):
                self._event(line[5:].strip())
        return self.reading.complete

    def ended(self) -> bool:
        """The provider has closed the stream in good order; True where that is the answer's end too.

        Some leave out the event that says so.
        """
        self.reading.complete = self.reading.complete or self.reading.concluding
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
        if data == self._end:
            self.reading.complete = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if isinstance(event, dict):
            self.reading.error = event.get("type") == "error" or isinstance(event.get("error"), dict)
            self._take(self.reading, event)


def inner(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under that name; an empty one where there is none."""
    value = event.get(name)
    return value if isinstance(value, Mapping) else {}


def items(event: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of the list under that name."""
    value = event.get(name)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
