"""Messages of JSON-RPC 2.0, an object a line. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

NO_SUCH_METHOD = -32601
BAD_PARAMETERS = -32602
FAILED = -32603

Id = str | int


def request(number: int, method: str, params: Mapping[str, Any]) -> bytes:
    """A call that is answered."""
    return _line({"id": number, "method": method, "params": params})


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    """A call that isn't."""
    return _line({"method": method, "params": params})


def result(number: Id, value: Mapping[str, Any] | None) -> bytes:
    """The answer to a call of the other side's."""
    return _line({"id": number, "result": value})


def error(number: Id, code: int, message: str) -> bytes:
    """The answer that there will be none."""
    return _line({"id": number, "error": {"code": code, "message": message}})


def identity(message: Mapping[str, Any]) -> Id | None:
    """The id of a call that wants an answer, or of an answer; None where there is none that an answer could name."""
    found = message.get("id")
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
