"""JSON that somebody else's program or provider wrote, made safe to journal and to act on."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 64


def read(data: bytes) -> Any:
    """The value, without what no UTF-8 and no canonical JSON can carry. Raises ValueError, also where it is nested past
    all reason.
    """
    try:
        return _plain(json.loads(data, parse_constant=lambda _: None), MAX_DEPTH)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _plain(value: Any, depth: int) -> Any:
    """The same value without half surrogates."""
    if depth == 0:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_plain(k, depth): _plain(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth - 1) for item in value]
    return value
