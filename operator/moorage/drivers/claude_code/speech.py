"""What is said to Claude Code on its stdin, an object a line. Pure; seen with Claude Code 2.1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

HOOK = "moorage"  # the name under which it calls us before a tool runs
EVENT = "PreToolUse"
ALLOWED = {"hookSpecificOutput": {"hookEventName": EVENT, "permissionDecision": "allow"}}
PATIENCE_S = 7 * 24 * 3600  # for our answer; its own minute would be over before a person's, and the call would run


def hello() -> bytes:
    """Have it call us before each tool runs, and wait for our answer."""
    hooks = {EVENT: [{"matcher": "*", "hookCallbackIds": [HOOK], "timeout": PATIENCE_S}]}
    request = {"subtype": "initialize", "hooks": hooks}
    return _line({"type": "control_request", "request_id": "hello", "request": request})


def user(text: str, name: str) -> bytes:
    """Words of the user's; what becomes of them is told by that name, a UUID."""
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return _line({"type": "user", "uuid": name, "session_id": "", "parent_tool_use_id": None, "message": message})


def answer(request: str, response: Mapping[str, Any]) -> bytes:
    """What it waits for."""
    return _response({"subtype": "success", "request_id": request, "response": response})


def denied(why: str) -> Mapping[str, Any]:
    """The answer of the hook that the call doesn't run."""
    told = {"hookEventName": EVENT, "permissionDecision": "deny", "permissionDecisionReason": why}
    return {"hookSpecificOutput": told}


def forbidden(why: str) -> Mapping[str, Any]:
    """The same where its own rules have it ask."""
    return {"behavior": "deny", "message": why}


def refusal(request: str, why: str) -> bytes:
    """That it waits in vain."""
    return _response({"subtype": "error", "request_id": request, "error": why})


def _response(response: Mapping[str, Any]) -> bytes:
    return _line({"type": "control_response", "response": response})


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
