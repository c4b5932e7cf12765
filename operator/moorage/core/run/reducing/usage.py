"""What the records say was used (B3): it is added up, and never falls (I4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes
from moorage.core.run.state import AMOUNTS, RunState, Usage


def tool_response(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """One more call is answered."""
    return {"usage": s.usage.plus("tool_calls"), "progress_at": r.recorded_at}


def model_request(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """One more request, or the same one once more."""
    counted = "model_retries" if "retry_of" in p else "model_requests"  # O1: the same request once more
    return {"usage": s.usage.plus(counted), "progress_at": r.recorded_at}


def model_response(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """What the provider billed."""
    if p.get("replayed"):  # R2: an answer given again is not billed again
        return {"progress_at": r.recorded_at}
    return {"usage": add_usage(s.usage, p.get("usage") or {}), "progress_at": r.recorded_at}


def add_usage(usage: Usage, more: Mapping[str, int]) -> Usage:
    """Sum by name; names that aren't in the vector are left out, negative amounts are refused (I4)."""
    known = {name: amount for name, amount in more.items() if name in AMOUNTS}
    for name, amount in known.items():
        if amount < 0:
            raise ValueError(f"usage {name} can't be negative: {amount}")
    for name, amount in known.items():
        usage = usage.plus(name, amount)
    return usage


def charged(s: RunState, p: Mapping[str, Any]) -> Changes:
    """B3: what the record itself says was used. Older versions said nothing of it."""
    return {"usage": add_usage(s.usage, p["usage"])} if p.get("usage") else NOTHING
