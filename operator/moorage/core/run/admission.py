"""Policies before the first attempt: nothing has been spent, and while a run waits nothing stands beside the object."""

from __future__ import annotations

from dataclasses import replace

from moorage.api.wire import ResolvedRun, Role
from moorage.core.run.actions import (
    Action,
    Admit,
    Begin,
    EnsureVolume,
    Plan,
    RaiseEpoch,
    ReleaseRun,
    StartSandbox,
    Verdict,
)
from moorage.core.run.observed import Observed, Problem
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import RunState
from moorage.core.scheduling.explain import recheck_ms, wait_of

STARTING = "the sandbox is starting"
PROBLEM_RECHECK_MS = 30_000  # a missing reference wakes the run when it appears; this is the net below
SECRET_RECHECK_MS = 10_000  # nobody may watch Secrets: one that appears is only found by looking
HELD_RECHECK_MS = 300_000  # another contract wakes the run
JOURNAL_LOST = Problem(
    "JournalLost",
    "the gateway doesn't know this run, though it had begun: restore the gateway's store, or delete the run",
    stalled=True,
)
UNRESOLVED = Problem("Unresolved", "the run's references have not been resolved", stalled=False)


def not_admitted(o: Observed, s: RunState, now: int) -> Plan | None:
    """Cancelled, broken, too late, suspended or queued."""
    if s.phase is not RunPhase.PENDING:
        return None
    waits = _waits(o, now)
    if waits is not None and _joined(o) and (o.gone or waits.verdict is not None):
        return _to_its_end(o)
    if waits is not None:
        return replace(waits, actions=_left_behind(o))
    return _by_deadline(_enter(o, o.spec, s), o, now) if o.spec is not None else None


def _waits(o: Observed, now: int) -> Plan | None:
    """What it waits for, or how it ended meanwhile; None where it may begin."""
    if o.gone:
        return Plan()
    if o.cancel:
        return Plan(verdict=Verdict(RunPhase.CANCELLED, "Cancelled", "cancelled before it was admitted"))
    if o.orphaned:
        return Plan(verdict=Verdict(RunPhase.CANCELLED, "ParentEnded", "its parent ended before it was admitted"))
    late = _too_late(o, now)
    if late is not None:
        return late
    waits = _waits_for(o, now)
    return _by_deadline(waits, o, now) if waits is not None else None


def _joined(o: Observed) -> bool:
    """O7: it is the next one of its session already, though nothing is in its journal: the session, and the branch that
    it delivers to, are taken until that says its end. The gateway knows it only by that: else it is `released`.
    """
    return not o.released and o.spec is not None and o.spec.origin is not None


def _to_its_end(o: Observed) -> Plan:
    """Finish the admission first; then it ends as any run does. No slot is asked for: nothing will stand for it."""
    if o.problem is not None:  # the gateway has just refused
        return Plan(reason=o.problem.reason, message=o.problem.message, requeue_ms=PROBLEM_RECHECK_MS)
    return Plan(actions=(Admit(o.spec),) if o.spec is not None else (), requeue_ms=1)


def _too_late(o: Observed, now: int) -> Plan | None:
    """F5: the deadline counts from the creation, also for a run that waits for its author or for its turn."""
    limit = o.asked.deadline_ms
    if limit is None or now < o.created_at + limit:
        return None
    return Plan(
        verdict=Verdict(RunPhase.FAILED, "DeadlineExceeded", f"scheduling.deadline of {limit // 1000} s has passed")
    )


def _by_deadline(plan: Plan, o: Observed, now: int) -> Plan:
    """The plan, looked at again at the deadline at the latest."""
    if o.asked.deadline_ms is None:
        return plan
    left = max(1, o.created_at + o.asked.deadline_ms - now)
    return replace(plan, requeue_ms=min(left, plan.requeue_ms or left))


def _waits_for(o: Observed, now: int) -> Plan | None:
    if o.problem is not None or o.spec is None:
        return _waiting_for_author(o, o.problem or UNRESOLVED, now)
    if o.suspend:
        return Plan(reason="Suspended", message="spec.suspend is true; set it to false to let the run start")
    return None if o.slots.free else _queued(o)


def _left_behind(o: Observed) -> tuple[Action, ...]:
    """What a pass made beside an admission that never came. With the object it goes by itself, and what had begun is
    kept for when its journal is back.
    """
    standing = o.volume or o.lease is not None
    return (ReleaseRun(),) if standing and not o.gone and o.problem != JOURNAL_LOST else ()


def _enter(o: Observed, spec: ResolvedRun, s: RunState) -> Plan:
    """Admit and begin. Whoever was here before may have raised a Lease: then it is looked at first."""
    epoch = next_epoch(o, s)
    first: tuple[Action, ...] = (Admit(spec), *begin(o, s))
    if o.untouched:
        first = (Begin(spec, epoch), StartSandbox(epoch, Role.RUNNER))
    return Plan(actions=first, reason="Provisioning", message=STARTING)


def admitted(o: Observed, s: RunState, now: int) -> Plan | None:
    """A pass died right after admission."""
    if s.phase is RunPhase.QUEUED and s.epoch == 0:
        return Plan(actions=begin(o, s), reason="Provisioning", message=STARTING)
    return None


def _waiting_for_author(o: Observed, problem: Problem, now: int) -> Plan:
    if problem.stalled:
        return Plan(reason=problem.reason, message=problem.message)
    if problem.held:
        return Plan(reason=problem.reason, message=problem.message, requeue_ms=HELD_RECHECK_MS)
    limit = o.asked.schedule_to_start_ms
    since = o.created_at if o.problem_since is None else o.problem_since
    left = since + limit - now
    if left <= 0:
        why = f"not started within {limit // 1000} s: {problem.message}"
        return Plan(verdict=Verdict(RunPhase.FAILED, "ScheduleToStartTimeout", why))
    recheck = SECRET_RECHECK_MS if problem.reason.startswith("Secret") else PROBLEM_RECHECK_MS
    return Plan(reason=problem.reason, message=problem.message, requeue_ms=min(left, recheck))


def _queued(o: Observed) -> Plan:
    return Plan(reason="Queued", message=wait_of(o.slots), requeue_ms=recheck_ms(o.slots))


def begin(o: Observed, s: RunState, reason: str = "Start") -> tuple[Action, ...]:
    """A new attempt, in the order of F2."""
    epoch = next_epoch(o, s)
    return (RaiseEpoch(epoch, s.attempt + 1, reason), EnsureVolume(), StartSandbox(epoch, Role.RUNNER))


def next_epoch(o: Observed, s: RunState) -> int:
    """F1: above both the Lease's epoch and the fence's."""
    return max(s.epoch, o.lease.epoch if o.lease else 0) + 1
