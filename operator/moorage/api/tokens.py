"""How providers name the kinds of tokens that a budget counts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ANTHROPIC: Mapping[str, str] = MappingProxyType(
    {
        "input_tokens": "input_tokens",
        "output_tokens": "output_tokens",
        "cache_read_input_tokens": "cache_read_tokens",
        "cache_creation_input_tokens": "cache_write_tokens",
    }
)
"""Their names to ours. Cached ones are counted beside `input_tokens`, not within."""
