"""What is wrong with data that a model refuses, in words that never repeat the data itself."""

from __future__ import annotations

from pydantic import ValidationError

MOST_NAMED = 5
MOST_CHARACTERS = 2000


def faults(error: ValidationError, whole: str = "body") -> str:
    """`field.path: what it takes`, for the first few fields; `whole` stands for what is wrong with no one field."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    words = [f"{'.'.join(str(part) for part in fault['loc']) or whole}: {fault['msg']}" for fault in found[:MOST_NAMED]]
    more = f" (and {len(found) - MOST_NAMED} more)" if len(found) > MOST_NAMED else ""
    return "; ".join(words)[:MOST_CHARACTERS] + more
