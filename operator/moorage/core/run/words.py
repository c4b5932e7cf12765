"""The records that the operator writes, with ids that follow from what they say."""

from __future__ import annotations

from typing import Any

from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Report
from moorage.core.run.observed import SandboxView
from moorage.core.run.state import PauseReason, RunState

KNOWN_OUTSIDE = frozenset(
    {"Interrupted", "NodeLost", "OwnerChanged", "OwnerLost", "Preempted", "SandboxDeleted", "VolumeUnreachable"}
)
"""Reasons that a sandbox can't know of itself. The operator, Kubernetes or a run's owner says them; they lengthen no
pause (R6)."""


def self_told(reason: str, message: str) -> tuple[str, str]:
    """Why a sandbox ended, by its own word. What it can't know, it has made up, and it isn't without blame by that."""
    if reason in KNOWN_OUTSIDE:
        return "RunnerFailed", f"the sandbox named {reason} itself: {message}"
    return reason, message


def report(kind: RecordType, payload: dict[str, Any], *key: object) -> Report:
    """A record of the operator's whose id follows from `key`, so that saying it again changes nothing."""
    return Report(":".join(["op", kind.value, *(str(k) for k in key)]), kind.value, payload)


def placed(view: SandboxView, environment: str) -> Report:
    """O4: where that sandbox runs, and in what."""
    where = {"node": view.node, "runtime": view.runtime, "environment": environment}
    payload = {"pod_uid": view.uid, "epoch": view.epoch, "role": view.role, **where}
    return report(RecordType.SANDBOX_PLACED, payload, view.uid)


def fail(reason: str, message: str, commit: str | None = None) -> Report:
    """The end without success."""
    return report(RecordType.RUN_FAILED, {"reason": reason, "message": message, "commit": commit}, "end")


def lacking(s: RunState, message: str = "") -> str:
    """The message, and what the proposal lacks of the agent's tree."""
    if not s.left_out_count:
        return message
    more = s.left_out_count - len(s.left_out)
    named = "; ".join([*s.left_out, *([f"{more} more"] if more else [])])
    return "; ".join(filter(None, (message, f"left out of the result: {named}")))


def attempt_ended(s: RunState, role: str, reason: str, message: str, serial: int = 0) -> Report:
    """The sandbox of that role and epoch counts as lost from here on."""
    payload = {"epoch": s.epoch, "role": role, "reason": reason, "message": message}
    return report(RecordType.ATTEMPT_ENDED, payload, role, s.epoch, serial)


def give_up(s: RunState, reason: str, message: str) -> Report:
    """The attempt is lost though its sandbox may still run; the next epoch fences it off."""
    return attempt_ended(s, "runner", reason, message)


def ask_to_pause(
    s: RunState, reason: PauseReason, message: str, *, by: str, limit: str | None = None, kill: bool = False
) -> Report:
    """Q5: the run is to stop at its next safe point; with `kill` where it stands."""
    payload = {"reason": reason.value, "by": by, "message": message, "limit": limit, "kill": kill}
    return report(RecordType.PAUSE_REQUESTED, payload, s.pauses, s.epoch, reason.value, *(["kill"] if kill else []))


def lost(s: RunState, role: str, view: SandboxView | None, serial: int = 0) -> Report:
    """The sandbox is gone or ended without the result that it was for."""
    if role == "runner" and s.agent_end is not None and s.agent_end.outcome == "unknown":
        return attempt_ended(s, role, *self_told(s.agent_end.reason, s.agent_end.message), serial)
    if view is None:
        return attempt_ended(s, role, "SandboxDeleted", "the sandbox was deleted from outside", serial)
    reason = view.reason or "SandboxEnded"
    return attempt_ended(s, role, reason, view.message or "the sandbox ended without a result", serial)
