"""One usage vector from three shapes (B1), so that no token is counted twice and none is left out.

| ours | Anthropic Messages | OpenAI Responses and Chat Completions |
|---|---|---|
| `input_tokens`, uncached | `input_tokens` | `input_tokens` or `prompt_tokens`, less those below |
| `cache_read_tokens` | `cache_read_input_tokens` | `cached_tokens` of their details |
| `cache_write_tokens` | `cache_creation_input_tokens` | `cache_write_tokens` of their details, where there are |
| `cache_write_1h_tokens`, part of those | `ephemeral_1h_input_tokens` of `cache_creation` | none |
| `output_tokens` | `output_tokens` | `output_tokens` or `completion_tokens` |
| `reasoning_tokens`, part of those | none | `reasoning_tokens` of their details |

What isn't a count is left out, and a part is never more than its whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Vector = dict[str, int]
Shape = Callable[[object], Vector]

KINDS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
"""These add up to all tokens; the others are parts of them."""
_ANTHROPIC = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


def total(vector: Mapping[str, int]) -> int:
    """All tokens of a vector."""
    return sum(vector.get(kind, 0) for kind in KINDS)


def against_rate(vector: Mapping[str, int]) -> int:
    """Tokens that count against what a provider takes in a minute: what it reads from its cache doesn't."""
    return total(vector) - vector.get("cache_read_tokens", 0)


def anthropic(usage: object) -> Vector:
    """Of a Messages usage: cached tokens stand beside `input_tokens`, not within."""
    told = _object(usage)
    vector = {ours: amount for theirs, ours in _ANTHROPIC.items() if (amount := _count(told.get(theirs))) is not None}
    lasting = _count(_object(told.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    written = vector.get("cache_write_tokens")
    if lasting and written is not None:
        vector["cache_write_1h_tokens"] = min(lasting, written)
    return vector


def openai_responses(usage: object) -> Vector:
    """Of a Responses usage: what was read from a cache or written to one stands within `input_tokens`."""
    return _openai(_object(usage), "input_tokens", "output_tokens")


def openai_chat(usage: object) -> Vector:
    """Of a Chat Completions usage: the same by other names."""
    return _openai(_object(usage), "prompt_tokens", "completion_tokens")


def _openai(told: Mapping[str, object], inward: str, outward: str) -> Vector:
    vector: Vector = {}
    asked, said = _count(told.get(inward)), _count(told.get(outward))
    if asked is not None:
        parts = _object(told.get(f"{inward}_details"))
        read = min(_count(parts.get("cached_tokens")) or 0, asked)
        written = min(_count(parts.get("cache_write_tokens")) or 0, asked - read)
        vector |= {"input_tokens": asked - read - written}
        vector |= _some("cache_read_tokens", read) | _some("cache_write_tokens", written)
    if said is not None:
        thought = min(_count(_object(told.get(f"{outward}_details")).get("reasoning_tokens")) or 0, said)
        vector |= {"output_tokens": said} | _some("reasoning_tokens", thought)
    return vector


def _some(name: str, amount: int) -> Vector:
    return {name: amount} if amount else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
