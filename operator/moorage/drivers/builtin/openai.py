"""Conversations in OpenAI's two protocols. Nothing is kept at the provider: each request has all of it.

A call's arguments are text there, which a model may have written wrong: what is no object is an empty one, so that the
tool says what it takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moorage.core.models.chat import CHAT
from moorage.core.models.reading import inner, items
from moorage.core.models.responses import ENDS, RESPONSES
from moorage.core.models.usage import openai_chat, openai_responses
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import CUT, DECLINED, Answer, Call, Malformed, calls, counted, opened, text
from moorage.drivers.builtin.context import Entries, Entry, Turn, read_said
from moorage.drivers.builtin.conversation import MAX_OUTPUT_TOKENS, NOTHING, said_again
from moorage.drivers.builtin.tools import Definition
from moorage.drivers.telling import ToolResult
from moorage.drivers.untrusted import read

Item = dict[str, Any]
STOPS = {"max_output_tokens": CUT, "length": CUT, "content_filter": DECLINED}


class ResponsesConversation:
    """See the port."""

    spoken, no_tools = RESPONSES, "none"

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

    def entries(self) -> Entries:
        """See the port. An answer's words and calls are items of their own, one after the other."""
        found: list[Entry] = []
        for item in self._items:
            _add_item(found, item)
        return tuple(found)

    def rebuild(self, entries: Entries) -> None:
        """See the port."""
        self._items = []
        said_again(self, entries)

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

    spoken, no_tools = CHAT, "none"

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

    def entries(self) -> Entries:
        """See the port."""
        results = {text(m.get("tool_call_id")): text(m.get("content")) for m in self._messages if m["role"] == "tool"}
        found: list[Entry] = []
        for message in self._messages:
            if message["role"] == "user":
                found += read_said(text(message.get("content")))
            elif message["role"] == "assistant":
                found.append(Turn(text(message.get("content")), tuple(_done(message, results))))
        return tuple(found)

    def rebuild(self, entries: Entries) -> None:
        """See the port."""
        self._messages = []
        said_again(self, entries)

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


def _add_item(found: list[Entry], item: Item) -> None:
    """One item of a Responses conversation: the end of the last entry, or one of its own."""
    kind, last = item.get("type"), found[-1] if found else None
    if kind == "function_call":
        call = (_call_of(item, item.get("call_id")), ToolResult(False, NOTHING))
        turn = last if isinstance(last, Turn) and not _answered(last) else None
        found[len(found) - (turn is not None) :] = [
            Turn(turn.text if turn else "", (*(turn.done if turn else ()), call))
        ]
    elif kind == "function_call_output" and isinstance(last, Turn):
        result = ToolResult(True, text(item.get("output")))
        done = ((call, result if call.id == item.get("call_id") else known) for call, known in last.done)
        found[-1] = Turn(last.text, tuple(done))
    elif item.get("role") == "user":
        found += read_said(text(item.get("content")))
    elif item.get("role") == "assistant":
        found.append(Turn(text(item.get("content"))))


def _answered(turn: Turn) -> bool:
    """Whether results have come: what is called afterwards belongs to another answer."""
    return any(result.ok for _, result in turn.done)


def _done(message: Item, results: Mapping[str, str]) -> Iterator[tuple[Call, ToolResult]]:
    for asked in items(message, "tool_calls"):
        call_id = text(asked.get("id"))
        yield _call_of(inner(asked, "function"), call_id), ToolResult(True, results.get(call_id, NOTHING))


def _call_of(said: Mapping[str, Any], call_id: object) -> Call:
    arguments = _arguments(said)
    return Call(text(call_id), text(said.get("name")), arguments if isinstance(arguments, dict) else {})


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
