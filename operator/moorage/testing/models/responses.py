"""OpenAI's Responses as a provider speaks it. Pure; the functions are those of `speaking.Speaker`.

The whole conversation comes with each request; `previous_response_id` is refused, since a stand-in keeps nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from moorage.testing.models.openai import call_id, error, pieces, prompt_tokens, text_of, unanswered
from moorage.testing.models.script import Reply, Usage

__all__ = ["PROTOCOL", "done", "error", "events", "message", "opening", "problem"]

PROTOCOL = "openai-responses"
CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
OUTPUTS = frozenset({f"{kind}_output" for kind in CALLS})
Item = Mapping[str, Any]


def problem(asked: Mapping[str, Any]) -> str | None:
    """What a provider would refuse in this request: enough of it that a driver's mistakes are found here."""
    if not isinstance(asked.get("model"), str):
        return "you must provide a model parameter"
    if asked.get("previous_response_id"):
        return "previous_response_id: no response is kept here; send the whole input"
    items = _items(asked)
    if not any(_role(item) == "user" for item in items):
        return "input: nobody has said anything"
    calls = (str(item.get("call_id")) for item in items if item.get("type") in CALLS)
    return unanswered(calls, (str(item.get("call_id")) for item in items if item.get("type") in OUTPUTS))


def opening(asked: Mapping[str, Any]) -> str:
    """What the user said before the first answer; agents put their surroundings before the goal, apart from it."""
    said = []
    for item in _items(asked):
        if _answers(item):
            break
        if _role(item) == "user":
            said.append(text_of(item.get("content")))
    return "\n".join(said)


def done(asked: Mapping[str, Any]) -> int:
    """Steps that this conversation has behind it: see Script.choose. An answer's message and calls are items each."""
    steps, plain = 0, False
    for item in _items(asked):
        kind = item.get("type")
        if kind in OUTPUTS:
            steps += 1
        if _role(item) == "assistant":
            steps += plain
            plain = True
        elif kind in CALLS:
            plain = False
        elif not _answers(item):
            steps, plain = steps + plain, False
    return steps + plain


def message(reply: Reply, number: int, model: str) -> dict[str, Any]:
    """The whole answer."""
    cut = reply.stop == "max_tokens"
    return {
        "id": f"resp_{number:03}",
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": model,
        "output": _output(reply, number),
        "parallel_tool_calls": True,
        "usage": _usage(reply.usage),
    }


def events(reply: Reply, number: int, asked: Mapping[str, Any]) -> Iterator[bytes]:
    """The same answer as server-sent events, numbered."""
    numbers = count()
    for event in _events(message(reply, number, asked["model"])):
        numbered = {**event, "sequence_number": next(numbers)}
        yield f"event: {event['type']}\ndata: {json.dumps(numbered)}\n\n".encode()


def _events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        yield from _text(index, item) if item["type"] == "message" else _call(index, item)
    yield {"type": f"response.{whole['status']}", "response": whole}


def _text(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    part = item["content"][0]
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    yield _added(index, {**item, "content": []})
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **place, "delta": piece}
    yield {"type": "response.output_text.done", **place, "text": part["text"]}
    yield {"type": "response.content_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _call(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    place = {"item_id": item["id"], "output_index": index}
    yield _added(index, {**item, "arguments": ""})
    for piece in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
    yield {"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _added(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress"}}


def _output(reply: Reply, number: int) -> list[dict[str, Any]]:
    part = {"type": "output_text", "text": reply.text, "annotations": []}
    said = {"id": f"msg_{number:03}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    calls = [
        {
            "id": f"fc_{number:03}_{index:02}",
            "type": "function_call",
            "status": "incomplete" if call.cut else "completed",
            "call_id": call_id(call.id, number, index),
            "name": call.name,
            "arguments": call.encoded(),
        }
        | ({} if call.namespace is None else {"namespace": call.namespace})
        for index, call in enumerate(reply.tools)
    ]
    return [said, *calls] if reply.text else calls


def _items(asked: Mapping[str, Any]) -> list[Item]:
    given = asked.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [item for item in given or () if isinstance(item, Mapping)]


def _role(item: Item) -> str | None:
    """Who speaks; None where the item is no message."""
    role = item.get("role")
    return role if isinstance(role, str) and item.get("type", "message") == "message" else None


def _answers(item: Item) -> bool:
    """It is part of an answer of the model's."""
    return item.get("type") in {*CALLS, "reasoning"} or _role(item) == "assistant"


def _usage(usage: Usage) -> dict[str, Any]:
    asked = prompt_tokens(usage)
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": usage.cache_read_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": asked + usage.output_tokens,
    }
