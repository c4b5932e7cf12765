"""What OpenAI's two protocols have in common: the credential, errors, and the list of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def error(status: int, reason: str, message: str) -> bytes:
    """An error's body. The code is the provider's own word for the status, where it has one, else our reason."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    told = {"message": f"{reason}: {message}", "type": kind, "param": None, "code": CODES.get(status, reason)}
    return orjson.dumps({"error": told})


def credential(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"authorization": f"Bearer {key}"}


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "moorage"}


def entry(name: str) -> bytes:
    """One model."""
    return orjson.dumps(_entry(name))


def listed(names: Sequence[str]) -> bytes:
    """The list of models."""
    return orjson.dumps({"object": "list", "data": [_entry(name) for name in names]})
