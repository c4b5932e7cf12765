"""Policies of the end: cancellation as a protocol (X1), cleaning up, retention (W5)."""

from __future__ import annotations

from moorage.api.wire import ResolvedRetention, ResolvedTimeouts, Role
from moorage.core.effects.levels import queryable
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Action, DeleteObject, Deliver, Plan, ReleaseRun, ReleaseVolume, StopSandbox
from moorage.core.run.observed import Observed, SandboxPhase, SandboxView
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect, RunState
from moorage.core.run.waiting import asking, classified, due, explained, named, next_try, unknown_of
from moorage.core.run.words import report

CANCEL_GRACE_MS = 30_000
CANCEL_PATIENCE_MS = 35_000  # an agent has its grace, and its runner a moment more for the last checkpoint
STOP_POLL_MS = 2_000
OWED_MS = 600_000  # so long an ended child is kept for a parent that has still to settle it
STOP_PATIENCE_MS = 30_000  # a removal this far behind its time: the node's kubelet is gone
DELIVERY_RETRY_MS = 5_000  # while a push is under way: its receipt wakes the run, this is for one that got lost
UNASKED = 5  # times the patience of a cancel, for a gateway that can't even try to ask
OBJECT_DELETED = "ObjectDeleted"
PARENT = "ParentEnded"


def ended(o: Observed, s: RunState, now: int) -> Plan | None:
    """Stop what still runs, let go of the volume and, after the TTL, of everything but the object and its evidence."""
    if s.end is None:
        return None
    retention = o.spec.retention if o.spec else ResolvedRetention()
    stops = tuple(stop for v in o.live_sandboxes if not _hands_over(v, s, now) for stop in _stop(v, now, s))
    left = 0 if o.gone else _left(retention, s, now)
    if left == 0 and o.owed and now < s.end.at + OWED_MS:
        left = STOP_POLL_MS
    if left == 0:
        return Plan(actions=(*stops, *_release_all(o, s, retention)), requeue_ms=STOP_POLL_MS if stops else None)
    waiting = any(_hands_over(v, s, now) for v in o.live_sandboxes if v.role == Role.RUNNER)
    drop = o.volume and not waiting and drops_volume(retention, s.phase)
    asks, again = _ask_on(o, s, now)
    requeue = STOP_POLL_MS if o.live_sandboxes else _sooner(left, again)
    return Plan(actions=(*stops, *((ReleaseVolume(),) if drop else ()), *asks), requeue_ms=requeue)


def _ask_on(o: Observed, s: RunState, now: int) -> tuple[tuple[Action, ...], int | None]:
    """What became of an effect is asked as long as anybody may still hear of it."""
    if s.end is None or o.released or not s.unsettled_effects:
        return (), None
    now_asked, again = asking(o.uid, s.end.at, now)
    return ((Deliver(_proposed(s)),) if now_asked else ()), again


def _proposed(s: RunState) -> str | None:
    return s.proposal.commit if s.proposal else None


def _sooner(*waits: int | None) -> int | None:
    return min((w for w in waits if w is not None), default=None)


def _left(retention: ResolvedRetention, s: RunState, now: int) -> int | None:
    """Milliseconds until the TTL; None keeps for good."""
    if retention.ttl_ms is None or s.end is None:
        return None
    return max(0, s.end.at + retention.ttl_ms - now)


def _release_all(o: Observed, s: RunState, retention: ResolvedRetention) -> tuple[Action, ...]:
    standing = o.volume or o.lease is not None or bool(o.sandboxes) or not o.released
    told = () if o.released else classified(s.effects)
    release: tuple[Action, ...] = (*told, ReleaseRun()) if standing else ()
    return (*release, DeleteObject()) if retention.delete_object and not o.gone else release


def drops_volume(retention: ResolvedRetention, phase: RunPhase) -> bool:
    """Whether an ended run's volume goes at once; else it stays until the TTL."""
    keep = retention.keep_worktree
    return keep == "Never" or (keep == "OnFailure" and phase is RunPhase.SUCCEEDED)


def _hands_over(v: SandboxView, s: RunState, now: int) -> bool:
    """A sandbox that has told its result exits by itself, a second or two before the kubelet says so. One that doesn't
    within its grace is stopped."""
    told = s.agent_end is not None if v.role == Role.RUNNER else s.verification is not None
    return told and v.epoch == s.epoch and s.end is not None and now - s.end.at < CANCEL_GRACE_MS


