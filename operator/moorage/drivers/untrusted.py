"""JSON that somebody else's program or provider wrote, made safe to journal and to act on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64
MAX_NUMBER = 1 << 53


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


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object; an empty one else."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """The value where it is text; an empty one else."""
    return value if isinstance(value, str) else ""


def number(value: object) -> int | None:
    """The value where it is an integer that JSON carries from anybody to anybody."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER else None


def counts(usage: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, int]:
    """Tokens by our names, from theirs (`names`: theirs to ours); what is no count, or 0, is left out."""
    found = {ours: number(usage.get(theirs)) for theirs, ours in names.items()}
    return {name: n for name, n in found.items() if n is not None and n > 0}


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The sum of two counts, by name."""
    return {**one, **{name: one.get(name, 0) + count for name, count in other.items()}}
