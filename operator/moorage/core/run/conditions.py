"""The conditions of an AgentRun, one small function each: they are the truth, the phase is their summary."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.api.meta import Condition, Status, get_condition
from moorage.api.wire import Role
from moorage.core.approvals.consent import foremost
from moorage.core.constraints.context import lived_ms
from moorage.core.constraints.telling import VIOLATED, stopping, warning
from moorage.core.run.actions import Plan
from moorage.core.run.approving import told as asking
from moorage.core.run.limits import Spent, ineffective, spent
from moorage.core.run.observed import Observed, SandboxPhase
from moorage.core.run.phases import RunPhase
from moorage.core.run.rework import REWORK
from moorage.core.run.state import Effect, PauseReason, RunState
from moorage.core.run.waiting import named

OVER_BUDGET = frozenset({"BudgetExhausted", "WallClockExceeded"})
WITHIN = "WithinLimits"
TIGHTER = "for a tighter one, cancel this AgentRun and create a new AgentRun"
SANDBOX_PROBLEMS = frozenset({"RuntimeClassNotFound"})


def conditions(o: Observed, told: Plan, phase: str, previous: Iterable[Condition]) -> tuple[Condition, ...]:
    """All but those of kstatus. `told` carries the run's reason and message, `phase` the one that is shown."""
    s = o.journal
    if s is None:
        return _unheard(told, tuple(previous))
    return (
        _admitted(o, s, told),
        _workspace_ready(s, told),
        _sandbox_ready(o, s, told),
        _owned(o, s),
        _progressing(s, told, phase),
        _within_budget(o, s, told),
        _effects_closed(s),
        *_awaiting(o, s),
        _accepted(o, s),
        _delivered(o, s, told),
        _succeeded(told, phase),
    )


def _awaiting(o: Observed, s: RunState) -> tuple[Condition, ...]:
    """T6: of a run that asks for approvals."""
    if o.spec is None or not o.spec.approvals:
        return ()
    pending = foremost(s.consents, s.epoch)
    if pending is None or s.end is not None:
        return (_truth("AwaitingApproval", "False", "NothingPending"),)
    return (_truth("AwaitingApproval", "True", pending.before, asking(o.spec, pending)),)


def _truth(kind: str, status: Status, reason: str, message: str = "") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message)


