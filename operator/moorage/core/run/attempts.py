"""Policies of an attempt: who owns the run, where its sandbox is, when it counts as lost, how the next one comes."""

from __future__ import annotations

from moorage.api.wire import ResolvedRun, Role
from moorage.core.approvals.consent import foremost, parking
from moorage.core.run.actions import (
    Action,
    EnsureLease,
    EnsureVolume,
    Plan,
    RaiseEpoch,
    RegisterSandbox,
    ReleaseVolume,
    StartSandbox,
)
from moorage.core.run.admission import STARTING, next_epoch
from moorage.core.run.approving import told as asking
from moorage.core.run.backoff import backoff_ms
from moorage.core.run.ending import STOP_POLL_MS, stop
from moorage.core.run.observed import LeaseView, Observed, SandboxPhase, SandboxView
from moorage.core.run.phases import LIVE, RunPhase
from moorage.core.run.rework import ONWARD
from moorage.core.run.state import Deferral, PauseStage, RunState
from moorage.core.run.waiting import stuck, unsettled, until_stuck, why_waiting
from moorage.core.run.words import KNOWN_OUTSIDE, fail, give_up, lost

FIRST_CONTACT_MS = 120_000  # a started sandbox that has not been heard of by then is lost
LEASE_MS = 40_000
VOLUME_UNREACHABLE = "VolumeUnreachable"
INTERRUPTED = "Interrupted"
"""The owner died, and somebody has started it again: there is nothing to wait for."""
BLAMELESS = KNOWN_OUTSIDE | {"GatewayLost", "Terminated"}
"""What befell an attempt and says nothing of the run: the next one doesn't wait longer right after it."""


def ownership(o: Observed, s: RunState, now: int) -> Plan | None:
    """Put back a Lease that is gone or behind: a deleted Lease restarts nothing (F1).

    One that is ahead while an agent works was raised by somebody else: that attempt is no longer the owner. Once the
    agent has ended only the fence counts, and nobody's work is thrown away.
    """
    if s.epoch == 0 or resumed(s):
        return None
    if o.lease is None or o.lease.epoch < s.epoch:
        return Plan(actions=(EnsureLease(s.epoch),), requeue_ms=1)
    if o.lease.epoch > s.epoch and s.phase in LIVE and s.agent_end is None:
        why = f"the Lease was raised to epoch {o.lease.epoch} from outside"
        return Plan(actions=(give_up(s, "OwnerChanged", why),), requeue_ms=1)
    return None


def resumed(s: RunState) -> bool:
    """Its pause is over, and it has no owner yet: the next one takes its Lease with it."""
    return s.phase is RunPhase.RECOVERING and s.pause is not None and s.pause.stage == PauseStage.RESUMED


def recovering(o: Observed, s: RunState, now: int) -> Plan | None:
    """R6: back off with full jitter, give up after maxAttempts. R1: the epoch is raised before anything else starts."""
    if s.phase is not RunPhase.RECOVERING:
        return None
    if resumed(s):
        return Plan(actions=(RaiseEpoch(next_epoch(o, s), s.attempt + 1, "Resumed"),), requeue_ms=1)
    loss = s.last_loss
    if s.strikes >= (o.spec.max_attempts if o.spec else 1):
        why = f"{loss.reason}: {loss.message}" if loss else "every attempt was lost"
        message = f"given up after {_counted(s)}; the last ended with {why}"
        return Plan(actions=(fail("CrashLoop", message),), requeue_ms=1)
    wait = (loss.at if loss else 0) + _pause(o.uid, s) - now
    if wait > 0:
        return Plan(requeue_ms=wait, reason=loss.reason if loss else "", message=loss.message if loss else "")
    why = loss.reason if loss is not None and loss.reason in ONWARD else "Recovered"
    return Plan(actions=(RaiseEpoch(next_epoch(o, s), s.attempt + 1, why),), requeue_ms=1)


def _pause(uid: str, s: RunState) -> int:
    """R6: it grows with the attempts that came to no safe point, which are those that counted double, whatever took
    them; but not right after one without blame. How many there were in all is no sign that the next one fails: a long
    run outlives many nodes.
    """
    if s.last_loss is not None and s.last_loss.reason in {INTERRUPTED, *ONWARD}:
        return 0
    blamed = s.last_loss is None or s.last_loss.reason not in BLAMELESS
    return backoff_ms(f"{uid}:{s.attempt}", max(1, s.strikes - s.lost) if blamed else 1)


def _counted(s: RunState) -> str:
    """How many attempts were lost, and why they came to as many as were allowed."""
    tried = f"{s.lost} lost attempt{'' if s.lost == 1 else 's'}"
    return tried if s.strikes == s.lost else f"{tried} (one that is lost before a checkpoint counts twice)"


def attempt(o: Observed, s: RunState, now: int) -> Plan | None:
    """Start, register, watch or give up the sandbox of the current epoch."""
    known = s.sandbox(s.epoch, Role.RUNNER)
    view = o.sandbox(s.epoch, Role.RUNNER)
    if known is None:
        if view is not None:
            return Plan(actions=(RegisterSandbox(view.name, view.uid, s.epoch, Role.RUNNER),), requeue_ms=1)
        return _start(o, s, now)
    if view is None or view.uid != known.pod_uid or view.ended:
        return Plan(actions=(lost(s, Role.RUNNER, view if view and view.uid == known.pod_uid else None),), requeue_ms=1)
    return _watch(o, s, view, now)


