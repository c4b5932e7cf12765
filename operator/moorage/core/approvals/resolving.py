"""What a run's spec asks to be held up, as it is journaled (T6): what nothing would hold up is refused, not ignored."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Final

from moorage.api.approvals import Approval
from moorage.api.wire import ResolvedAgent, ResolvedApproval
from moorage.core.approvals.consent import COST, DELIVERY, TOOL_CALL

ASKS_BEFORE_CALLS: Final = frozenset({"builtin"})  # drivers whose tool calls wait for an approval


def unenforceable(asked: Sequence[Approval], agent: ResolvedAgent) -> str | None:
    """Why one of these approvals would never be asked for with this agent."""
    calls = next((each.name for each in asked if each.before == TOOL_CALL), None)
    if calls is not None and agent.driver not in ASKS_BEFORE_CALLS:
        able = ", ".join(sorted(ASKS_BEFORE_CALLS))
        return f"spec.approvals {calls}: the driver {agent.driver} doesn't ask before its tool calls; {able} does"
    costs = next((each.name for each in asked if each.before == COST), None)
    if costs is not None and agent.model is None:
        return f"spec.approvals {costs}: the run's agent names no model, so that nothing of its cost is known"
    hidden = next(((a, b) for a, b in combinations(asked, 2) if _hides(a, b)), None)
    if hidden is not None:
        first, second = hidden
        return f"spec.approvals {second.name}: never asked: {first.name} stands before it and fits all that it fits"
    return None


def _hides(first: Approval, second: Approval) -> bool:
    """Of a kind, the first that fits is asked, and no other; all those before Delivery are."""
    if first.before != second.before or first.before == DELIVERY:
        return False
    if first.step is not None and second.step is not None:
        return second.step.micros >= first.step.micros
    wide, narrow = (first.tools, second.tools) if first.before == TOOL_CALL else (first.hosts, second.hosts)
    return not wide or "*" in wide or (bool(narrow) and all(_within(each, wide) for each in narrow or ()))


def _within(name: str, patterns: Sequence[str]) -> bool:
    """Certainly so: of two patterns that differ, nothing is said."""
    return name in patterns or (not set(name) & set("*?[") and any(fnmatchcase(name, each) for each in patterns))


def resolved(asked: Sequence[Approval]) -> tuple[ResolvedApproval, ...]:
    """Exactly as they are told, with nothing left to look up."""
    return tuple(
        ResolvedApproval(
            name=each.name,
            before=each.before,
            tools=each.tools or (),
            hosts=each.hosts or (),
            step_micros=each.step.micros if each.step else None,
            reject_after_ms=each.reject_after.ms if each.reject_after else None,
        )
        for each in asked
    )
