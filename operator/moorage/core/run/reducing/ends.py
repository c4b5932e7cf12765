"""The records of a run's end, and of a cancellation on its way there (S3, X1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes, Handler
from moorage.core.run.phases import IllegalMove, RunPhase, move
from moorage.core.run.state import End, RunState

STAGES = ("requested", "propagated", "acknowledged", "quiesced", "reconciled")


def cancelling(stage: str) -> Handler:
    """X1: a stage of a cancellation, never back."""

    def handler(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
        if s.cancel_stage is None:
            if stage != "requested":
                raise IllegalMove(s.phase, s.phase, f"{r.type} without a request")
            phase = move(s.phase, RunPhase.CANCELLING, r.type)
            begun = {"cancel_reason": p["reason"], "cancel_stage": stage, "cancel_at": r.recorded_at}
            return {"phase": phase, "deferral": None, **begun}
        if STAGES.index(stage) <= STAGES.index(s.cancel_stage):
            return NOTHING
        return {"cancel_stage": stage}

    return handler


def _demand_evidence(s: RunState) -> None:
    """S3, N4: success needs a completed agent, no verdict against it, and a push that is known to have arrived."""
    push, verdict = s.delivered(), s.verification
    if s.agent_end is None or s.agent_end.outcome != "completed":
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, "the agent has not completed")
    if verdict is not None and (verdict.problem is not None or not verdict.passed):
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, "acceptance has not passed")
    if push is not None and push.status != "confirmed":
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, f"the push to {push.target} is {push.status}")
    pull = s.asked_for_merge()
    if pull is not None and pull.status != "confirmed":
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, f"the pull request at {pull.target} is {pull.status}")


def ending(phase: RunPhase) -> Handler:
    """S3: the run's end, where it may end so."""

    def handler(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
        if phase is RunPhase.SUCCEEDED:
            _demand_evidence(s)
        if phase is RunPhase.CANCELLED and s.open_effects:
            raise IllegalMove(s.phase, phase, f"effect {s.open_effects[0].effect_id} is not classified")
        if s.open_children:  # X2: their shares would be settled by a run that has ended, and is let go of
            raise IllegalMove(s.phase, phase, f"child {s.open_children[0].name} isn't settled")
        end = End(p["reason"], p.get("message", ""), p.get("commit"), r.recorded_at)
        return {"phase": move(s.phase, phase, r.type), "end": end}

    return handler
