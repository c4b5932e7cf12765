"""What a record changes of a run's state: the shape that all of the reducer's handlers have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moorage.core.journal.record import Record
from moorage.core.run.phases import RunPhase, move
from moorage.core.run.state import RunState

Changes = Mapping[str, Any]
"""The fields of a state that are another after a record, by name."""
Handler = Callable[[RunState, Record, Mapping[str, Any]], Changes]

NOTHING: Changes = {}


def to(state: RunState, phase: RunPhase, why: str, **changes: Any) -> Changes:
    """Move, unless the run is being cancelled: then facts are kept and the phase stays (I5)."""
    if state.phase is not RunPhase.CANCELLING:
        changes["phase"] = move(state.phase, phase, why)
    return changes
