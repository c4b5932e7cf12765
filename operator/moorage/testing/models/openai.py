"""What OpenAI's two protocols have in common: errors, stop reasons, and usage that includes what was cached. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moorage.testing.models.script import Usage

DELTA = 64  # characters of text or arguments in one event
CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def error(status: int, message: str) -> dict[str, Any]:
    """An error's body."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": CODES.get(status)}}


def prompt_tokens(usage: Usage) -> int:
    """All that went in: OpenAI counts cached tokens as part of the input, Anthropic beside it."""
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def call_id(given: str | None, number: int, index: int) -> str:
    """The script's own id, or one by place."""
    return given or f"call_{number:03}_{index:02}"


def text_of(content: object) -> str:
    """Text of a message's content, be it a string or parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def pieces(text: str) -> Iterator[str]:
    """The text in deltas."""
    return (text[at : at + DELTA] for at in range(0, len(text), DELTA))


def unanswered(asked: Iterable[str], answered: Iterable[str]) -> str | None:
    """Each call has its output, each output its call."""
    calls, outputs = set(asked), set(answered)
    if missing := sorted(calls - outputs):
        return f"No tool output found for function call {missing[0]}."
    if stray := sorted(outputs - calls):
        return f"No tool call found for function call output with call_id {stray[0]}."
    return None


def data(payload: Mapping[str, Any]) -> bytes:
    """One server-sent event's data line."""
    return f"data: {json.dumps(payload)}\n\n".encode()
