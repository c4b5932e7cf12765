"""What a run's spec asks to be held up, as it is journaled (T6): what nothing would hold up is refused, not ignored."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from moorage.api.approvals import Approval
from moorage.api.wire import ResolvedAgent, ResolvedApproval
from moorage.core.approvals.consent import COST, DELIVERY, TOOL_CALL

HOLDS_EACH_CALL: Final = frozenset({"builtin", "claude-code"})  # drivers none of whose calls runs before we have a say
ASKS_BEFORE_CALLS: Final = frozenset({"acp", "builtin", "claude-code"})  # drivers whose tool calls wait for an answer


def unenforceable(asked: Sequence[Approval], agent: ResolvedAgent) -> str | None:
    """Why one of these approvals would never be asked for with this agent."""
    calls = next((each.name for each in asked if each.before == TOOL_CALL), None)
    if calls is not None and agent.driver not in ASKS_BEFORE_CALLS:
        able = ", ".join(sorted(ASKS_BEFORE_CALLS))
        return f"spec.approvals {calls}: the driver {agent.driver} holds up no tool call for an answer; {able} do"
    costs = next((each.name for each in asked if each.before == COST), None)
    if costs is not None and agent.model is None:
        return f"spec.approvals {costs}: the run's agent names no model, so that nothing of its cost is known"
    for at, each in enumerate(asked):
        if hiding := _hiding(asked[:at], each):
            return f"spec.approvals {each.name}: never asked: before it come {', '.join(hiding)} for all that it fits"
    return None


def _hiding(earlier: Sequence[Approval], approval: Approval) -> list[str]:
    """Of a kind, the first that fits is asked, and no other; all those before Delivery are. The names of those because
    of which this one never is.
    """
    if approval.before == DELIVERY:
        return []
    alike = [each for each in earlier if each.before == approval.before]
    if approval.step is not None:
        return [each.name for each in alike if each.step is not None and each.step.micros <= approval.step.micros][:1]
    within = [_within(name, alike) for name in _patterns(approval)]
    return list(dict.fromkeys(name for name in within if name)) if all(within) else []


def _patterns(approval: Approval) -> tuple[str, ...]:
    named = approval.tools if approval.before == TOOL_CALL else approval.hosts
    return named or ("*",)


def _within(name: str, approvals: Sequence[Approval]) -> str | None:
    """The one of these that fits all that this name, or pattern, fits: its own `*` is taken by another `*` alone."""
    return next((each.name for each in approvals if any(fnmatchcase(name, wide) for wide in _patterns(each))), None)


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
