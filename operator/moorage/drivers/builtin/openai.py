"""Conversations in OpenAI's two protocols. Nothing is kept at the provider: each request has all of it.

A call's arguments are text there, which a model may have written wrong: what is no object is an empty one, so that the
tool says what it takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.core.models.chat import CHAT
from moorage.core.models.reading import inner, items
from moorage.core.models.responses import ENDS, RESPONSES
from moorage.core.models.usage import openai_chat, openai_responses
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import CUT, DECLINED, Answer, Call, Malformed, calls, counted, opened, text
from moorage.drivers.builtin.conversation import MAX_OUTPUT_TOKENS, NOTHING
from moorage.drivers.builtin.tools import Definition
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import read

Item = dict[str, Any]
STOPS = {"max_output_tokens": CUT, "length": CUT, "content_filter": DECLINED}


class ResponsesConversation:
    """See the port."""

    spoken = RESPONSES

    def __init__(self) -> None:
        self._items: list[Item] = []

    def request(self, model: str, tools: Sequence[Definition]) -> dict[str, Any]:
        """See the port. `strict` would ask more of schemas than ours are."""
        return {
            "model": model,
            "max_output_tokens": MAX_OUTPUT_TOKENS,
            "store": False,
            "instructions": prompt.SYSTEM,
            "tools": [{"type": "function", **_function(tool), "strict": False} for tool in tools],
            "input": list(self._items),
        }

    def resume(self, request: Mapping[str, Any]) -> None:
        """See the port."""
        self._items = list(request["input"])

    def say(self, text: str) -> None:
        """See the port."""
        _say(self._items, text)

    def heard(self, answer: Answer) -> None:
        """See the port. Without the provider's ids of items, which it hasn't kept."""
        if answer.text.strip():
            self._items.append({"role": "assistant", "content": answer.text})
        for call in answer.calls:
            self._items.append({"type": "function_call", "call_id": call.id, **_called(call)})

    def results(self, results: Sequence[tuple[Call, ToolResult]]) -> None:
        """See the port."""
        for call, result in results:
            output = {"type": "function_call_output", "call_id": call.id, "output": result.text or NOTHING}
            self._items.append(output)

    def read(self, body: bytes) -> Answer:
        """See the port."""
        told = opened(body)
        if told.get("object") != "response" or told.get("status") not in tuple(ENDS):
            raise Malformed(text(inner(told, "error").get("message")) or "the answer is no response that has ended")
        output = items(told, "output")
        parts = [part for item in output if item.get("type") == "message" for part in items(item, "content")]
        asked = [item for item in output if item.get("type") == "function_call"]
        given = ((item.get("call_id"), item.get("name"), _arguments(item)) for item in asked)
        declined = any(part.get("type") == "refusal" for part in parts)
        stop = _stop(inner(told, "incomplete_details").get("reason") or told.get("status"), declined=declined)
        said = "".join(text(part.get("text")) + text(part.get("refusal")) for part in parts)
        return Answer(said.rstrip(), tuple(calls(given)), stop, counted(openai_responses(told.get("usage"))))


class ChatConversation:
    """See the port."""

    spoken = CHAT

    def __init__(self) -> None:
        self._messages: list[Item] = []

    def request(self, model: str, tools: Sequence[Definition]) -> dict[str, Any]:
        """See the port."""
        return {
            "model": model,
            "max_completion_tokens": MAX_OUTPUT_TOKENS,
            "tools": [{"type": "function", "function": _function(tool)} for tool in tools],
            "messages": [{"role": "system", "content": prompt.SYSTEM}, *self._messages],
        }

    def resume(self, request: Mapping[str, Any]) -> None:
        """See the port."""
        self._messages = list(request["messages"][1:])

    def say(self, text: str) -> None:
        """See the port."""
        _say(self._messages, text)

    def heard(self, answer: Answer) -> None:
        """See the port."""
        asked = [{"id": call.id, "type": "function", "function": _called(call)} for call in answer.calls]
        said = {"role": "assistant", "content": answer.text if answer.text.strip() else None}
        self._messages.append(said | ({"tool_calls": asked} if asked else {}))

    def results(self, results: Sequence[tuple[Call, ToolResult]]) -> None:
        """See the port."""
        for call, result in results:
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result.text or NOTHING})

    def read(self, body: bytes) -> Answer:
        """See the port."""
        told = opened(body)
        choice = next(iter(items(told, "choices")), None)
        if choice is None or not isinstance(choice.get("message"), Mapping):
            raise Malformed("the answer is no chat completion")
        message = inner(choice, "message")
        functions = [(call.get("id"), inner(call, "function")) for call in items(message, "tool_calls")]
        given = ((call_id, function.get("name"), _arguments(function)) for call_id, function in functions)
        declined = text(message.get("refusal"))
        said = text(message.get("content")) + declined
        stop = _stop(choice.get("finish_reason"), declined=bool(declined))
        return Answer(said.rstrip(), tuple(calls(given)), stop, counted(openai_chat(told.get("usage"))))


def _say(messages: list[Item], said: str) -> None:
    """As the user: a message of its own, or the end of the last one; some servers take no two in a row."""
    last = messages[-1] if messages else {}
    if last.get("role") == "user":
        messages[-1] = {**last, "content": f"{last['content']}\n\n{said}"}
    else:
        messages.append({"role": "user", "content": said})


def _function(tool: Definition) -> Item:
    return {"name": tool.name, "description": tool.description, "parameters": tool.schema}


def _called(call: Call) -> Item:
    return {"name": call.name, "arguments": json.dumps(call.arguments)}


def _arguments(call: Mapping[str, Any]) -> object:
    try:
        return read(text(call.get("arguments")).encode())
    except ValueError:
        return None


def _stop(reason: object, *, declined: bool) -> str:
    return DECLINED if declined else STOPS.get(text(reason), str(reason))
