"""What a run is doing now, in a few words for a list. Pure; its phase and its journal say it exactly."""

from __future__ import annotations

from moorage.core.run.phases import RunPhase
from moorage.core.run.state import RunState


def doing(s: RunState, *, asking: bool) -> str:
    """`asking`: a request of its agent's is with a model."""
    if s.end is not None:
        return s.end.reason
    if s.phase is RunPhase.CANCELLING:
        return f"cancel {s.cancel_stage or 'requested'}"
    if (why := s.pause or s.deferral) is not None:
        return f"{'stops' if s.pausing else 'waits'}: {why.reason}"
    if s.phase is RunPhase.RUNNING:
        return _working(s, asking=asking)
    if s.phase is RunPhase.RECOVERING and s.last_loss is not None:
        return f"after {s.last_loss.reason}"
    return STANDING.get(s.phase, "")


STANDING = {
    RunPhase.PENDING: "admitted",
    RunPhase.PROVISIONING: "sandbox starts",
    RunPhase.AWAITING_APPROVAL: "waits for an approval",
    RunPhase.VERIFYING: "runs acceptance",
    RunPhase.DELIVERING: "pushes",
}


def _working(s: RunState, *, asking: bool) -> str:
    if s.agent_started_at is None:
        return "prepares its worktree"
    if s.agent_end is not None:
        return f"agent {s.agent_end.outcome}"
    if asking:
        return "asks its model"
    count = len(s.open_effects)
    return f"{count} effect{'s' if count > 1 else ''} under way" if count else "works"
