"""A conversation in Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moorage.core.models.anthropic import MESSAGES
from moorage.core.models.reading import inner, items
from moorage.core.models.usage import anthropic
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import Answer, Call, Malformed, calls, counted, opened, text
from moorage.drivers.builtin.context import Entries, Entry, Turn, read_said
from moorage.drivers.builtin.conversation import MAX_OUTPUT_TOKENS, NOTHING, said_again
from moorage.drivers.builtin.tools import Definition
from moorage.drivers.telling import ToolResult

Block = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}


class MessagesConversation:
    """See the port. Messages of user and model take turns; each request marks up to where a provider may cache."""

    spoken = MESSAGES

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []

    @property
    def no_tools(self) -> object:
        """See the port."""
        return {"type": "none"}

    def request(self, model: str, tools: Sequence[Definition]) -> dict[str, Any]:
        """See the port."""
        return {
            "model": model,
            "max_tokens": MAX_OUTPUT_TOKENS,
            "system": [{"type": "text", "text": prompt.SYSTEM} | MARK],
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in tools
            ],
            "messages": _cached(self._messages),
        }

    def resume(self, request: Mapping[str, Any]) -> None:
        """See the port."""
        self._messages = _unmarked(request["messages"])

    def say(self, text: str) -> None:
        """A message of its own, or one more part of the last one."""
        self._add("user", [{"type": "text", "text": text}])

    def entries(self) -> Entries:
        """See the port."""
        results = {
            text(block.get("tool_use_id")): ToolResult(not block.get("is_error", False), text(block.get("content")))
            for message in self._messages
            for block in message["content"]
            if block.get("type") == "tool_result"
        }
        return tuple(entry for message in self._messages for entry in _entries(message, results))

    def rebuild(self, entries: Entries) -> None:
        """See the port."""
        self._messages = []
        said_again(self, entries)

    def heard(self, answer: Answer) -> None:
        """See the port."""
        said = [{"type": "text", "text": answer.text}] if answer.text.strip() else []
        asked = [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in answer.calls]
        self._add("assistant", [*said, *asked])

    def results(self, results: Sequence[tuple[Call, ToolResult]]) -> None:
        """See the port."""
        self._add("user", [_result(call, result) for call, result in results])

    def read(self, body: bytes) -> Answer:
        """See the port."""
        told = opened(body)
        if told.get("type") != "message" or not isinstance(told.get("content"), list):
            raise Malformed("the answer is no message")
        blocks = items(told, "content")
        said = "".join(text(block.get("text")) for block in blocks if block.get("type") == "text")
        asked = ((b.get("id"), b.get("name"), b.get("input")) for b in blocks if b.get("type") == "tool_use")
        usage = counted(anthropic(told.get("usage")))
        return Answer(said.rstrip(), tuple(calls(asked)), str(told.get("stop_reason")), usage)

    def _add(self, role: str, blocks: list[Block]) -> None:
        if self._messages and self._messages[-1]["role"] == role:
            self._messages[-1]["content"].extend(blocks)
        else:
            self._messages.append({"role": role, "content": blocks})


def _result(call: Call, result: ToolResult) -> Block:
    block = {"type": "tool_result", "tool_use_id": call.id, "content": result.text or NOTHING}
    return block if result.ok else block | {"is_error": True}


def _entries(message: Mapping[str, Any], results: Mapping[str, ToolResult]) -> Iterator[Entry]:
    """What one message holds; `results` by the id of their call."""
    said = [text(block.get("text")) for block in message["content"] if block.get("type") == "text"]
    if message["role"] == "user":
        for each in said:
            yield from read_said(each)
        return
    asked = [block for block in message["content"] if block.get("type") == "tool_use"]
    done = ((Call(text(b.get("id")), text(b.get("name")), dict(inner(b, "input"))), text(b.get("id"))) for b in asked)
    yield Turn("".join(said), tuple((call, results.get(key, ToolResult(False, NOTHING))) for call, key in done))


def _cached(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, the last block marked: the next request begins with all of them."""
    *before, last = messages
    *blocks, block = last["content"]
    return [*before, {**last, "content": [*blocks, block | MARK]}]


def _unmarked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as they were before `_cached` marked the last block."""
    *before, last = messages
    *blocks, block = last["content"]
    return [*before, {**last, "content": [*blocks, {k: v for k, v in block.items() if k not in MARK}]}]
