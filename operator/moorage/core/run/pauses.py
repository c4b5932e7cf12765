"""C3, Q5: the records of a pause, as the reducer takes them.

asked for -> paused (no sandbox, no open effect) -> asked to go on -> resumed -> the next attempt owns the run. What an
agent completes on the way to its safe point goes on to its verdict, and a pause that was meant for that agent alone
comes to nothing, also where another attempt has to follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.approvals import reducing as approvals
from moorage.core.constraints.judging import Action
from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes, to
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.state import Pause, PauseReason, PauseStage, Raise, RunState, Violation, changed

PAUSABLE = frozenset(
    {
        RunPhase.PROVISIONING,
        RunPhase.RUNNING,
        RunPhase.AWAITING_APPROVAL,
        RunPhase.AWAITING_INPUT,
        RunPhase.RECOVERING,
    }
)
"""Where an attempt works, or is about to. What an agent has completed goes on to its verdict."""


REPAIR = "repair"  # who has a run stand still whose journal was broken
OF_ITS_AGENT = frozenset({PauseReason.COMMAND, PauseReason.APPROVAL})
"""Whose pauses end with the agent that was to be stopped. What else stops a run may still be so for the next one."""


def pausable(s: RunState) -> bool:
    """Whether anything may still stop it: what its agent has completed goes on to its verdict."""
    return s.phase in PAUSABLE and (s.agent_end is None or s.agent_end.outcome != "completed")


def went_on(s: RunState, r: Record) -> Changes:
    """A new attempt owns the run: its pause is over, unless it is only asked for."""
    if s.pause is None:
        return NOTHING
    idle = max(0, r.recorded_at - s.idle_since) if s.idle_since is not None else 0
    return {"pause": s.pause if s.pausing else None, "idle_since": None, "idle_ms": s.idle_ms + idle}


def pause_requested(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The first word stands, but for one that holds longer, or that doesn't wait."""
    if s.phase is RunPhase.CANCELLING:
        return NOTHING
    if s.phase not in PAUSABLE and s.phase is not RunPhase.PAUSED:
        raise IllegalMove(s.phase, RunPhase.PAUSED, "no attempt is at work")
    kill = bool(p.get("kill", False))
    asked = Pause(
        p["reason"],
        p["by"],
        p.get("message", ""),
        r.recorded_at,
        limit=p.get("limit"),
        kill=kill,
        constraint=p.get("constraint"),
        most=p.get("most"),
        until=p.get("until"),
    )
    now = s.pause
    if now is None or now.stage == PauseStage.RESUMED:
        return {"pause": asked}
    if (asked.lasting and not now.lasting) or _graver(asked, now):
        return {"pause": changed(asked, at=now.at, stage=now.stage, kill=now.kill or kill)}
    return {"pause": changed(now, kill=now.kill or kill, released=False)}


def _graver(asked: Pause, now: Pause) -> bool:
    """Of two constraints, the one that waits for nothing is what a person has to be told of."""
    return asked.kill and not now.kill and None not in {asked.constraint, now.constraint}


def outrun(s: RunState) -> bool:
    """Whether the result that an agent proposes now ends the pause that it was on its way to."""
    return s.pausing and s.pause is not None and s.pause.reason in OF_ITS_AGENT


def paused(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The sandbox is gone, and no effect is open."""
    if s.phase is RunPhase.CANCELLING:
        return NOTHING
    if s.pause is None or not s.pausing:
        raise IllegalMove(s.phase, RunPhase.PAUSED, "nobody has asked for it")
    if s.open_effects:
        raise IllegalMove(s.phase, RunPhase.PAUSED, f"effect {s.open_effects[0].effect_id} is not classified")
    pause = changed(s.pause, stage=PauseStage.PAUSED, at=r.recorded_at)
    idle = {"idle_since": r.recorded_at if s.idle_since is None else s.idle_since}
    return to(s, RunPhase.PAUSED, r.type, pause=pause, pauses=s.pauses + 1, deferral=None, **idle)


def stood(s: RunState, r: Record) -> Changes:
    """The store says that the run was paused, and the records that say why are lost: one of them may have been a
    person's word, so that only a person's word lets it go on.
    """
    if s.phase is RunPhase.PAUSED or (s.pausing and s.pause is not None and s.pause.lasting):
        return NOTHING
    why = "the run was paused, and the records of why are lost: ask for it to go on"
    return {"pause": Pause(PauseReason.COMMAND, REPAIR, why, r.recorded_at)}


def resume_requested(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Also while the run is on its way to its safe point: it is paused, and goes on."""
    if s.pause is None or s.pause.stage == PauseStage.RESUMED:
        raise IllegalMove(s.phase, RunPhase.RECOVERING, "the run is not paused")
    return {"pause": changed(s.pause, released=True)}


def resumed(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Nothing holds it any more: the next attempt is on its way."""
    if s.phase is not RunPhase.PAUSED or s.pause is None:
        raise IllegalMove(s.phase, RunPhase.RECOVERING, "the run is not paused")
    pause = changed(s.pause, stage=PauseStage.RESUMED, at=r.recorded_at)
    waived = {"violations": _waived(s, s.pause.constraint)} if s.pause.reason == PauseReason.CONSTRAINT else NOTHING
    anew = approvals.gone_on(s, s.pause.reason)
    return to(s, RunPhase.RECOVERING, r.type, pause=pause, agent_end=None, **waived, **anew)


def _waived(s: RunState, constraint: str | None) -> tuple[Violation, ...]:
    """C3: who lets a run go on though a constraint is violated, waives it: else it would stop at its next step.

    What else stops it has been shown to nobody, and does so again. A pause that names none is an older version's.
    """

    def waived(v: Violation) -> Violation:
        shown = constraint is None or v.constraint == constraint
        if not shown or not Action[v.action].stops:
            return v
        return changed(v, action=Action.WARN_CONTINUE.name, waived=v.action)

    return tuple(waived(v) for v in s.violations)


def limits_raised(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """A limit is only ever raised."""
    found = {each.limit: each for each in s.raised}
    for limit, value in p["limits"].items():
        if limit not in found or found[limit].to < value:
            found[limit] = Raise(limit, value, s.epoch)
    pause = s.pause
    if pause is not None and pause.widened_by(p["limits"]):
        pause = changed(pause, widened=True)
    return {"raised": tuple(found[name] for name in sorted(found)), "pause": pause}
