"""What a provider's protocol is to whoever passes it on: names, shapes and how an answer is read. All of it pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from moorage.core.models.reading import Reading, StreamReader, Take

Asked = Mapping[str, Any]
CARRIED_TEXT = 256


@dataclass(frozen=True)
class Carried:
    """The result of a tool call that a request brings back to the model: the call's id, its tool where that is told,
    and the beginning of the result where it is text.
    """

    call: str
    tool: str = ""
    text: str = ""


def as_asked(_: Asked, body: bytes) -> bytes:
    """The body as it came."""
    return body


def as_said(rest: bytes) -> bytes:
    """The end of an answer as it came."""
    return rest


def nothing_carried(_: Asked) -> Sequence[Carried]:
    """No tools."""
    return ()


def nothing_replied(_: Asked) -> frozenset[str]:
    """No conversation."""
    return frozenset()


def all_here(_: Asked) -> None:
    """Nothing speaks against passing it on."""


@dataclass(frozen=True)
class Protocol:
    """One protocol.

    name: as a ModelProvider says it. path: below the provider's base URL. credential: headers that carry a key.
    error: the body of an error that its SDKs understand, of status, reason and message. take: enters one event of a
    stream. whole: the reading of an answer in one piece that is a JSON object. listed, entry: the list of models, and
    one of them. cap: the most output tokens that a request allows, where it says. end: see StreamReader.
    sent: the body that leaves, of what was asked. said: the end of a streamed answer as the agent gets it, where that
    wasn't the body that it had sent. elsewhere: what a request has that lets more happen at the provider than its own
    body and its own answer tell, and what to do instead; such a one isn't passed on. counting: path at which tokens are
    counted without asking the model. versioned: headers that a request needs and that no agent has written. carried:
    the tool results in a request, oldest first.
    """

    name: str
    path: str
    credential: Callable[[str], dict[str, str]]
    error: Callable[[int, str, str], bytes]
    take: Take
    whole: Callable[[Mapping[str, Any]], Reading]
    listed: Callable[[Sequence[str]], bytes]
    entry: Callable[[str], bytes]
    cap: Callable[[Asked], int | None]
    end: bytes | None = None
    sent: Callable[[Asked, bytes], bytes] = as_asked
    said: Callable[[bytes], bytes] = as_said
    elsewhere: Callable[[Asked], str | None] = all_here
    counting: str | None = None
    versioned: Mapping[str, str] = field(default_factory=dict)
    carried: Callable[[Asked], Sequence[Carried]] = nothing_carried
    replied: Callable[[Asked], frozenset[str]] = nothing_replied

    def reader(self) -> StreamReader:
        """For one streamed answer."""
        return StreamReader(self.take, self.end)

    def read(self, body: bytes) -> Reading:
        """Of an answer that came in one piece, whatever it is."""
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Reading(characters=len(body))
        reading = self.whole(answer) if isinstance(answer, dict) else Reading()
        reading.characters = len(body)
        return reading


def carried(call: object, tool: object, text: object) -> Iterator[Carried]:
    """One result, where its call has an id."""
    if isinstance(call, str) and call:
        tool, text = (value if isinstance(value, str) else "" for value in (tool, text))
        yield Carried(call, tool, text[:CARRIED_TEXT])


Heard = Literal["words", "decided", "acted"]
"""What somebody tells the model; the model's own words, which may be its last; a tool's call, or its result."""


def replied(conversation: Iterable[tuple[Heard, str]]) -> frozenset[str]:
    """Names for the decisions that called no tool, and that somebody had something to say to all the same: each of its
    words, and of how many went before.
    """
    found, said = list[str](), None
    for kind, text in conversation:
        if kind == "words" and said is not None:
            found.append(hashlib.sha256(f"{len(found)}:{said}".encode("utf-8", "replace")).hexdigest())
        said = f"{said or ''}{text}" if kind == "decided" else None
    return frozenset(found)


def replied_in(
    messages: Iterable[Mapping[str, Any]], heard: Callable[[Mapping[str, Any]], Heard | None]
) -> frozenset[str]:
    """The same of a protocol's own messages; one of which `heard` says None is no part of it."""
    kinds = ((heard(each), words(each.get("content"))) for each in messages)
    return replied((kind, text) for kind, text in kinds if kind is not None)


def words(content: object) -> str:
    """What is text of a message's content, as a string or as parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(text for each in parts if isinstance(each, Mapping) and isinstance(text := each.get("text"), str))


def tokens(value: object) -> int | None:
    """A number of tokens, where it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