def _unheard(told: Plan, previous: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """The gateway is away: what was known stays, and that it isn't known to progress is said."""
    kept = () if get_condition(previous, "Admitted") else (_truth("Admitted", "Unknown", told.reason, told.message),)
    return (*kept, _truth("Progressing", "Unknown", told.reason, told.message))


def _admitted(o: Observed, s: RunState, told: Plan) -> Condition:
    if s.admitted_at is not None:
        late = o.suspend and s.phase in {RunPhase.VERIFYING, RunPhase.DELIVERING}
        goes_on = "; its agent is done: spec.suspend comes too late, and the result is judged and delivered"
        return _truth("Admitted", "True", "Admitted", f"the resolved spec is in the journal{goes_on if late else ''}")
    reason = o.problem.reason if o.problem else told.reason
    return _truth("Admitted", "False", reason, o.problem.message if o.problem else told.message)


def _workspace_ready(s: RunState, told: Plan) -> Condition:
    if s.workspace_base is not None:
        return _truth("WorkspaceReady", "True", "Ready", f"worktree at {s.workspace_base}")
    waits = s.deferral is not None and s.deferral.of_start and s.deferral.reason == told.reason
    if waits or told.reason.startswith("Workspace"):
        return _truth("WorkspaceReady", "False", told.reason, told.message)
    return _truth("WorkspaceReady", "False", "NotReady")


def _sandbox_ready(o: Observed, s: RunState, told: Plan) -> Condition:
    kind = "SandboxReady"
    if told.reason in SANDBOX_PROBLEMS:
        return _truth(kind, "False", told.reason, told.message)
    if s.end is not None:
        return _truth(kind, "False", "RunEnded")
    if s.phase is RunPhase.PAUSED:
        return _truth(kind, "False", "Paused", "the sandbox is released; the volume is kept")
    return _sandbox_seen(o, s, told)


def _sandbox_seen(o: Observed, s: RunState, told: Plan) -> Condition:
    kind = "SandboxReady"
    view = o.sandbox(s.epoch, Role.RUNNER)
    if view is None:
        loss = s.last_loss if s.phase is RunPhase.RECOVERING else None
        return _truth(kind, "False", loss.reason if loss else "NotCreated", loss.message if loss else "")
    if view.phase is SandboxPhase.RUNNING:
        return _truth(kind, "True", view.reason or "Running", view.message or f"pod {view.name}")
    if view.phase is SandboxPhase.WAITING and not view.reason and told.reason == "SlowStart":
        return _truth(kind, "False", told.reason, told.message)
    if view.phase is SandboxPhase.ENDED and s.agent_end is not None:
        # what its pod says is told as a loss, if it is one
        return _truth(kind, "False", "Ended", "the agent has ended")
    default = "Starting" if view.phase is SandboxPhase.WAITING else "Ended"
    return _truth(kind, "False", view.reason or default, view.message)


def _owned(o: Observed, s: RunState) -> Condition:
    if s.end is not None:
        return _truth("Owned", "False", "RunEnded")
    if s.phase is RunPhase.PAUSED:
        return _truth("Owned", "False", "Paused", "nobody works on it")
    if s.epoch > 0 and s.phase is not RunPhase.RECOVERING:
        return _truth("Owned", "True", "Leased", f"attempt {s.attempt} owns it under epoch {s.epoch}")
    return _truth("Owned", "False", "NoOwner")


def _progressing(s: RunState, told: Plan, phase: str) -> Condition:
    if s.end is not None or s.phase in {RunPhase.PENDING, RunPhase.PAUSED}:
        return _truth("Progressing", "False", told.reason, told.message)
    return _truth("Progressing", "True", phase)


def _reached(o: Observed, s: RunState) -> Spent | None:
    """The wall clock says nothing more of a run that an agent has completed."""
    if o.spec is None:
        return None
    lived = lived_ms(s, s.idle_since) if s.idle_since is not None else None
    return spent(o.spec.limits, s, iterations=o.iterations if s.phase is RunPhase.PAUSED else None, lived_ms=lived)


def _within_budget(o: Observed, s: RunState, told: Plan) -> Condition:
    """With what the run's author would otherwise only miss: a limit that came too late to count."""
    found = _budget(o, s, told)
    added = ineffective(o.spec.limits, o.wanted) if o.spec is not None and s.end is None else ()
    if not added:
        return found
    why = f"without effect: {', '.join(added)}: limits that were admitted can only be raised; {TIGHTER}"
    return found.model_copy(update={"message": f"{found.message}; {why}" if found.message else why})


def _budget(o: Observed, s: RunState, told: Plan) -> Condition:
    if s.end is not None and s.end.reason in OVER_BUDGET:
        return _truth("WithinBudget", "False", s.end.reason, s.end.message)
    reached = _reached(o, s)
    if reached is not None:
        return _truth("WithinBudget", "False", reached.reason, reached.message)
    if (stop := stopping(s.violations)) is not None:
        return _truth("WithinBudget", "False", _short(stop.reason) or VIOLATED, stop.message)
    paused = s.pause is not None and s.pause.reason == PauseReason.BUDGET and s.phase is RunPhase.PAUSED
    if paused or told.reason == PauseReason.BUDGET:  # or its result waits for a question that may not be asked
        return _truth("WithinBudget", "False", PauseReason.BUDGET, told.message)
    if passed := warning(s.violations):
        why = "; ".join(v.message for v in passed)
        return _truth("WithinBudget", "True", _short(passed[0].reason) or VIOLATED, why)
    return _truth("WithinBudget", "True", WITHIN)


def _effects_closed(s: RunState) -> Condition:
    unknown = s.unknown_effects
    if unknown:
        asked = "; the target is asked again" if s.unsettled_effects else ""
        why = f"may or may not have happened: {named(unknown)}; look there: nothing is done twice{asked}"
        return _truth("EffectsClosed", "False", "EffectUnknown", f"{why}; {_to_resolve(unknown)}")
    if s.open_effects:
        return _truth("EffectsClosed", "False", "EffectsOpen", f"{len(s.open_effects)} under way")
    said = ", ".join(f"{e.effect_id} {e.status}, {e.detail}" for e in s.effects if e.detail.startswith("resolved by "))
    return _truth("EffectsClosed", "True", "NoneOpen", said)


def _to_resolve(unknown: tuple[Effect, ...]) -> str:
    return f"then say so: kubectl moorage resolve RUN {unknown[0].effect_id} --confirmed|--rejected"


def _accepted(o: Observed, s: RunState) -> Condition:
    verdict = s.verification
    if o.spec is not None and not o.spec.acceptance:
        return _truth("Accepted", "Unknown", "NothingAsked", "the run has no acceptance commands")
    if verdict is None and s.rejected is not None:
        why = f"not on {s.rejected.commit}; attempt {s.rounds + 1} of {_most(o, s)} at it goes on from there"
        return _truth("Accepted", "False", REWORK, why)
    if verdict is None or verdict.problem is not None:
        return _truth("Accepted", "Unknown", "NotVerified", (verdict.problem or "") if verdict else "")
    if not verdict.passed:
        return _truth("Accepted", "False", "AcceptanceFailed", verdict.summary)
    if not verdict.isolated:
        return _truth("Accepted", "True", "Unisolated", "the commands had no sandbox of their own: reported only")
    return _truth("Accepted", "True", "Verified", f"acceptance passed on {verdict.commit}")


def _most(o: Observed, s: RunState) -> int:
    """Attempts that there may be at a result that is accepted."""
    return 1 + (o.spec.acceptance_rounds if o.spec is not None else s.rounds)


def _delivered(o: Observed, s: RunState, told: Plan) -> Condition:
    kind, push = "Delivered", s.delivered()
    pull = o.spec.delivery.pull_request if o.spec and o.spec.delivery else None
    if push is not None and push.status == "confirmed" and (pull is not None or s.asked_for_merge() is not None):
        return _asked_for_merge(s, s.asked_for_merge(), told)
    if push is not None:
        return _pushed(s, push, told)
    if s.deferral is not None and not s.deferral.of_start:
        return _truth(kind, "False", s.deferral.reason, told.message or s.deferral.message)
    delivery = o.spec.delivery if o.spec else None
    if o.spec is not None and delivery is None:
        return _truth(kind, "Unknown", "NothingAsked", "the run has no delivery")
    if s.phase is RunPhase.SUCCEEDED and delivery is not None:
        kept = f"{s.end.commit} stays in the gateway's git store" if s.end and s.end.commit else "nothing has changed"
        return _truth(kind, "True", "BranchKept", f"nothing is pushed: {kept}")
    return _truth(kind, "False", "NotDelivered")


def _pushed(s: RunState, push: Effect, told: Plan) -> Condition:
    kind = "Delivered"
    if push.status == "confirmed":
        return _truth(kind, "True", "Pushed", push.target)
    if push.status == "rejected":
        return _truth(kind, "False", _short(push.detail.partition(": ")[0]) or "PushRejected", push.detail)
    status: Status = "False" if push.status == "not_dispatched" else "Unknown"
    if s.deferral is not None and s.end is None:
        return _truth(kind, status, s.deferral.reason, told.message or s.deferral.message)
    return _truth(kind, status, f"Push{_short(push.status.title())}", push.detail or push.target)


def _asked_for_merge(s: RunState, pull: Effect | None, told: Plan) -> Condition:
    """W5: the branch is there; the pull request is what is missing of the delivery."""
    kind = "Delivered"
    if pull is not None and pull.status == "confirmed":
        return _truth(kind, "True", "PullRequestOpen", pull.detail)
    if pull is not None and pull.status == "rejected":
        return _truth(kind, "False", _short(pull.detail.partition(": ")[0]) or "PullRequestRejected", pull.detail)
    status: Status = "Unknown" if pull is not None and pull.status in {"unknown", "dispatched"} else "False"
    if s.deferral is not None and s.end is None:
        return _truth(kind, status, s.deferral.reason, told.message or s.deferral.message)
    return _truth(kind, status, "PullRequestPending", pull.detail if pull else "the branch is pushed")


def _short(reason: str) -> str:
    return "".join(c for c in reason.replace("_", "") if c.isalnum())


def _succeeded(told: Plan, phase: str) -> Condition:
    if phase == "Succeeded":
        return _truth("Succeeded", "True", told.reason, told.message)
    if phase in {"Failed", "Cancelled"}:
        return _truth("Succeeded", "False", told.reason, told.message)
    return _truth("Succeeded", "Unknown", phase)
