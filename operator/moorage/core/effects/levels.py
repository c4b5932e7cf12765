"""E3, E4: how repeatable an effect is by its own declaration, and what that allows when its end isn't known.

| level | what it means | a second time, where the first one's end isn't known |
|---|---|---|
| read_only | changes nothing | at any time |
| natural | the same again changes nothing more | at any time |
| keyed | the target drops a second one of the same key | under the same key |
| conditional | the target takes it only from a stated state, and can be asked | asked first, under the same condition |
| queryable | the target can be asked whether it happened | only where the target says that it did not |
| opaque | none of these; also what was never declared | never: a person is asked |
"""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """E3, from the most repeatable to the least."""

    READ_ONLY = "read_only"
    NATURAL = "natural"
    KEYED = "keyed"
    CONDITIONAL = "conditional"
    QUERYABLE = "queryable"
    OPAQUE = "opaque"


NOT_HAPPENED = frozenset({"not_dispatched", "rejected"})
FREELY = frozenset({Level.READ_ONLY, Level.NATURAL, Level.KEYED})
ASKED_FIRST = frozenset({Level.CONDITIONAL, Level.QUERYABLE})


def level_of(declared: object) -> Level:
    """The level that an intent declares; whatever this version doesn't know is opaque."""
    return Level(declared) if isinstance(declared, str) and declared in Level.__members__.values() else Level.OPAQUE


def queryable(level: str) -> bool:
    """E4: the target can be asked what became of an effect of this level."""
    return level in ASKED_FIRST


def may_repeat(level: Level, status: str) -> bool:
    """Whether another intent of the same key may follow one of that status (see `Effect.status`). What is confirmed has
    a recorded result, which is returned instead; what is known not to have happened may be tried at every level.
    """
    if status in NOT_HAPPENED:
        return True
    return level in FREELY and status != "confirmed"
