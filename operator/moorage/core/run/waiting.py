"""How long a run may wait for what isn't its own: a sandbox that starts, a remote that answers (F5)."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.api.meta import format_time
from moorage.api.wire import ResolvedRun
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Deliver, Plan, Report
from moorage.core.run.backoff import backoff_ms
from moorage.core.run.observed import Observed, SandboxPhase, SandboxView
from moorage.core.run.state import Deferral, Effect, RunState
from moorage.core.run.words import fail, report

STUCK_PATIENCE_MS = 300_000  # what no waiting mends fails the run after this long
SLOW_START_MS = 30_000  # with its image on the node a sandbox starts within a few seconds
SHORTEST_WAIT_MS = 500  # between two tries of an effect; bounds their number too
SETTLE_RETRY_MS = 2_000
ASK_AGAIN_MS = 60_000  # after the end: first pause before unknown effects are asked about, doubled each time
ASK_AGAIN_CAP_MS = 3_600_000
ASK_WINDOW_MS = 30_000  # a pass that comes this late still asks
ASK_SPREAD = 6  # as a number of tries: up to 32 s
STUCK_REASONS = frozenset({"ImagePullFailed", "InvalidImageName", "CreateContainerError"})


def stuck(o: Observed, view: SandboxView, now: int) -> Plan | None:
    """The end of a run whose sandbox can't start; None while there is hope."""
    if view.phase is not SandboxPhase.WAITING or view.created_at is None or o.spec is None:
        return None
    waited = now - view.created_at
    if view.reason in STUCK_REASONS and waited >= STUCK_PATIENCE_MS:
        return Plan(actions=(fail(view.reason, view.message),), requeue_ms=1)
    limit = o.spec.timeouts.schedule_to_start_ms
    if waited >= limit:
        why = f"the sandbox did not start within {limit // 1000} s: {view.reason} {view.message}".strip()
        return Plan(actions=(fail("ScheduleToStartTimeout", why),), requeue_ms=1)
    return None


def until_stuck(spec: ResolvedRun, view: SandboxView, now: int) -> int:
    """Milliseconds until `stuck` may have another answer; events tell everything else."""
    limits = [spec.timeouts.schedule_to_start_ms]
    if view.reason in STUCK_REASONS:
        limits.append(STUCK_PATIENCE_MS)
    if _silent(view) and now - (view.created_at or now) < SLOW_START_MS:
        limits.append(SLOW_START_MS)
    return max(1, (view.created_at or now) + min(limits) - now)


def why_waiting(spec: ResolvedRun, view: SandboxView, now: int) -> tuple[str, str]:
    """Reason and message of a sandbox that hasn't started; empty where there is nothing to say.

    What a node can't do it tells in Events, which we may not read: that it is slow is seen, and where its words are is
    told.
    """
    if not _silent(view) or now - (view.created_at or now) < SLOW_START_MS:
        return view.reason, view.message
    lacks = "sandbox, network or volumes" if view.unprepared else "image, or a container's start,"
    look = f"`kubectl describe pod -n {spec.tenant} {view.name}` has the node's own words"
    why = f"for {SLOW_START_MS // 1000} s and more node {view.node} is busy with the pod's {lacks}: {look}"
    return "SlowStart", " ".join(why.split())


def _silent(view: SandboxView) -> bool:
    """It has its node, and nobody says why it doesn't start there."""
    return view.node is not None and not view.reason


# --- effects ----------------------------------------------------------------------------------------------------------


DELIVERING = frozenset({"git_push", "pull_request"})


def unsettled(s: RunState) -> Plan | None:
    """I8: what an agent has left open outside its sandbox is settled before the run goes on; ours have their own way.

    One try settles all but what is under way at this moment, which ends by itself.
    """
    left = [e for e in s.open_effects if e.kind not in DELIVERING]
    if not left:
        return None
    why = f"finding out what became of the {named(left)}"
    return Plan(actions=(Deliver(),), requeue_ms=SETTLE_RETRY_MS, reason="Reconciling", message=why)


def next_try(uid: str, waited: Deferral) -> int:
    """When an effect that could not be made or settled is tried again (ms since the epoch)."""
    return waited.at + max(SHORTEST_WAIT_MS, backoff_ms(f"{uid}:effect", waited.tries))


def due(uid: str, waited: Deferral, now: int) -> bool:
    """It is time for the next try. A clock that was put back waits for nothing."""
    return not waited.at <= now < next_try(uid, waited)


def explained(uid: str, waited: Deferral, limit: int) -> str:
    """What a waiting run tells: why, when it is tried again, and until when."""
    when = f"next try at {format_time(next_try(uid, waited))}, given up at {format_time(limit)}"
    return f"{waited.message}; tried {waited.tries} times, {when}"


def classified(effects: Iterable[Effect]) -> tuple[Report, ...]:
    """I8: closes what is still open. What was never sent off did not happen; of the rest nobody can tell."""
    return tuple(_closed(e) for e in effects if e.open)


def _closed(effect: Effect) -> Report:
    sent = effect.status == "dispatched"
    outcome = "unknown" if sent else "not_dispatched"
    detail = "its target could not be asked in time" if sent else "it was never sent off"
    payload = {"effect_id": effect.effect_id, "outcome": outcome, "detail": detail}
    return report(RecordType.EFFECT_RECONCILED, payload, effect.effect_id, outcome)


def unknown_of(s: RunState) -> tuple[Effect, ...]:
    """The effects that will be unknown once `classified` is told."""
    return tuple(e for e in s.effects if e.status in {"unknown", "dispatched"})


def named(effects: Iterable[Effect]) -> str:
    """Effects as a person reads them, the first four."""
    listed = [f"{e.kind.replace('_', ' ')} to {e.target}" for e in effects]
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")


def asking(uid: str, ended_at: int, now: int) -> tuple[bool, int]:
    """Whether an ended run's unknown effects are asked about in this pass, and in how many milliseconds to look again.

    The times follow from the end alone: 1, 3, 7, … minutes after it, later every hour, and for each run a bit more.
    """
    passed = now - ended_at - backoff_ms(f"{uid}:ask", ASK_SPREAD)
    reached, coming, step = 0, ASK_AGAIN_MS, ASK_AGAIN_MS
    while coming <= passed:
        step = min(ASK_AGAIN_CAP_MS, step * 2)
        reached, coming = coming, coming + step
    return reached > 0 and passed - reached < ASK_WINDOW_MS, coming - passed
