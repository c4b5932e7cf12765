"""decide(observed, now) -> Plan: an ordered chain of small policies, each pure; the first that has a say decides.

Invariants
- An action is planned only from what was observed, never from what an earlier plan meant to do: any pass may be the
  first one after a crash, and a crash between two actions is finished by the next pass (F2).
- No sandbox is started while an older one of the same run may still write the volume.
- A terminal record is planned only with its evidence in the journal: succeeded needs a completed agent, a verdict on the
  proposed commit where one was asked, and a confirmed push where one was asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from moorage.api.wire import ResolvedRun, Role
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import (
    Action,
    Admit,
    DeleteObject,
    Deliver,
    EnsureLease,
    EnsureVolume,
    Plan,
    RaiseEpoch,
    RegisterSandbox,
    ReleaseRun,
    ReleaseVolume,
    Report,
    StartSandbox,
    StopSandbox,
    Verdict,
)
from moorage.core.run.observed import Observed, SandboxPhase, SandboxView
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import RunState

GATEWAY_RETRY_MS = 1_000
STOP_POLL_MS = 2_000
PULL_PATIENCE_MS = 300_000  # an image that can't be pulled for this long fails the run
CANCEL_GRACE_MS = 30_000
BACKOFF_BASE_MS = 1_000
BACKOFF_CAP_MS = 300_000
MAX_VERIFIER_LOSSES = 3
DELIVERY_RETRY_MS = 5_000
PULL_REASONS = frozenset({"ImagePullFailed", "InvalidImageName"})

Policy = Callable[[Observed, RunState, int], Plan | None]


def decide(o: Observed, now: int) -> Plan:
    """Return the next plan. `now` is in milliseconds since the epoch, UTC."""
    if o.closed_without_journal:
        return Plan()
    if o.journal is None:
        return Plan(requeue_ms=GATEWAY_RETRY_MS, reason="GatewayUnavailable", message="the gateway can't be reached")
    for policy in POLICIES:
        plan = policy(o, o.journal, now)
        if plan is not None:
            return plan
    return Plan()


def report(kind: RecordType, payload: dict[str, Any], *key: object) -> Report:
    """A record of the operator's whose id follows from `key`, so that saying it again changes nothing."""
    return Report(":".join(["op", kind.value, *(str(k) for k in key)]), kind.value, payload)


def fail(reason: str, message: str, commit: str | None = None) -> Report:
    """The end without success."""
    return report(RecordType.RUN_FAILED, {"reason": reason, "message": message, "commit": commit}, "end")


# --- before admission -------------------------------------------------------------------------------------------------


def not_admitted(o: Observed, s: RunState, now: int) -> Plan | None:
    """Cancelled, broken, too late, suspended or queued: nothing has been spent yet."""
    if s.phase is not RunPhase.PENDING:
        return None
    if o.cancel:
        return Plan(verdict=Verdict(RunPhase.CANCELLED, "Cancelled", "cancelled before it was admitted"))
    if o.spec is None or o.problem is not None:
        return _waiting_for_author(o, now)
    if o.suspend:
        return Plan(reason="Suspended", message="spec.suspend is true; set it to false to let the run start")
    if not o.slots.free:
        return _queued(o)
    return Plan(actions=(Admit(o.spec), *_begin(o, s, "Start")), reason="Provisioning")


def _waiting_for_author(o: Observed, now: int) -> Plan:
    problem = o.problem
    if problem is None:
        return Plan(reason="Unresolved", message="the run's references have not been resolved")
    if problem.stalled:
        return Plan(reason=problem.reason, message=problem.message)
    limit = o.spec.timeouts.schedule_to_start_ms if o.spec else 3_600_000
    late = now - o.created_at - limit
    if late >= 0:
        why = f"not started within {limit // 1000} s: {problem.message}"
        return Plan(verdict=Verdict(RunPhase.FAILED, "ScheduleToStartTimeout", why))
    return Plan(reason=problem.reason, message=problem.message, requeue_ms=min(-late, 30_000))


def _queued(o: Observed) -> Plan:
    at = o.slots.ahead + 1
    message = f"position {at}: {o.slots.live} of {o.slots.limit} runs are live; next when one of them ends"
    return Plan(reason="Queued", message=message)


