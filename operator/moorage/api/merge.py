"""Merge patches (RFC 7386) over plain JSON objects: what to send, and what it does.

A patch can't say null, since that takes a field away; our objects leave out what they don't know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def patch_to(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """The patch that makes `new` of `old`, at every depth. Everything of `new` is said, so that it heals drift too."""
    gone = {name: None for name in old if name not in new}
    return gone | {name: _value(value, old.get(name)) for name, value in new.items()}


def _value(new: Any, old: Any) -> Any:
    return patch_to(new, old) if isinstance(new, Mapping) and isinstance(old, Mapping) else new


def patched(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """What an API server makes of `old`."""
    kept = {name: value for name, value in old.items() if name not in patch}
    return kept | {name: _patched(old.get(name), value) for name, value in patch.items() if value is not None}


def _patched(old: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return patched(old if isinstance(old, Mapping) else {}, value)
