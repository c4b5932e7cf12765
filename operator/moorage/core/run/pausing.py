"""Policies of the soft stop (C3, Q5) and of going on after it.

asked for -> safe point -> checkpoint -> sandbox and Lease away -> Paused. A pause is neither an end nor a loss: no
budget is reset, no attempt is used up. What holds a run is looked at anew in each pass, so that a limit that was
raised, or a `suspend` that was taken back, is all that it takes; what a person or a rule has asked for holds until
somebody asks for the run to go on.
"""

from __future__ import annotations

from typing import NamedTuple

from moorage.api.wire import ResolvedRun, ResolvedTimeouts
from moorage.core.approvals.consent import parking
from moorage.core.constraints.context import clock_end, lived_ms
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Action, Plan, ReleaseLease, Report, StopSandbox
from moorage.core.run.approving import asked_anew_by, goes_on_by_a_word, held_for, refused_to_spend
from moorage.core.run.ending import CANCEL_GRACE_MS, STOP_POLL_MS, stop
from moorage.core.run.limits import Spent, clock_spent, how_to_raise, in_force, raises, spent
from moorage.core.run.observed import Observed, SandboxPhase, SandboxView
from moorage.core.run.pauses import pausable
from moorage.core.run.phases import RunPhase
from moorage.core.run.rework import ONWARD, stuck
from moorage.core.run.state import QUEUE, AgentEnd, Pause, PauseReason, Raise, RunState
from moorage.core.run.waiting import classified, unsettled
from moorage.core.run.words import ask_to_pause, report
from moorage.core.scheduling.explain import recheck_ms, wait_of

SLACK_MS = 35_000  # a runner has its grace to a safe point, and then a moment for the checkpoint
SUSPENDED = "spec.suspend is true; set it to false to let the run go on"
EXHAUSTED = "the agent ended because a limit is used up"


def raising(o: Observed, s: RunState, now: int) -> Plan | None:
    """B3: a limit that its author has raised is journaled before anything follows from it."""
    higher = _raises(o)
    if not higher or s.phase is RunPhase.PAUSED or s.end is not None or s.admitted_at is None:
        return None
    return Plan(actions=(_raised(higher),), requeue_ms=1)


def _raises(o: Observed) -> dict[str, int]:
    return raises(o.spec.limits, o.wanted) if o.spec is not None else {}


def _raised(higher: dict[str, int]) -> Report:
    key = (f"{name}={to}" for name, to in higher.items())
    return report(RecordType.LIMITS_RAISED, {"limits": higher, "by": "spec"}, *key)


def pausing(o: Observed, s: RunState, now: int) -> Plan | None:
    """Ask for a pause where there is cause, bring the run to its stop, keep it there, let it go on."""
    if s.phase is RunPhase.PAUSED and s.pause is not None:
        return _parked(o, s, s.pause, now)
    if not pausable(s):
        return None
    cause = _cause(o, s, now)
    if cause is not None:
        return Plan(actions=(cause,), requeue_ms=1)
    return _stopping(o, s, s.pause, now) if s.pause is not None and s.pausing else None


# --- causes -----------------------------------------------------------------------------------------------------------


def _cause(o: Observed, s: RunState, now: int) -> Report | None:
    """What asks for a pause and hasn't been told yet, the gravest first."""
    clock = _clock_over(o, s, now)
    if clock is not None:
        return None if s.pausing and s.pause and s.pause.kill else _budget(s, clock, kill=True)
    if s.pausing:
        return None
    if s.agent_end is not None:
        return _agent_stuck(s, s.agent_end) or _agent_exhausted(o, s, s.agent_end)
    if s.phase is RunPhase.RECOVERING and s.last_loss is not None and s.last_loss.reason in ONWARD:
        reached = spent(o.spec.limits, s, iterations=o.iterations) if o.spec else None
        if reached is not None:  # another round could do nothing
            return _budget(s, reached)
        if (why := stuck(s)) is not None and s.pause is None:
            return ask_to_pause(s, PauseReason.NO_PROGRESS, why, by="rules")
    return _by_others(o, s)


def _by_others(o: Observed, s: RunState) -> Report | None:
    """Its author, or (Q5) the queue: then no attempt is used up, and it goes on once there is a slot for it."""
    if o.suspend:
        return ask_to_pause(s, PauseReason.SUSPENDED, SUSPENDED, by="spec")
    if not o.makes_room_for:
        return None
    why = f"it makes room for {o.makes_room_for}, as scheduling.preemptible allows"
    return ask_to_pause(s, PauseReason.SUSPENDED, why, by=QUEUE)