def _begin(o: Observed, s: RunState, reason: str) -> tuple[Action, ...]:
    """A new attempt, in the order of F2. The epoch is above both the Lease's and the fence's (F1)."""
    epoch = max(s.epoch, o.lease.epoch if o.lease else 0) + 1
    return (
        RaiseEpoch(epoch, s.attempt + 1, reason),
        EnsureVolume(),
        StartSandbox(epoch, Role.RUNNER),
    )


# --- after the end ----------------------------------------------------------------------------------------------------


def ended(o: Observed, s: RunState, now: int) -> Plan | None:
    """Stop what still runs, let go of the volume and, after the TTL, of everything but the object and its evidence."""
    if s.end is None:
        return None
    stops = tuple(
        StopSandbox(v.name, v.uid, "RunEnded", 0 if s.phase is not RunPhase.SUCCEEDED else CANCEL_GRACE_MS)
        for v in o.sandboxes
        if v.phase is not SandboxPhase.ENDED and not v.stopping and not _hands_over(v, s, now)
    )
    waits = any(_hands_over(v, s, now) for v in o.sandboxes if v.phase is not SandboxPhase.ENDED)
    retention = o.spec.retention if o.spec else None
    if retention and retention.ttl_ms is not None:
        left = s.end.at + retention.ttl_ms - now
        if left <= 0:
            more: tuple[Action, ...] = (DeleteObject(),) if retention.delete_object else ()
            standing = o.volume or o.lease is not None or bool(o.sandboxes)
            return Plan(actions=(*stops, *((ReleaseRun(),) if standing else ()), *more))
    keep = retention.keep_worktree if retention else "OnFailure"
    drop = keep == "Never" or (keep == "OnFailure" and s.phase is RunPhase.SUCCEEDED)
    release: tuple[Action, ...] = (ReleaseVolume(),) if drop and o.volume and not waits else ()
    requeue = None
    if retention and retention.ttl_ms is not None:
        requeue = max(1, s.end.at + retention.ttl_ms - now)
    if waits:
        requeue = STOP_POLL_MS
    return Plan(actions=(*stops, *release), requeue_ms=requeue)


def _hands_over(v: SandboxView, s: RunState, now: int) -> bool:
    """A runner that has told its result exits by itself; only one that doesn't is stopped."""
    told = s.agent_end is not None and v.epoch == s.epoch
    return told and s.end is not None and now - s.end.at < CANCEL_GRACE_MS


# --- cancellation -----------------------------------------------------------------------------------------------------


def cancelling(o: Observed, s: RunState, now: int) -> Plan | None:
    """X1: requested, propagated, acknowledged, quiesced, reconciled, and only then cancelled."""
    if s.cancel_stage is None:
        if not o.cancel:
            return None
        return Plan(actions=(report(RecordType.CANCEL_REQUESTED, {"reason": "user"}, "user"),), requeue_ms=1)
    live = [v for v in o.sandboxes if v.phase is not SandboxPhase.ENDED]
    if live:
        return _quiesce(live, s, now)
    if s.open_effects:
        commit = s.proposal.commit if s.proposal else ""
        return Plan(actions=(Deliver(commit),), requeue_ms=DELIVERY_RETRY_MS, reason="Reconciling")
    return Plan(actions=_cancelled(s))


def _quiesce(live: list[SandboxView], s: RunState, now: int) -> Plan:
    overdue = s.cancel_at is not None and now - s.cancel_at >= CANCEL_GRACE_MS
    stops = tuple(
        StopSandbox(v.name, v.uid, "Cancelled", 0)
        for v in live
        if (overdue or v.phase is SandboxPhase.WAITING) and not v.stopping
    )
    return Plan(actions=stops, requeue_ms=STOP_POLL_MS, reason="Cancelling", message="waiting for the sandbox to stop")


def _cancelled(s: RunState) -> tuple[Action, ...]:
    unknown = [e.effect_id for e in s.unknown_effects]
    end = {"reason": s.cancel_reason or "user", "message": "", "commit": None, "effects_closed": not unknown}
    return (
        report(RecordType.CANCEL_QUIESCED, {}, "quiesced"),
        report(RecordType.CANCEL_RECONCILED, {"unknown": unknown}, "reconciled"),
        report(RecordType.RUN_CANCELLED, end, "end"),
    )


