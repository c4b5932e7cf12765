"""OpenAI's Chat Completions as a provider speaks it. Pure; the functions are those of `speaking.Speaker`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moorage.testing.models.openai import call_id, data, error, pieces, prompt_tokens, text_of, unanswered
from moorage.testing.models.script import Reply, Usage

__all__ = ["PROTOCOL", "done", "error", "events", "message", "opening", "problem"]

PROTOCOL = "openai-chat-completions"
FINISH = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}


def problem(asked: Mapping[str, Any]) -> str | None:
    """What a provider would refuse in this request: enough of it that a driver's mistakes are found here."""
    messages = asked.get("messages")
    if not isinstance(asked.get("model"), str):
        return "you must provide a model parameter"
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    if not any(message.get("role") == "user" for message in messages):
        return "messages: nobody has said anything"
    outputs = [str(message.get("tool_call_id")) for message in messages if message.get("role") == "tool"]
    return unanswered((str(call.get("id")) for message in messages for call in _calls(message)), outputs)


def opening(asked: Mapping[str, Any]) -> str:
    """The text of the first message of the user."""
    first = next(message for message in asked["messages"] if message.get("role") == "user")
    return text_of(first.get("content"))


def done(asked: Mapping[str, Any]) -> int:
    """Steps that this conversation has behind it: see Script.choose."""
    answers = [message for message in asked["messages"] if message.get("role") == "assistant"]
    results = [message for message in asked["messages"] if message.get("role") == "tool"]
    return len(results) + sum(not _calls(message) for message in answers)


def message(reply: Reply, number: int, model: str) -> dict[str, Any]:
    """The whole answer."""
    said: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.tools:
        said["tool_calls"] = _tool_calls(reply, number)
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": _finish(reply)}
    return {**_frame(number, model, "chat.completion"), "choices": [choice], "usage": _usage(reply.usage)}


def events(reply: Reply, number: int, asked: Mapping[str, Any]) -> Iterator[bytes]:
    """The same answer as server-sent events; the last but one has the usage, where it was asked for."""
    frame = _frame(number, asked["model"], "chat.completion.chunk")
    yield _chunk(frame, {"role": "assistant", "content": ""})
    for piece in pieces(reply.text):
        yield _chunk(frame, {"content": piece})
    for index, call in enumerate(_tool_calls(reply, number)):
        arguments = call["function"]["arguments"]
        begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        yield _chunk(frame, {"tool_calls": [begun]})
        for piece in pieces(arguments):
            yield _chunk(frame, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chunk(frame, {}, _finish(reply))
    if (asked.get("stream_options") or {}).get("include_usage") is True:
        yield data({**frame, "choices": [], "usage": _usage(reply.usage)})
    yield b"data: [DONE]\n\n"


def _calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [call for call in message.get("tool_calls") or () if isinstance(call, Mapping)]


def _tool_calls(reply: Reply, number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": call_id(call.id, number, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.encoded()},
        }
        for index, call in enumerate(reply.tools)
    ]


def _finish(reply: Reply) -> str:
    return FINISH.get(reply.stop, reply.stop)


def _frame(number: int, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number:03}", "object": kind, "created": 0, "model": model}


def _chunk(frame: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    return data({**frame, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})


def _usage(usage: Usage) -> dict[str, Any]:
    asked = prompt_tokens(usage)
    return {
        "prompt_tokens": asked,
        "completion_tokens": usage.output_tokens,
        "total_tokens": asked + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
