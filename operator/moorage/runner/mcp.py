"""The tools of child runs for agents that aren't ours, as a server of the Model Context Protocol on loopback.

Of the protocol's streamable HTTP this is the part without streams: each POST is a JSON-RPC message, and its answer is
the response. Nothing is kept between them. A call has no id that outlives its client, so a child is known by what is
asked for: the same goal with the same limits, asked for again after a recovery, is the same child.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from moorage.api.budget import Budget
from moorage.drivers.builtin import relatives
from moorage.drivers.port import ChildRuns
from moorage.drivers.telling import ToolResult
from moorage.workspace.errors import WorkspaceError

VERSION = "2025-06-18"
PARSE_ERROR, INVALID, UNKNOWN_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602


class _Tool(NamedTuple):
    arguments: type[BaseModel]
    run: Callable[[Any], Awaitable[ToolResult]]


class _Failed(Exception):
    """A JSON-RPC error: code, and words."""

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


class ChildTools:
    """One per attempt. `budget`: what the gateway told last. `call_s`: no wait takes longer than that."""

    def __init__(self, children: ChildRuns, budget: Callable[[], Budget], *, call_s: int = relatives.LONGEST_S) -> None:
        self._children, self._budget, self._call_s = children, budget, call_s
        self._tools: Mapping[str, _Tool] = {
            "spawn_run": _Tool(relatives.SpawnArguments, self._spawn),
            "wait_run": _Tool(relatives.WaitArguments, self._wait),
            "merge_run": _Tool(relatives.MergeArguments, self._merge),
            "remaining_budget": _Tool(relatives.BudgetArguments, self._remaining),
            "report_progress": _Tool(relatives.ProgressArguments, self._progress),
        }
        self._methods: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = MappingProxyType(
            {"initialize": _hello, "ping": _pong, "tools/list": self._list, "tools/call": self._call}
        )

    async def answer(self, body: bytes) -> bytes | None:
        """The answer to one message; None to one that asks for nothing."""
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            return _error(None, PARSE_ERROR, "not JSON")
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            return _error(None, INVALID, "one JSON-RPC request or notification is taken at a time")
        if "id" not in message:
            return None
        params, method = message.get("params") or {}, self._methods.get(message["method"])
        if method is None or not isinstance(params, dict):
            return _error(message["id"], UNKNOWN_METHOD, f"there is no method {message['method'][:64]}")
        try:
            return orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": await method(params)})
        except _Failed as error:
            return _error(message["id"], error.code, error.message)

    async def _list(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"tools": [_described(name, tool.arguments) for name, tool in self._tools.items()]}

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        tool = self._tools.get(str(params.get("name")))
        if tool is None:
            raise _Failed(BAD_PARAMS, f"there is no tool of that name; there are: {', '.join(self._tools)}")
        try:
            result = await tool.run(tool.arguments.model_validate(params.get("arguments") or {}))
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
            return _content(said, failed=True)
        except WorkspaceError as error:
            return _content(str(error), failed=True)
        return _content(result.text, failed=not result.ok)

    async def _spawn(self, asked: relatives.SpawnArguments) -> ToolResult:
        key = hashlib.sha256(asked.model_dump_json().encode()).hexdigest()
        return await relatives.spawned(self._children, f"mcp:{key}", asked)

    async def _wait(self, asked: relatives.WaitArguments) -> ToolResult:
        within_s = min(asked.timeout_s, max(0, self._call_s - relatives.SPARE_S))
        return await relatives.waited(self._children, asked.model_copy(update={"timeout_s": within_s}))

    async def _merge(self, asked: relatives.MergeArguments) -> ToolResult:
        """To its end, also where its client has given up: half of it would be no work of anybody's."""
        return await asyncio.shield(relatives.merged(self._children, asked))

    async def _remaining(self, _: relatives.BudgetArguments) -> ToolResult:
        return relatives.remaining(self._budget())

    async def _progress(self, asked: relatives.ProgressArguments) -> ToolResult:
        """The journal has what an agent says by its driver."""
        return ToolResult(True, f"noted: {asked.text[:80]}")


async def _hello(params: Mapping[str, Any]) -> dict[str, Any]:
    """The version that the client speaks: what is used of it is the same in all of them."""
    version = params.get("protocolVersion")
    return {
        "protocolVersion": version if isinstance(version, str) else VERSION,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "moorage", "version": "1"},
    }


async def _pong(_: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _described(name: str, arguments: type[BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    description = " ".join(str(schema.pop("description", "")).split())
    return {"name": name, "description": description, "inputSchema": schema}


def _content(text: str, *, failed: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _error(id_: Any, code: int, message: str) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}})
