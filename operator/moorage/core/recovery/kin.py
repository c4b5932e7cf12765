"""I1, B3: the children that the dropped records of a repaired journal tell of.

Each of them may live, whatever a dropped record says of its end: its share isn't its parent's to spend until the
child's own journal has said again what it used. So it is kept as one whose share isn't settled. One whose object was
seen isn't made again: somebody may have deleted it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from moorage.core.journal.record import Record, RecordType
from moorage.core.run.family import Share, share_of, total

KEPT = 64
"""Children that are named one by one: a payload has 64 KiB, and a child some hundred bytes."""
KEPT_MADE = 100
"""Names of those that were made: an agent asks for no more."""


class FearedChildren:
    """Collects them, in the order of their records."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}
        self._made: dict[str, None] = {}
        self._asked = 0

    def remember(self, record: Record) -> None:
        """A dropped record of any type. Raise KeyError, TypeError, ValueError where it tells of no child."""
        said = record.payload or {}
        match record.type:
            case RecordType.CHILD_REQUESTED:
                self._found[said["name"]] = _child("", said, said["key"])
                self._asked += 1
            case RecordType.CHILD_STARTED:
                new = _child(said["uid"], said, "")
                asked = self._found.pop(new["name"], {})
                self._found[new["uid"]] = new | {"key": asked.get("key", "")}
            case RecordType.CHILD_MADE:
                self._made[_name(said)] = None
            case RecordType.CHILD_ENDED if not said["uid"]:  # before it began: it was made, or is no more to be
                self._made[_name(said)] = None

    def told(self, lost: int) -> dict[str, Any]:
        """What JOURNAL_REPAIRED says of them. `lost`: records that can't be read; each may have asked for a child, and
        used a number. The shares of those that aren't named are spent.
        """
        named = list(self._found.values())
        rest = total(share_of(each["reserve"]) for each in named[KEPT:])
        said = {
            "children": named[:KEPT],
            "children_made": list(self._made)[:KEPT_MADE],
            "children_asked": self._asked + lost,
            "children_used": _amounts(rest),
        }
        return {name: value for name, value in said.items() if value}


def _child(uid: Any, said: Mapping[str, Any], key: Any) -> dict[str, Any]:
    texts = {"uid": uid, "name": said["name"], "key": key}
    if not all(isinstance(text, str) and len(text) <= 253 for text in texts.values()):
        raise ValueError("no child")
    return texts | {"reserve": _amounts(share_of(said["reserve"]))}


def _name(said: Mapping[str, Any]) -> str:
    name = said["name"]
    if not isinstance(name, str) or len(name) > 253:
        raise ValueError("no child")
    return name


def _amounts(share: Share) -> dict[str, int]:
    return {name: amount for name, amount in asdict(share).items() if amount}
