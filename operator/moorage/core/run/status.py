"""The status of an AgentRun as a projection of what a pass knows (I7): lose it, and the next pass writes it again.

`project` computes it, `write_delay` says how soon it is worth a write. What people and tools wait for is written at
once; phases that a run only passes through are merged into the next one; progress is written now and then. Until the
first write an object says what the definition's default says: Pending (see moorage.api.runstatus.BORN).
"""

from __future__ import annotations

import re
from dataclasses import asdict

from moorage.api.meta import Condition, format_time, kstatus, set_conditions
from moorage.api.quantity import dollars
from moorage.api.runstatus import (
    AgentRunStatus,
    JournalStatus,
    Phase,
    PlacementStatus,
    QueueStatus,
    RunResult,
    RunWorkspaceStatus,
    SessionStatus,
)
from moorage.api.runstatus import Usage as UsageStatus
from moorage.api.wire import Role
from moorage.core.run.actions import Plan
from moorage.core.run.conditions import conditions
from moorage.core.run.observed import Observed
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import PauseReason, RunState, Usage
from moorage.core.run.usage import used_in_session

PROGRESS_MS = 10_000  # progress alone is written at most this often
SETTLE_MS = 2_000  # what may still change by itself is held this long
START_MS = 10_000  # a start with nothing to report is told this late: most often the agent works by then
PASSING = frozenset({"Verifying", "Delivering"})
ENDS = frozenset({"Succeeded", "Failed", "Cancelled"})
GOES_ON = frozenset(
    {"Queued"}
    | {each.value for each in PauseReason}
    - {PauseReason.BUDGET.value, PauseReason.CONSTRAINT.value, PauseReason.NO_PROGRESS.value}
)
"""Reasons of a paused run that nobody has to mend."""
STATES = {"Succeeded": "Current", "Failed": "Failed", "Cancelled": "Failed"}
_PHASES: dict[str, Phase] = {p.value: p.value for p in RunPhase}
_NO_WORD = re.compile(r"[^A-Za-z0-9]+")


def project(o: Observed, plan: Plan, previous: AgentRunStatus, now: int) -> AgentRunStatus:
    """What `status` is to say. `previous` lends what isn't known at the moment and the times of transitions."""
    phase, reason, message = _headline(o, plan, previous)
    told = Plan(plan.actions, plan.requeue_ms, reason, message)
    truths = (*_kstatus(o, phase, reason, message), *conditions(o, told, phase, previous.conditions))
    dated = set_conditions(previous.conditions, (_about(c, o.generation) for c in truths), now)
    base = previous.model_copy(
        update={
            "observed_generation": o.generation,
            "phase": phase,
            "reason": reason,
            "message": message or None,
            "conditions": dated,
            "queue": _queue(o, message) if "Queued" in {phase, reason} else None,
        }
    )
    if plan.verdict is not None:
        base = base.model_copy(update={"finished_at": previous.finished_at or format_time(now)})
    return AgentRunStatus.model_validate(
        (_with_journal(base, previous, o, o.journal) if o.journal else base).model_dump()
    )


def _queue(o: Observed, message: str) -> QueueStatus:
    since = o.journal.stopped_since if o.journal is not None else None
    return QueueStatus(position=o.slots.place, reason=message, since=format_time(since) if since is not None else None)


def _about(condition: Condition, generation: int) -> Condition:
    return condition.model_copy(update={"observed_generation": generation})


def _headline(o: Observed, plan: Plan, previous: AgentRunStatus) -> tuple[Phase, str, str]:
    """Phase, reason and message."""
    s = o.journal
    if plan.verdict is not None:
        return _PHASES[plan.verdict.phase], plan.verdict.reason, plan.verdict.message
    if s is None:
        return previous.phase or "Pending", plan.reason, plan.message
    if s.end is not None:
        return _PHASES[s.phase], word(s.end.reason), s.end.message
    if s.phase is RunPhase.PENDING:
        return "Queued" if plan.reason == "Queued" else "Pending", plan.reason or "Pending", plan.message
    return _PHASES[s.phase], word(plan.reason) or s.phase.value, plan.message


def word(text: str) -> str:
    """One CamelCase word, whatever a program sent as its reason."""
    if _NO_WORD.search(text) is None:
        return text
    return "".join(part[:1].upper() + part[1:] for part in _NO_WORD.split(text) if part)


def _kstatus(o: Observed, phase: Phase, reason: str, message: str) -> tuple[Condition, ...]:
    """Ready, Reconciling, Stalled. What waits for somebody to act is told as a failure, but for what somebody has
    stopped on purpose.
    """
    waits_for_author = phase == "Pending" and o.problem is not None and o.problem.stalled
    if phase == "Succeeded":
        return kstatus("Current", reason, message, o.generation)
    stuck = (phase == "Paused" and reason not in GOES_ON) or reason == PauseReason.BUDGET
    failed = waits_for_author or stuck or phase in ENDS
    return kstatus("Failed" if failed else "InProgress", reason, message, o.generation)