# --- ownership --------------------------------------------------------------------------------------------------------


def ownership(o: Observed, s: RunState, now: int) -> Plan | None:
    """Finish a half-done raise; put back a Lease that is gone or behind. A deleted Lease restarts nothing (F1)."""
    if s.epoch == 0 and s.phase is RunPhase.QUEUED:
        return Plan(actions=_begin(o, s, "Start"), reason="Provisioning")
    if o.lease and o.lease.epoch > s.epoch:
        return Plan(actions=(RaiseEpoch(o.lease.epoch, s.attempt + 1, "Resumed"),), requeue_ms=1)
    if s.epoch > 0 and (o.lease is None or o.lease.epoch < s.epoch):
        return Plan(actions=(EnsureLease(s.epoch),), requeue_ms=1)
    return None


# --- deadlines --------------------------------------------------------------------------------------------------------


def deadlines(o: Observed, s: RunState, now: int) -> Plan | None:
    """The absolute limits of a run: wall clock and deadline are EMERGENCY_STOP (C2)."""
    spec = o.spec
    if spec is None:
        return None
    clock = spec.limits.wall_clock_ms
    if clock is not None and s.attempt_began_at is not None and s.admitted_at is not None:
        if now - s.admitted_at >= clock:
            return Plan(actions=(fail("WallClockExceeded", f"constraints.wallClock of {clock // 1000} s is used up"),))
    limit = spec.timeouts.deadline_ms
    if limit is not None and now - o.created_at >= limit:
        return Plan(actions=(fail("DeadlineExceeded", f"scheduling.deadline of {limit // 1000} s has passed"),))
    return None


# --- after the agent's end --------------------------------------------------------------------------------------------


def agent_ended(o: Observed, s: RunState, now: int) -> Plan | None:
    """Judge, verify and deliver what a finished agent proposes. Its own word is not success (N4)."""
    end = s.agent_end
    if end is None or end.outcome == "unknown":
        return None
    if end.outcome != "completed":
        reason = "BudgetExhausted" if end.outcome == "exhausted" else end.reason or "AgentFailed"
        return Plan(actions=(fail(reason, end.message or f"the agent ended with exit code {end.exit_code}"),))
    if s.proposal is None:
        return None
    return _judge(o, s, now)


def _judge(o: Observed, s: RunState, now: int) -> Plan:
    spec, proposal = o.spec, s.proposal
    if spec is None or proposal is None:
        return Plan()
    asked = spec.delivery is not None
    if proposal.empty and spec.delivery is not None and not spec.delivery.allow_empty:
        return Plan(actions=(fail("NoChange", "the agent ended without a change, and one was asked for"),))
    if spec.acceptance:
        unproved = _verify(o, s, spec, now)
        if unproved is not None:
            return unproved
    if asked and not proposal.empty and spec.delivery is not None and spec.delivery.push:
        return _deliver(s, now)
    return Plan(actions=(_succeed(s),))


def _succeed(s: RunState) -> Report:
    commit = s.proposal.commit if s.proposal and not s.proposal.empty else None
    return report(RecordType.RUN_SUCCEEDED, {"reason": "Completed", "message": "", "commit": commit}, "end")


def _verify(o: Observed, s: RunState, spec: ResolvedRun, now: int) -> Plan | None:
    """None once the proposed commit has passed; else the plan that leads there or ends the run."""
    commit = s.proposal.commit if s.proposal else ""
    verdict = s.verification
    if verdict is not None and verdict.commit == commit and verdict.problem is None:
        if verdict.passed:
            return None
        return Plan(actions=(fail("AcceptanceFailed", verdict.summary, commit),))
    if s.verifications_lost >= MAX_VERIFIER_LOSSES:
        why = s.last_loss.message if s.last_loss else "the verifier's sandbox died"
        return Plan(actions=(fail("VerifierLost", f"acceptance could not be run: {why}", commit),))
    return _verifier(o, s, commit, now)