def _clock_over(o: Observed, s: RunState, now: int) -> Spent | None:
    """C2: the wall clock is an EMERGENCY_STOP, though not the end."""
    return clock_spent(o.spec.limits, lived_ms(s, now)) if o.spec else None


def _agent_stuck(s: RunState, end: AgentEnd) -> Report | None:
    """N6: the agent went in circles and was ended for that; a person may show it the way out."""
    if end.outcome != "failed" or end.reason != PauseReason.NO_PROGRESS:
        return None
    return ask_to_pause(s, PauseReason.NO_PROGRESS, end.message, by="driver")


def _agent_exhausted(o: Observed, s: RunState, end: AgentEnd) -> Report | None:
    """The agent has ended for want of budget: by its own word, or because its model was refused to it."""
    if end.outcome not in {"exhausted", "failed"}:
        return None
    spoken = o.iterations if end.outcome == "exhausted" else None  # nobody's model is refused for these
    reached = spent(o.spec.limits, s, iterations=spoken) if o.spec else None
    if reached is not None:
        return _budget(s, reached)
    if o.spec is not None and (refusal := refused_to_spend(o.spec, s)) is not None:
        return ask_to_pause(s, PauseReason.BUDGET, refusal, by="approvals")
    if end.outcome == "failed":
        return None
    return ask_to_pause(s, PauseReason.BUDGET, end.message or EXHAUSTED, by="driver")


def _budget(s: RunState, reached: Spent, *, kill: bool = False) -> Report:
    return ask_to_pause(s, PauseReason.BUDGET, reached.message, by="limits", limit=reached.limit, kill=kill)


def clock_ends(o: Observed, s: RunState) -> list[int]:
    """When the wall clock will be used up (ms since the epoch), where it runs and stops anything."""
    clock = o.spec.limits.wall_clock_ms if o.spec else None
    stops = s.pausing and s.pause is not None and s.pause.kill
    if clock is None or s.idle_since is not None or not pausable(s) or stops:
        return []
    ends = clock_end(s, clock)
    return [] if ends is None else [ends]


# --- to the stop ------------------------------------------------------------------------------------------------------


def _stopping(o: Observed, s: RunState, asked: Pause, now: int) -> Plan:
    """Wait for the safe point, then see that nothing stands and nothing is open."""
    times = o.spec.timeouts if o.spec else ResolvedTimeouts()
    live = o.live_sandboxes
    if live:
        until = {v.uid: _patience(v, s, asked, times.pause_ms) for v in live}
        stops = tuple(each for v in live if until[v.uid] <= now for each in _stop(v, asked, now))
        left = [at - now for at in until.values() if at > now]
        wait = max(1, min([STOP_POLL_MS if stops or len(left) < len(live) else times.pause_ms, *left]))
        return Plan(actions=stops, requeue_ms=wait, reason="Pausing", message=_why(asked))
    settling, grace_ms = unsettled(s), 0 if asked.kill else times.pause_ms + SLACK_MS
    if settling is not None and now < asked.at + grace_ms + times.settle_ms:
        return settling
    told = {"reason": asked.told, "message": asked.message}
    paused = report(RecordType.PAUSED, told, s.pauses, s.epoch)
    held = _held(o, s, asked, {}) or _used_up(o, asked, now) or Hold(asked.told, asked.message)
    return Plan((*classified(s.effects), paused), requeue_ms=1, reason=held.reason, message=held.message)


def _why(asked: Pause) -> str:
    how = "the run is stopped where it stands" if asked.kill else "the run stops at its next safe point"
    return f"{how}: {asked.message}" if asked.message else how


def _patience(v: SandboxView, s: RunState, asked: Pause, grace_ms: int) -> int:
    """Until when a sandbox may stop by itself (ms since the epoch). What hasn't begun has nothing to finish."""
    if asked.kill or v.phase is SandboxPhase.WAITING or v.epoch < s.epoch:
        return asked.at
    if s.agent_end is not None and v.epoch == s.epoch:
        return s.agent_end.at + CANCEL_GRACE_MS
    return asked.at + grace_ms + SLACK_MS


