"""K1: the boundaries that a run crosses by a record, named where any record is appended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from moorage.core.journal.record import Draft, RecordType
from moorage.points import Point, reached

_TERMINAL = (Point.TERMINAL_BEFORE, Point.TERMINAL_AFTER)
CROSSINGS: Mapping[str, tuple[Point, Point]] = MappingProxyType(
    {
        RecordType.RUN_SUCCEEDED.value: _TERMINAL,
        RecordType.RUN_FAILED.value: _TERMINAL,
        RecordType.RUN_CANCELLED.value: _TERMINAL,
        RecordType.PAUSE_REQUESTED.value: (Point.PAUSE_BEFORE, Point.PAUSE_WITHIN),
        RecordType.PAUSED.value: (Point.PARK_BEFORE, Point.PARK_AFTER),
        RecordType.RESUMED.value: (Point.RESUME_BEFORE, Point.RESUME_AFTER),
    }
)


@contextmanager
def crossing(drafts: Sequence[Draft]) -> Iterator[None]:
    """Around an append; what fails reaches no far side."""
    points = [CROSSINGS[draft.type] for draft in drafts if draft.type in CROSSINGS]
    for before, _ in points:
        reached(before)
    yield
    for _, after in points:
        reached(after)
