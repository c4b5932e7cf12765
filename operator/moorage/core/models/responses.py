"""OpenAI's Responses. An answer's usage comes with its last event, `response.completed` or `response.incomplete`.

A request may lean on what the provider keeps: an earlier response, a conversation, a stored prompt, single items of
them. Its input is then longer than its body, by which it is reserved (B2), and the journal hasn't what was asked. Or it
may go on in the background: then its answer, and what it cost, come where nobody counts. Neither is passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.models import openai, usage
from moorage.core.models.protocol import Asked, Carried, Heard, Protocol, carried, replied_in, tokens
from moorage.core.models.reading import Reading, inner, items

ENDS = frozenset({"completed", "incomplete"})
"""Statuses of a response that is a decision; one that failed is none."""
GOES_ON = frozenset({"queued", "in_progress"})
"""Statuses of a response that the provider is still at, whoever has got it."""
KEPT = ("previous_response_id", "conversation", "prompt")
"""Fields that name what the provider keeps."""
CALLS = frozenset(
    f"{kind}_call" for kind in ("function", "custom_tool", "local_shell", "shell", "apply_patch", "computer")
)
"""Items that are calls of tools which the provider doesn't run itself."""


def _finished(reading: Reading, response: Mapping[str, Any]) -> None:
    reading.counted(usage.openai_responses(response.get("usage")))
    reading.calls = max(reading.calls, sum(map(_is_call, items(response, "output"))))
    status = response.get("status")
    reading.stopped(inner(response, "incomplete_details").get("reason") or status)
    reading.complete = isinstance(status, str) and status in ENDS
    reading.unfinished = isinstance(status, str) and status in GOES_ON


def _whole(response: Mapping[str, Any]) -> Reading:
    reading = Reading()
    if response.get("object") == "response":
        _finished(reading, response)
    return reading


def _take(reading: Reading, event: Mapping[str, Any]) -> None:
    match event.get("type"):
        case "response.completed" | "response.incomplete" | "response.failed":
            _finished(reading, inner(event, "response"))
        case "response.output_item.done":
            reading.calls += _is_call(inner(event, "item"))
        case str(kind) if kind.endswith(".delta"):
            reading.streamed(event.get("delta"))


def _is_call(item: Mapping[str, Any]) -> bool:
    return item.get("type") in CALLS


def _cap(asked: Asked) -> int | None:
    return tokens(asked.get("max_output_tokens"))


def elsewhere(asked: Asked) -> str | None:
    """Each of these changes what a request means where it is there at all; null is as if it weren't."""
    if asked.get("background"):
        return "background: ask without it, and wait for the answer"
    kept = next((name for name in KEPT if asked.get(name) is not None), None)
    if kept is None and any(map(_refers, items(asked, "input"))):
        kept = "item_reference"
    return kept and f"{kept}: send the whole input, and nothing by its id"


def _refers(item: Asked) -> bool:
    """An item that is only the id of one; its type may be left out."""
    return item.get("type") == "item_reference" or (item.get("type") is None and "id" in item and "role" not in item)


def _carried(asked: Asked) -> list[Carried]:
    """Each kind of tool has a kind of item for its calls and one for their outputs, with one id."""
    told = items(asked, "input")
    names = {str(item.get("call_id")): item.get("name") for item in told if str(item.get("type")).endswith("_call")}
    outputs = [item for item in told if str(item.get("type")).endswith("_call_output")]
    return [
        each
        for item in outputs
        for each in carried(item.get("call_id"), names.get(str(item.get("call_id"))), item.get("output"))
    ]


def _replied(asked: Asked) -> frozenset[str]:
    return replied_in(items(asked, "input"), _heard)


def _heard(item: Mapping[str, Any]) -> Heard | None:
    """None: reasoning, which is before a decision's words or its calls."""
    if item.get("type", "message") == "message":
        return "decided" if item.get("role") == "assistant" else "words"
    return "acted" if "call" in str(item.get("type")) else None


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
    elsewhere=elsewhere,
    carried=_carried,
    replied=_replied,
)
