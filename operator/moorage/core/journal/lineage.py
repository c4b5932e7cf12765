"""I1, P3: generations of a journal. A repair drops a range of offsets and goes on behind it; no offset is used twice.

    generation 1:  0 … k │ k+1 … h            k is the last good record, h the head when it was repaired
    generation 2:  0 … k │           h+1 …    h+1 is JOURNAL_REPAIRED, which names what it dropped and follows k's hash

The old generation stays where it is, and is read by nobody who goes on with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from moorage.core.journal.record import Record, RecordType


class Dropped(NamedTuple):
    """Offsets from `first` to `last` that belong to no later generation."""

    first: int
    last: int


class Repair(NamedTuple):
    """What a JOURNAL_REPAIRED says: the generation that begins with it, and the offsets that it leaves behind."""

    generation: int
    dropped: Dropped
    why: str


def live_spans(
    dropped: Sequence[Dropped], first: int, last: int, limit: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the ranges from `first` to `last` that weren't dropped, in order, of `limit` offsets in all at most.

    Gaps may lie within each other: a later repair may go back behind an earlier one.
    """
    left = last - first + 1 if limit is None else limit
    at = max(first, 0)
    for gap in (*sorted(dropped), Dropped(last + 1, last + 1)):
        end = min(gap.first - 1, last, at + left - 1)
        if end >= at:
            yield at, end
            left -= end - at + 1
        at = max(at, gap.last + 1)


def is_live(dropped: Sequence[Dropped], offset: int) -> bool:
    """Whether that offset belongs to the present generation."""
    return not any(gap.first <= offset <= gap.last for gap in dropped)


def repair_of(record: Record) -> Repair | None:
    """What a record repairs; None for every other record, and for one that says so in another shape."""
    if record.type != RecordType.JOURNAL_REPAIRED:
        return None
    said = record.payload or {}
    gap, generation, why = said.get("dropped"), said.get("generation"), said.get("why")
    if not isinstance(gap, dict) or type(generation) is not int or not isinstance(why, str):
        return None
    first, last = gap.get("first"), gap.get("last")
    if type(first) is not int or type(last) is not int or not 0 <= first <= last:
        return None
    return Repair(generation, Dropped(first, last), why)
