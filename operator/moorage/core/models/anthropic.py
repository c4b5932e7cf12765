"""Anthropic's Messages, as much of it as passing on and metering need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from moorage.core.models import usage
from moorage.core.models.protocol import Asked, Carried, Heard, Protocol, carried, replied_in, tokens
from moorage.core.models.reading import Reading, inner, items

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
CALL = "tool_use"
EPOCH = "1970-01-01T00:00:00Z"


def error(status: int, reason: str, message: str) -> bytes:
    """An error's body."""
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": f"{reason}: {message}"}})


def _credential(key: str) -> dict[str, str]:
    return {"x-api-key": key}


def _whole(message: Mapping[str, Any]) -> Reading:
    if message.get("type") != "message":
        return Reading()
    calls = sum(part.get("type") == CALL for part in items(message, "content"))
    reading = Reading(usage.anthropic(message.get("usage")), complete=True, calls=calls)
    reading.stopped(message.get("stop_reason"))
    return reading


def _take(reading: Reading, event: Mapping[str, Any]) -> None:
    match event.get("type"):
        case "message_start":
            reading.grown(usage.anthropic(inner(event, "message").get("usage")))
        case "content_block_start":
            reading.calls += inner(event, "content_block").get("type") == CALL
        case "content_block_delta":
            delta = inner(event, "delta")
            reading.streamed(*(delta.get(name) for name in ("text", "partial_json", "thinking")))
        case "message_delta":
            reading.grown(usage.anthropic(event.get("usage")))
            reading.stopped(inner(event, "delta").get("stop_reason"))
        case "message_stop":
            reading.complete = True


def _carried(asked: Asked) -> list[Carried]:
    parts = [part for message in items(asked, "messages") for part in items(message, "content")]
    names = {str(part.get("id")): part.get("name") for part in parts if part.get("type") == "tool_use"}
    told = [part for part in parts if part.get("type") == "tool_result"]
    return [
        each
        for part in told
        for each in carried(part.get("tool_use_id"), names.get(str(part.get("tool_use_id"))), part.get("content"))
    ]


def _replied(asked: Asked) -> frozenset[str]:
    return replied_in(items(asked, "messages"), _heard)


def _heard(message: Mapping[str, Any]) -> Heard:
    if any(part.get("type") in ("tool_use", "tool_result") for part in items(message, "content")):
        return "acted"
    return "decided" if message.get("role") == "assistant" else "words"


def _entry(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": EPOCH}


def _listed(names: Sequence[str]) -> bytes:
    last = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return orjson.dumps({"data": [_entry(name) for name in names], "has_more": False, **last})


def _cap(asked: Asked) -> int | None:
    return tokens(asked.get("max_tokens"))


MESSAGES = Protocol(
    name="anthropic-messages",
    path="/v1/messages",
    credential=_credential,
    error=error,
    take=_take,
    whole=_whole,
    listed=_listed,
    entry=lambda name: orjson.dumps(_entry(name)),
    cap=_cap,
    counting="/v1/messages/count_tokens",
    versioned={"anthropic-version": "2023-06-01"},
    carried=_carried,
    replied=_replied,
)