def _start(o: Observed, s: RunState, now: int) -> Plan:
    """No sandbox starts while an older one of the same run may still write the volume."""
    older = [v for v in o.live_sandboxes if v.epoch < s.epoch]
    if older:
        stops = tuple(action for v in older for action in stop(v, now, "Fenced", 0))
        why = "waiting for the old sandbox to go"
        return Plan(actions=stops, requeue_ms=STOP_POLL_MS, reason="Recovering", message=why)
    if (settling := unsettled(s)) is not None:
        return settling  # R1: only then is work admitted
    fresh: tuple[Action, ...] = ()
    if o.volume and s.last_loss is not None and s.last_loss.reason == VOLUME_UNREACHABLE:
        fresh = (ReleaseVolume(),)  # R1: a new one from the last checkpoint
    return Plan(
        actions=(*fresh, EnsureVolume(), StartSandbox(s.epoch, Role.RUNNER)),
        reason="Provisioning",
        message=STARTING,
    )


def _watch(o: Observed, s: RunState, view: SandboxView, now: int) -> Plan:
    if view.phase is SandboxPhase.WAITING:
        return _watch_start(o, s, view, now)
    if o.spec is None:
        return Plan()
    checks = (_attempt_timeout(o.spec, s, now), _owner_lost(o, s, view, now), _no_progress(o, o.spec, s, now))
    return next((p for p in checks if p is not None), _watched(o.spec, s, _next_look(o, o.spec, s, now)))


def _watched(spec: ResolvedRun, s: RunState, look_ms: int) -> Plan:
    """All is well. What an attempt's start waits for is told, and what a call of its agent's does."""
    if (pending := foremost(s.consents, s.epoch)) is not None:
        return Plan(requeue_ms=look_ms, reason="AwaitingApproval", message=asking(spec, pending))
    waits = _start_waits(s)
    return Plan(requeue_ms=look_ms, reason=waits.reason if waits else "", message=waits.message if waits else "")


def _start_waits(s: RunState) -> Deferral | None:
    """What the gateway has an attempt's start wait for, such as a fetch, and bounds itself: no fault of its owner's."""
    return s.deferral if s.deferral is not None and s.deferral.of_start else None


def _next_look(o: Observed, spec: ResolvedRun, s: RunState, now: int) -> int:
    """In how many ms the first limit is over, if nothing is seen until then; a Lease's time at the most."""
    ends = [now + (o.lease.duration_ms if o.lease else LEASE_MS)]
    if s.attempt_began_at is not None:
        ends.append(s.attempt_began_at + spec.timeouts.attempt_ms)
    if not _excused(s) and (last := _progressed_at(o, s)) is not None:
        ends.append(last + spec.timeouts.no_progress_ms)
    return max(1, min(ends) - now)


def _watch_start(o: Observed, s: RunState, view: SandboxView, now: int) -> Plan:
    if view.reason == VOLUME_UNREACHABLE and s.attempt > 1:
        return Plan(actions=(give_up(s, VOLUME_UNREACHABLE, view.message),), requeue_ms=1)
    hopeless = stuck(o, view, now)
    if hopeless is not None or o.spec is None:
        return hopeless or Plan()
    volume: tuple[Action, ...] = () if o.volume else (EnsureVolume(),)
    reason, message = why_waiting(o.spec, view, now)
    return Plan(
        actions=volume,
        reason=reason or "Provisioning",
        message=message or STARTING,
        requeue_ms=until_stuck(o.spec, view, now),
    )


def _attempt_timeout(spec: ResolvedRun, s: RunState, now: int) -> Plan | None:
    limit = spec.timeouts.attempt_ms
    if s.attempt_began_at is None or now - s.attempt_began_at < limit:
        return None
    return Plan(actions=(give_up(s, "AttemptTimeout", f"the attempt took more than {limit // 1000} s"),), requeue_ms=1)


def _owner_lost(o: Observed, s: RunState, view: SandboxView, now: int) -> Plan | None:
    """F4: expiry starts no takeover until heartbeats had a full period to come back after the gateway was away."""
    if o.lease is None or o.gateway_up_since is None:
        return None
    silent = now - _last_sign(o, o.lease, s, view)
    heard = o.heartbeat is not None and o.heartbeat.epoch == s.epoch
    patience = o.lease.duration_ms if heard or s.attempt_started else max(FIRST_CONTACT_MS, o.lease.duration_ms)
    if silent < patience:
        return None
    return Plan(actions=(give_up(s, "OwnerLost", f"no heartbeat for {silent // 1000} s"),), requeue_ms=1)


def _last_sign(o: Observed, lease: LeaseView, s: RunState, view: SandboxView) -> int:
    """When the owner was last known, or could not have been heard."""
    beat = o.heartbeat
    return max(
        lease.renewed_at,
        o.gateway_up_since or 0,
        view.started_at or 0,
        o.progress_seen_at or 0,
        beat.heard_at if beat is not None and beat.epoch == s.epoch else 0,
    )


def _no_progress(o: Observed, spec: ResolvedRun, s: RunState, now: int) -> Plan | None:
    limit, last = spec.timeouts.no_progress_ms, _progressed_at(o, s)
    if _excused(s) or last is None or now - last < limit:
        return None
    return Plan(actions=(give_up(s, "NoProgress", f"alive, but nothing new for {limit // 1000} s"),), requeue_ms=1)


def _excused(s: RunState) -> bool:
    """It may be silent for as long as somebody else has to do something. Who waits for a host may do something else."""
    return _start_waits(s) is not None or parking(s.consents, s.epoch) is not None


def _progressed_at(o: Observed, s: RunState) -> int | None:
    """When the attempt was last seen to do anything, by its journal or its owner's word."""
    beat = o.heartbeat
    marks = (o.progress_seen_at, beat.progress_at if beat is not None and beat.epoch == s.epoch else None)
    return max((m for m in marks if m is not None), default=None)