def _with_journal(status: AgentRunStatus, previous: AgentRunStatus, o: Observed, s: RunState) -> AgentRunStatus:
    """The part that follows from the journal alone."""
    if s.phase is RunPhase.PENDING:
        return status
    head = s.proposal.commit if s.proposal else s.checkpoint.commit if s.checkpoint else None
    workspace = RunWorkspaceStatus(base=s.workspace_base, head=head, branch=s.branch)
    return status.model_copy(
        update={
            "attempt": s.attempt or None,
            "epoch": s.epoch or None,
            "iteration": s.iteration,
            "usage": usage(s.usage, s.disk_bytes),
            "session": _session(o, s) or previous.session,
            "journal": JournalStatus(offset=s.offset, hash=s.head, signature=o.signature),
            "workspace": workspace if workspace != RunWorkspaceStatus() else None,
            "result": _result(s),
            "recovery_grade": grade(s),
            "spec_hash": s.spec_hash or None,
            "node": s.node,
            "placement": _placement(previous, o, s),
            "started_at": format_time(s.agent_started_at) if s.agent_started_at else None,
            "finished_at": format_time(s.end.at) if s.end else None,
        }
    )


def _session(o: Observed, s: RunState) -> SessionStatus | None:
    """B3: what its limits are held against."""
    spec = o.spec
    if spec is None or spec.origin is None:
        return None
    used = used_in_session(s, o.iterations or 0)
    return SessionStatus(id=spec.session_id, continues=spec.origin.name, cost=dollars(used.cost_micros), **asdict(used))


def _placement(previous: AgentRunStatus, o: Observed, s: RunState) -> PlacementStatus | None:
    """O4: of the agent's newest sandbox. What is learned of it after the end is the journal's alone: no write more."""
    if previous.phase in ENDS or o.spec is None:
        return previous.placement
    seen = next((p for p in reversed(s.placements) if p.role == Role.RUNNER), None)
    return PlacementStatus(
        kind=o.spec.placement,
        node=(seen.node if seen else None) or s.node,
        runtime_class=(seen.runtime if seen else None) or o.spec.sandbox.runtime_class,
        environment=seen.environment if seen else None,
    )


def usage(used: Usage, disk_bytes: int = 0) -> UsageStatus:
    """The vector, with its sums for people."""
    return UsageStatus(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        reasoning_tokens=used.reasoning_tokens,
        tokens=used.tokens,
        cost_micros=used.cost_micros,
        cost=dollars(used.cost_micros),
        model_requests=used.model_requests,
        tool_calls=used.tool_calls,
        model_retries=used.model_retries,
        effects=used.effects,
        egress_bytes=used.egress_bytes,
        disk_bytes=disk_bytes,
        human_approvals=used.human_approvals,
    )


def _result(s: RunState) -> RunResult | None:
    accepted = s.verification.commit if s.verification and s.verification.passed else None
    commit = s.end.commit if s.end and s.phase is RunPhase.SUCCEEDED else accepted
    summary = (s.agent_end.summary or None) if s.agent_end else None
    pull = s.asked_for_merge()
    url = pull.detail if pull is not None and pull.status == "confirmed" else None
    found = RunResult(summary=summary, commit=commit, pull_request=url)
    return found if found != RunResult() else None


def grade(s: RunState) -> str | None:
    """R5: what was proved of the last recovery; None where nothing had to be recovered."""
    if not s.recovered:
        return None
    if not s.attempt_started:
        return "R1"
    if s.open_effects or s.unknown_effects:
        return "R2"
    verified = s.verification is not None and s.verification.passed and s.verification.isolated
    return "R4" if verified else "R3"


def write_delay(
    old: AgentRunStatus, new: AgentRunStatus, last_write: int | None, s: RunState | None, now: int
) -> int | None:
    """Milliseconds until `new` is to be written over `old`: 0 at once, None never. `last_write` None: not known; `s`
    None: so is the journal.
    """
    if old == new:
        return None
    if s is not None and s.agent_end is not None and _passes(old, new):
        return max(0, s.agent_end.at + SETTLE_MS - now)
    if s is not None and s.admitted_at is not None and _starts(old, new):
        return max(0, s.admitted_at + START_MS - now)
    if last_write is None or _urgent(old) != _urgent(new):
        return 0
    flipped = new.phase != "Provisioning" and _truths(old) != _truths(new)  # a start's steps are merged into Running
    pause = SETTLE_MS if flipped else PROGRESS_MS
    return max(0, last_write + pause - now)


def _passes(old: AgentRunStatus, new: AgentRunStatus) -> bool:
    """All that people would hear at once is that the run is on its way to its end."""
    if new.phase not in PASSING:
        return False
    return _urgent(old.model_copy(update={"phase": new.phase, "reason": new.phase})) == _urgent(new)


def _starts(old: AgentRunStatus, new: AgentRunStatus) -> bool:
    """Nothing has been told yet, and there is nothing to tell but that the first sandbox is being made."""
    return old.observed_generation is None and new.phase == new.reason == "Provisioning"


def _urgent(status: AgentRunStatus) -> tuple[object, ...]:
    return (status.phase, status.reason, status.epoch, status.observed_generation, status.finished_at)


def _truths(status: AgentRunStatus) -> dict[str, str]:
    return {c.type: c.status for c in status.conditions}
