"""J7: what stands for a journal whose retention is over, so that it is known to be pruned and isn't merely missing.

It is the gateway's signed word for where the journal ended, when it was sealed and pruned, and what the run had come
to: the last state, which its status has shown all along. Content that only the journal had is gone with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage.core.journal.chain import Head
from moorage.core.journal.errors import Malformed
from moorage.core.journal.heads import HeadRefused, key_of

KIND_OF_STATEMENT = "pruned"
_TEXTS = ("run_uid", "hash", "reason")
_YEAR_9999_MS = 253_370_764_800_000
_NUMBERS = ("last", "segments", "generation", "sealed_at", "pruned_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Records 0 to `last` were there, with the chain's `hash` at the last one. Times in ms; `state` is plain JSON."""

    run_uid: str
    last: int
    hash: str
    segments: int
    generation: int
    sealed_at: int
    pruned_at: int
    reason: str
    state: Mapping[str, Any]
    signature: str = ""

    @property
    def head(self) -> Head:
        """Where the journal ended."""
        return Head(self.last, self.hash)

    def said(self) -> dict[str, Any]:
        """What the signature is over."""
        return {name: getattr(self, name) for name in (*_TEXTS, *_NUMBERS)} | {"state": dict(self.state)}


def pruned_of(said: object, signature: object) -> Pruned:
    """Read one. Raise Malformed."""
    if not isinstance(said, dict) or not isinstance(signature, str) or not isinstance(said.get("state"), dict):
        raise Malformed("a tombstone needs what it says, the state that the run came to, and a signature")
    texts: dict[str, Any] = {name: said.get(name) for name in _TEXTS}
    numbers: dict[str, Any] = {name: said.get(name) for name in _NUMBERS}
    if not all(isinstance(each, str) for each in texts.values()):
        raise Malformed(f"a tombstone lacks one of {', '.join(_TEXTS)}")
    if not all(type(each) is int and 0 <= each < _YEAR_9999_MS for each in numbers.values()):
        raise Malformed(f"a tombstone lacks one of {', '.join(_NUMBERS)}")
    try:
        key_of(signature)
    except HeadRefused as error:
        raise Malformed(f"a tombstone isn't signed: {error}") from None
    return Pruned(**texts, **numbers, state=said["state"], signature=signature)
