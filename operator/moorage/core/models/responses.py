"""OpenAI's Responses. An answer's usage comes with its last event, `response.completed` or `response.incomplete`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.models import openai, usage
from moorage.core.models.protocol import Asked, Protocol, tokens
from moorage.core.models.reading import Reading, inner

ENDS = frozenset({"completed", "incomplete"})
"""Statuses of a response that is a decision; one that failed is none."""


def _finished(reading: Reading, response: Mapping[str, Any]) -> None:
    reading.count(usage.openai_responses(response.get("usage")))
    status = response.get("status")
    reading.stopped(inner(response, "incomplete_details").get("reason") or status)
    reading.complete = isinstance(status, str) and status in ENDS


def _whole(response: Mapping[str, Any]) -> Reading:
    reading = Reading()
    if response.get("object") == "response":
        _finished(reading, response)
    return reading


def _take(reading: Reading, event: Mapping[str, Any]) -> None:
    match event.get("type"):
        case "response.completed" | "response.incomplete" | "response.failed":
            _finished(reading, inner(event, "response"))
        case str(kind) if kind.endswith(".delta"):
            reading.streamed(event.get("delta"))


def _cap(asked: Asked) -> int | None:
    return tokens(asked.get("max_output_tokens"))


RESPONSES = Protocol(
    name="openai-responses",
    path="/v1/responses",
    credential=openai.credential,
    error=openai.error,
    take=_take,
    whole=_whole,
    listed=openai.listed,
    entry=openai.entry,
    cap=_cap,
)