def _verifier(o: Observed, s: RunState, commit: str, now: int) -> Plan:
    serial = s.verifications_lost
    known = s.sandbox(s.epoch, Role.VERIFIER)
    registered = known is not None and _count(s, Role.VERIFIER) > serial
    view = o.sandbox(s.epoch, Role.VERIFIER)
    if not registered:
        if view is not None and view.uid != (known.pod_uid if known else ""):
            return Plan(actions=(RegisterSandbox(view.name, view.uid, s.epoch, Role.VERIFIER, commit),), requeue_ms=1)
        return Plan(actions=(StartSandbox(s.epoch, Role.VERIFIER, serial, commit),), reason="Verifying")
    mine = next((v for v in o.sandboxes if known and v.uid == known.pod_uid), None)
    if mine is None or mine.phase is SandboxPhase.ENDED:
        return Plan(actions=(_lost(s, "verifier", mine, serial),), requeue_ms=1)
    stuck = _stuck(o, mine, now)
    return stuck or Plan(
        reason="Verifying", message="acceptance commands run on the proposed commit", requeue_ms=60_000
    )


def _count(s: RunState, role: str) -> int:
    return sum(1 for x in s.sandboxes if x.role == role and x.epoch == s.epoch)


def _deliver(s: RunState, now: int) -> Plan:
    effect = s.delivered()
    commit = s.proposal.commit if s.proposal else ""
    if effect is None or effect.open or effect.status == "not_dispatched":
        return Plan(actions=(Deliver(commit),), requeue_ms=DELIVERY_RETRY_MS, reason="Delivering")
    if effect.status == "confirmed":
        return Plan(actions=(_succeed(s),))
    if effect.status == "unknown":
        return Plan(
            actions=(Deliver(commit),),
            requeue_ms=DELIVERY_RETRY_MS,
            reason="EffectUnknown",
            message=f"the push to {effect.target} may or may not have happened; the remote is asked again",
        )
    reason, _, message = effect.detail.partition(": ")
    return Plan(actions=(fail(reason or "DeliveryRejected", message or effect.detail, commit),))


# --- the attempt ------------------------------------------------------------------------------------------------------


def recovering(o: Observed, s: RunState, now: int) -> Plan | None:
    """R6: back off with full jitter, give up after maxAttempts; the epoch is raised before anything else starts (R1)."""
    if s.phase is not RunPhase.RECOVERING:
        return None
    most = o.spec.max_attempts if o.spec else 1
    loss = s.last_loss
    if s.strikes >= most:
        why = f"{loss.reason}: {loss.message}" if loss else "every attempt was lost"
        return Plan(actions=(fail("CrashLoop", f"given up after {s.attempt} attempts; the last ended with {why}"),))
    wait = (loss.at if loss else 0) + backoff_ms(o.uid, s.attempt) - now
    if wait > 0:
        return Plan(requeue_ms=wait, reason="Recovering", message=loss.message if loss else "")
    return Plan(
        actions=(RaiseEpoch(max(s.epoch, o.lease.epoch if o.lease else 0) + 1, s.attempt + 1, "Recovered"),),
        requeue_ms=1,
    )


def backoff_ms(uid: str, attempt: int) -> int:
    """Full jitter without chance: uniform in [0, min(cap, base * 2^(attempt-1))) by a hash of run and attempt."""
    top = min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** max(0, attempt - 1))
    digest = hashlib.sha256(f"{uid}:{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") * top // 2**64


def attempt(o: Observed, s: RunState, now: int) -> Plan | None:
    """Start, register, watch or give up the sandbox of the current epoch."""
    known = s.sandbox(s.epoch, Role.RUNNER)
    view = o.sandbox(s.epoch, Role.RUNNER)
    if known is None:
        if view is not None:
            return Plan(actions=(RegisterSandbox(view.name, view.uid, s.epoch, Role.RUNNER),), requeue_ms=1)
        return _start(o, s)
    if view is None or view.uid != known.pod_uid or view.phase is SandboxPhase.ENDED:
        return Plan(actions=(_lost(s, "runner", view, 0),), requeue_ms=1)
    return _watch(o, s, view, now)


def _start(o: Observed, s: RunState) -> Plan:
    older = [v for v in o.sandboxes if v.epoch < s.epoch and v.phase is not SandboxPhase.ENDED]
    if older:
        stops = tuple(StopSandbox(v.name, v.uid, "Fenced", 0) for v in older if not v.stopping)
        return Plan(
            actions=stops, requeue_ms=STOP_POLL_MS, reason="Recovering", message="waiting for the old sandbox to go"
        )
    return Plan(actions=(EnsureVolume(), StartSandbox(s.epoch, Role.RUNNER)), reason="Provisioning")


