"""The records of constraints: which are violated, and which hold again (C2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.journal.record import Record, Source
from moorage.core.run.changes import NOTHING, Changes
from moorage.core.run.state import RunState, Violation


def evaluated(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Whoever was asked stands or falls by this; who wasn't, behind an EMERGENCY_STOP, stays as it was.

    Runners of older versions might report one; they have no say in this.
    """
    if r.source != Source.GATEWAY:
        return NOTHING
    asked = {each["constraint"] for each in p["validations"]}
    kept = tuple(v for v in s.violations if v.constraint not in asked)
    return {"violations": kept + tuple(_violation(s, r, v) for v in p["validations"] if not v["holds"])}


def _violation(s: RunState, r: Record, p: Mapping[str, Any]) -> Violation:
    """Since when it stands is kept while it does, for the same action."""
    before = next((v for v in s.violations if v.constraint == p["constraint"]), None)
    at = before.at if before and before.action == p["action"] else r.recorded_at
    waived = before.waived if before else ""
    return Violation(p["constraint"], p["action"], p["reason"], p["message"], at, waived)
