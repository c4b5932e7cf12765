"""OpenAI's Chat Completions.

A stream tells its usage only where it was asked to, in a chunk without choices after the last one that has any. It is
always asked to, and who didn't ask for that chunk doesn't get it: clients are known to look at its first choice. No
other chunk is touched. From the one with the finish reason on, a client may act on what it has; what follows is usage
and the end, a moment later, so that the rest is passed on together, once it is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from moorage.core.models import openai, usage
from moorage.core.models.protocol import Asked, Carried, Heard, Protocol, carried, replied_in, tokens
from moorage.core.models.reading import Reading, inner, items

DONE = b"[DONE]"
DATA = b"data:"
USAGE = "include_usage"
OPTIONS = "stream_options"


def _whole(answer: Mapping[str, Any]) -> Reading:
    reading = Reading()
    if answer.get("object") == "chat.completion":
        reading.counted(usage.openai_chat(answer.get("usage")))
        for choice in items(answer, "choices"):
            reading.stopped(choice.get("finish_reason"))
            reading.calls += len(items(inner(choice, "message"), "tool_calls"))
        reading.complete = True
    return reading


def _take(reading: Reading, chunk: Mapping[str, Any]) -> None:
    reading.counted(usage.openai_chat(chunk.get("usage")))
    for choice in items(chunk, "choices"):
        delta = inner(choice, "delta")
        told = items(delta, "tool_calls")
        reading.calls += sum(_begins(reading, choice.get("index"), call) for call in told)
        calls = (inner(call, "function") for call in told)
        reading.streamed(*(delta.get(name) for name in ("content", "refusal", "reasoning_content")))
        reading.streamed(*(call.get("arguments") for call in calls))
        reading.stopped(choice.get("finish_reason"))
    reading.concluding = reading.stop_reason is not None


def _begins(reading: Reading, choice: object, call: Mapping[str, Any]) -> bool:
    """Whether this part of a call is its first. Some servers give all calls one index, and some give them no id."""
    place, name = (str(choice), str(call.get("index"))), call.get("id") or None
    first = (place if name is None else str(name)) not in reading.named
    reading.named |= {place, str(name)} if name else {place}
    return first


def _cap(asked: Asked) -> int | None:
    """Of the two names for it, servers go by one or the other."""
    told = [most for name in ("max_completion_tokens", "max_tokens") if (most := tokens(asked.get(name))) is not None]
    return max(told) * (tokens(asked.get("n")) or 1) if told else None


def _carried(asked: Asked) -> list[Carried]:
    messages = items(asked, "messages")
    calls = [call for message in messages for call in items(message, "tool_calls")]
    names = {str(call.get("id")): inner(call, "function").get("name") for call in calls}
    told = [message for message in messages if message.get("role") == "tool"]
    return [
        each
        for message in told
        for each in carried(
            message.get("tool_call_id"), names.get(str(message.get("tool_call_id"))), message.get("content")
        )
    ]


def _replied(asked: Asked) -> frozenset[str]:
    return replied_in(items(asked, "messages"), _heard)


def _heard(message: Mapping[str, Any]) -> Heard:
    if message.get("role") == "tool" or items(message, "tool_calls"):
        return "acted"
    return "decided" if message.get("role") == "assistant" else "words"


def sent(asked: Asked, body: bytes) -> bytes:
    """A stream is asked for its usage."""
    if asked.get("stream") is not True or inner(asked, OPTIONS).get(USAGE) is True:
        return body
    return orjson.dumps({**asked, OPTIONS: {**inner(asked, OPTIONS), USAGE: True}})


def without_usage(rest: bytes) -> bytes:
    """The end of a stream without the chunk that nobody asked for, and the blank line that ends it."""
    kept, dropped = [], False
    for line in rest.splitlines(keepends=True):
        if dropped and not line.strip():
            continue
        dropped = _only_usage(line)
        if not dropped:
            kept.append(line)
    return b"".join(kept)


def _only_usage(line: bytes) -> bool:
    if not line.startswith(DATA):
        return False
    try:
        chunk = orjson.loads(line[len(DATA) :])
    except orjson.JSONDecodeError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


CHAT = Protocol(
    name="openai-chat",
    path="/v1/chat/completions",
    credential=openai.credential,
    error=openai.error,
    take=_take,
    whole=_whole,
    listed=openai.listed,
    entry=openai.entry,
    cap=_cap,
    end=DONE,
    sent=sent,
    said=without_usage,
    carried=_carried,
    replied=_replied,
)