def _stop(v: SandboxView, asked: Pause, now: int) -> tuple[StopSandbox, ...]:
    """A runner that is late is asked by SIGTERM, and saves what it has."""
    gently = not asked.kill and v.phase is SandboxPhase.RUNNING
    return stop(v, now, "Paused", CANCEL_GRACE_MS if gently else 0)


# --- paused -----------------------------------------------------------------------------------------------------------


class Hold(NamedTuple):
    """Why a paused run stays so."""

    reason: str
    message: str


def _parked(o: Observed, s: RunState, pause: Pause, now: int) -> Plan:
    """Nothing stands for it but its volume. It goes on once nothing holds it and there is a slot."""
    higher = _raises(o)
    raised = (_raised(higher),) if higher else ()
    stops = tuple(each for v in o.sandboxes for each in stop(v, now, "Paused", 0))
    lease: tuple[Action, ...] = (ReleaseLease(),) if o.lease is not None else ()
    wait = STOP_POLL_MS if o.sandboxes else None
    held = _held(o, s, pause, higher) or _used_up(o, pause, now)
    if held is not None:
        return Plan((*raised, *stops, *lease), _sooner(wait, _another_day(pause, now)), held.reason, held.message)
    if not o.slots.free:
        why = f"it may go on, and waits for a slot: {wait_of(o.slots)}"
        return Plan((*raised, *stops, *lease), wait or recheck_ms(o.slots), "Queued", why)
    goes_on = report(RecordType.RESUMED, {"reason": pause.told}, s.pauses, s.epoch)
    return Plan(actions=(*raised, goes_on), requeue_ms=1)


def _held(o: Observed, s: RunState, pause: Pause, higher: dict[str, int]) -> Hold | None:
    """What keeps it, by what is so now; `higher` limits count already."""
    if o.suspend:
        return Hold(PauseReason.SUSPENDED, SUSPENDED)
    if o.spec is None:
        return Hold(pause.reason, pause.message)
    limits = in_force(o.spec.limits, [Raise(name, to, s.epoch) for name, to in higher.items()])
    reached = spent(limits, s, iterations=o.iterations, lived_ms=lived_ms(s, s.idle_since or pause.at))
    if reached is not None:
        return Hold(PauseReason.BUDGET, f"{reached.message}; {how_to_raise(o.spec, reached.limit)}")
    return None if pause.released else _held_by(o.spec, s, pause, higher)


def _used_up(o: Observed, pause: Pause, now: int) -> Hold | None:
    """C5: the namespace's day, while that lasts and its contract allows no more of it than was used up."""
    left = _another_day(pause, now)
    most = o.per_day.get(pause.limit or "")
    if left is None or pause.released:
        return None
    return Hold(pause.told, pause.message) if most is not None and most <= (pause.most or 0) else None


def _another_day(pause: Pause, now: int) -> int | None:
    """Milliseconds to the next day, where that is waited for."""
    if pause.reason != PauseReason.DAY or pause.until is None or now >= pause.until:
        return None
    return pause.until - now


def _sooner(*delays: int | None) -> int | None:
    return min((d for d in delays if d is not None), default=None)


def _held_by(spec: ResolvedRun, s: RunState, pause: Pause, higher: dict[str, int]) -> Hold | None:
    """What its own reason comes to by now."""
    if pause.reason in {PauseReason.SUSPENDED, PauseReason.PREEMPTED, PauseReason.DAY}:
        return None
    if pause.reason == PauseReason.BUDGET:
        return None if pause.widened or pause.widened_by(higher) else _unraised(spec, s, pause)
    if pause.reason == PauseReason.APPROVAL:
        pending = parking(s.consents, s.epoch)
        return Hold(pause.reason, held_for(spec, pending)) if pending is not None else None
    said = (pause.message, goes_on_by_a_word(spec))
    return Hold(pause.reason, "; ".join(filter(None, said)))


def _unraised(spec: ResolvedRun, s: RunState, pause: Pause) -> Hold:
    """Something may be left, and less than was asked for, or somebody has refused it: going on would stop at the same
    again.
    """
    if (refusal := refused_to_spend(spec, s)) is not None:
        return Hold(pause.reason, f"{refusal}; {asked_anew_by(spec)}")
    how = f"; {how_to_raise(spec, pause.limit)}" if pause.limit is not None else ""
    return Hold(pause.reason, pause.message + how)
