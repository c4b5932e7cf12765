"""How long a sandbox may wait for its start, and what becomes of a run whose sandbox waits too long (F5)."""

from __future__ import annotations

from moorage.api.wire import ResolvedRun
from moorage.core.run.actions import Plan
from moorage.core.run.observed import Observed, SandboxPhase, SandboxView
from moorage.core.run.words import fail

STUCK_PATIENCE_MS = 300_000  # what no waiting mends fails the run after this long
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
    limit = spec.timeouts.schedule_to_start_ms
    if view.reason in STUCK_REASONS:
        limit = min(limit, STUCK_PATIENCE_MS)
    return max(1, (view.created_at or now) + limit - now)