def _stop(v: SandboxView, now: int, s: RunState) -> tuple[StopSandbox, ...]:
    return stop(v, now, "RunEnded", CANCEL_GRACE_MS if s.phase is RunPhase.SUCCEEDED else 0)


def stop(v: SandboxView, now: int, reason: str, grace_ms: int) -> tuple[StopSandbox, ...]:
    """Ask for removal once; force it where the node never confirms."""
    if v.stop_by is None:
        return (StopSandbox(v.name, v.uid, reason, grace_ms),)
    if now - v.stop_by >= STOP_PATIENCE_MS:
        return (StopSandbox(v.name, v.uid, "NodeLost", 0, force=True),)
    return ()


def cancelling(o: Observed, s: RunState, now: int) -> Plan | None:
    """X1: requested, propagated, acknowledged, quiesced, reconciled, and only then cancelled."""
    if s.cancel_stage is None:
        if not (o.cancel or o.gone or o.orphaned):
            return None
        why = OBJECT_DELETED if o.gone else "user" if o.cancel else PARENT
        return Plan(actions=(report(RecordType.CANCEL_REQUESTED, {"reason": why}, why),), requeue_ms=1)
    if o.live_sandboxes:
        return _quiesce(o, s, now)
    return _settle(o, s, now) or Plan(actions=_cancelled(s), requeue_ms=1)


def _settle(o: Observed, s: RunState, now: int) -> Plan | None:
    """Ask what became of the effects, for a while: a remote that is away keeps no run from its end."""
    if not s.unsettled_effects:
        return None
    patience = (o.spec.timeouts if o.spec else ResolvedTimeouts()).settle_ms
    limit = (s.cancel_at or 0) + patience * (1 if s.deferral else UNASKED)
    if now >= limit:
        return None
    message = f"asking what became of the {named(s.unsettled_effects)}"
    if s.deferral is not None:
        message = f"{message}: {explained(o.uid, s.deferral, limit)}"
    if s.deferral is None or due(o.uid, s.deferral, now):
        ask, wait = Deliver(_proposed(s)), min(DELIVERY_RETRY_MS, limit - now)
        return Plan(actions=(ask,), requeue_ms=wait, reason="Reconciling", message=message)
    wait = min(next_try(o.uid, s.deferral), limit) - now
    return Plan(requeue_ms=wait, reason="Reconciling", message=message)


def _quiesce(o: Observed, s: RunState, now: int) -> Plan:
    """A runner gets its grace to stop by itself; what has none to use is stopped at once."""
    left = (s.cancel_at or 0) + CANCEL_PATIENCE_MS - now
    stops = tuple(
        action
        for v in o.live_sandboxes
        if left <= 0 or o.gone or v.phase is SandboxPhase.WAITING or v.role != Role.RUNNER or v.epoch < s.epoch
        for action in stop(v, now, "Cancelled", 0)
    )
    wait = STOP_POLL_MS if left <= 0 else min(STOP_POLL_MS, left)
    return Plan(actions=stops, requeue_ms=wait, reason="Cancelling", message="waiting for the sandbox to stop")


def _cancelled(s: RunState) -> tuple[Action, ...]:
    unknown = unknown_of(s)
    reason = "Cancelled" if s.cancel_reason in {None, "user"} else s.cancel_reason
    message = not_known(unknown) if unknown else ""
    end = {"reason": reason, "message": message, "commit": None, "effects_closed": not unknown}
    return (
        *classified(s.effects),
        report(RecordType.CANCEL_QUIESCED, {}, "quiesced"),
        report(RecordType.CANCEL_RECONCILED, {"unknown": [e.effect_id for e in unknown]}, "reconciled"),
        report(RecordType.RUN_CANCELLED, end, "end"),
    )


def not_known(effects: tuple[Effect, ...]) -> str:
    """What a run's end says of effects that nobody can tell of, and what to do."""
    asked = "The target is asked again until the run is released, and EffectsClosed tells the answer"
    said = "Nobody can be asked: say what you saw with `kubectl moorage resolve`"
    what_next = asked if any(queryable(e.level) for e in effects) else said
    return f"it is not known whether the {named(effects)} happened: look there. {what_next}; nothing is done twice"
