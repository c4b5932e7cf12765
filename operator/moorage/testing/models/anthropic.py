"""Anthropic's Messages as a provider speaks it: where a conversation stands, and a reply whole or as events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from moorage.testing.models.script import Reply

PROTOCOL = "anthropic-messages"
DELTA = 64  # characters of text or arguments in one event
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def error(status: int, message: str) -> dict[str, Any]:
    """An error's body."""
    return {"type": "error", "error": {"type": ERRORS.get(status, "api_error"), "message": message}}


def problem(asked: Mapping[str, Any]) -> str | None:
    """What a provider would refuse in this request: enough of it that a driver's mistakes are found here."""
    messages = asked.get("messages")
    if not isinstance(asked.get("model"), str) or not isinstance(asked.get("max_tokens"), int):
        return "model and max_tokens are required"
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    if messages[0].get("role") != "user":
        return "messages: the first message must be the user's"
    return _unanswered(messages)


def _unanswered(messages: list[dict[str, Any]]) -> str | None:
    """Each tool_use has its tool_result in the next message, each id once; nobody says nothing."""
    pending: list[str] = []
    for number, message in enumerate(messages):
        if not message.get("content"):
            return f"messages.{number}: content must not be empty"
        results = [str(b.get("tool_use_id")) for b in _blocks(message) if b.get("type") == "tool_result"]
        if sorted(results) != sorted(pending):
            return f"messages.{number}: tool_use ids {pending} were answered by results for {results}"
        pending = [str(b.get("id")) for b in _blocks(message) if b.get("type") == "tool_use"]
        if len(set(pending)) != len(pending):
            return f"messages.{number}: tool_use ids must be unique"
    return None


def opening(asked: Mapping[str, Any]) -> str:
    """The text of the first message of the user."""
    first = [m for m in asked["messages"] if m.get("role") == "user"][:1]
    return "\n".join(str(block.get("text", "")) for message in first for block in _blocks(message))


def done(asked: Mapping[str, Any]) -> int:
    """Steps that this conversation has behind it: see Script.choose."""
    results = [b for m in asked["messages"] for b in _blocks(m) if b.get("type") == "tool_result"]
    answers = [m for m in asked["messages"] if m.get("role") == "assistant"]
    plain = [m for m in answers if not any(b.get("type") == "tool_use" for b in _blocks(m))]
    return len(results) + len(plain)


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, Mapping)]


def message(reply: Reply, number: int, model: str) -> dict[str, Any]:
    """The whole answer."""
    text = [{"type": "text", "text": reply.text}] if reply.text else []
    tools = [
        {
            "type": "tool_use",
            "id": call.id or f"toolu_{number:03}_{index:02}",
            "name": call.name,
            "input": {} if call.cut else call.arguments(),
        }
        for index, call in enumerate(reply.tools)
    ]
    return {
        "id": f"msg_{number:03}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [*text, *tools],
        "stop_reason": reply.stop,
        "stop_sequence": None,
        "usage": reply.usage.model_dump(exclude={"reasoning_tokens"}),
    }


def events(reply: Reply, number: int, asked: Mapping[str, Any]) -> Iterator[bytes]:
    """The same answer as server-sent events."""
    whole = message(reply, number, asked["model"])
    usage = whole["usage"]
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield _event("message_start", message=begun)
    yield _event("ping")
    for index, block in enumerate(whole["content"]):
        yield from _block(index, block, reply)
    delta = {"stop_reason": reply.stop, "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": usage["output_tokens"]})
    yield _event("message_stop")


def _block(index: int, block: dict[str, Any], reply: Reply) -> Iterator[bytes]:
    if block["type"] == "text":
        begun, kind, field, text = {**block, "text": ""}, "text_delta", "text", block["text"]
    else:
        begun, kind, field = {**block, "input": {}}, "input_json_delta", "partial_json"
        text = reply.tools[index - bool(reply.text)].encoded()
    yield _event("content_block_start", index=index, content_block=begun)
    for at in range(0, len(text), DELTA):
        yield _event("content_block_delta", index=index, delta={"type": kind, field: text[at : at + DELTA]})
    yield _event("content_block_stop", index=index)


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