def _lost(s: RunState, role: str, view: SandboxView | None, serial: int) -> Report:
    gone = view is None
    reason = "SandboxDeleted" if gone else (view.reason if view else "") or "SandboxEnded"
    message = (
        "the sandbox was deleted from outside"
        if gone
        else (view.message if view else "") or "the sandbox ended without a result"
    )
    if s.agent_end is not None and s.agent_end.outcome == "unknown" and role == "runner":
        reason, message = s.agent_end.reason, s.agent_end.message
    payload = {"epoch": s.epoch, "role": role, "reason": reason, "message": message}
    return report(RecordType.ATTEMPT_ENDED, payload, role, s.epoch, serial)


def _give_up(s: RunState, reason: str, message: str) -> Report:
    payload = {"epoch": s.epoch, "role": "runner", "reason": reason, "message": message}
    return report(RecordType.ATTEMPT_ENDED, payload, "runner", s.epoch, 0)


def _watch(o: Observed, s: RunState, view: SandboxView, now: int) -> Plan:
    if view.phase is SandboxPhase.WAITING:
        return _stuck(o, view, now) or Plan(
            reason=view.reason or "Provisioning", message=view.message, requeue_ms=_until_pull_patience(view, now)
        )
    checks = (
        _attempt_timeout(o, s, now),
        _owner_lost(o, now),
        _no_progress(o, s, now),
    )
    return next((p for p in checks if p is not None), Plan(requeue_ms=_next_check(o, s, now)))


def _until_pull_patience(view: SandboxView, now: int) -> int:
    return max(1_000, (view.created_at or now) + PULL_PATIENCE_MS - now)


def _stuck(o: Observed, view: SandboxView, now: int) -> Plan | None:
    if view.phase is not SandboxPhase.WAITING or view.created_at is None:
        return None
    waited = now - view.created_at
    if view.reason in PULL_REASONS and waited >= PULL_PATIENCE_MS:
        return Plan(actions=(fail(view.reason, view.message),))
    limit = o.spec.timeouts.schedule_to_start_ms if o.spec else PULL_PATIENCE_MS
    if waited >= limit:
        why = f"the sandbox did not start within {limit // 1000} s: {view.reason} {view.message}".strip()
        return Plan(actions=(fail("ScheduleToStartTimeout", why),))
    return None


def _attempt_timeout(o: Observed, s: RunState, now: int) -> Plan | None:
    limit = o.spec.timeouts.attempt_ms if o.spec else None
    if limit is None or s.attempt_began_at is None or now - s.attempt_began_at < limit:
        return None
    return Plan(actions=(_give_up(s, "AttemptTimeout", f"the attempt took more than {limit // 1000} s"),), requeue_ms=1)


def _owner_lost(o: Observed, now: int) -> Plan | None:
    """F4: expiry starts no takeover until heartbeats had a full period to come back after the gateway was away."""
    lease = o.lease
    if lease is None or o.gateway_up_since is None:
        return None
    since = max(lease.renewed_at, o.gateway_up_since)
    if now - since < lease.duration_ms or o.journal is None:
        return None
    message = f"no heartbeat for {(now - lease.renewed_at) // 1000} s"
    return Plan(actions=(_give_up(o.journal, "OwnerLost", message),), requeue_ms=1)


def _no_progress(o: Observed, s: RunState, now: int) -> Plan | None:
    limit = o.spec.timeouts.no_progress_ms if o.spec else None
    marks = [m for m in (s.progress_at, o.heartbeat.progress_at if o.heartbeat else None) if m is not None]
    if limit is None or not marks or now - max(marks) < limit:
        return None
    return Plan(actions=(_give_up(s, "NoProgress", f"alive, but nothing new for {limit // 1000} s"),), requeue_ms=1)


def _next_check(o: Observed, s: RunState, now: int) -> int:
    """One look per Lease period is enough: everything faster comes as an event."""
    return o.lease.duration_ms if o.lease else 40_000


POLICIES: tuple[Policy, ...] = (
    not_admitted,
    ended,
    cancelling,
    ownership,
    deadlines,
    agent_ended,
    recovering,
    attempt,
)
