"""The records of effects (E1): intended, dispatched, and closed by what is known of them (I8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.effects.levels import level_of, may_repeat
from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes, to
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.reducing.usage import charged
from moorage.core.run.state import Deferral, Effect, RunState, changed

KEPT_CLOSED_EFFECTS = 16
KNOWN = frozenset({"confirmed", "rejected", "compensated"})
CLOSURES = KNOWN | {"not_dispatched", "unknown"}  # I8
FETCH = "git_fetch"  # the kind of what an attempt's start waits for


def intended(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """E1, E3. Raise IllegalMove for what would be a repetition, or a push of another commit than the proposed one."""
    level = level_of(p.get("level"))
    effect = Effect(p["effect_id"], p["kind"], p["key"], p["target"], "intended", level=level, at=r.recorded_at)
    for earlier in s.effects:
        if earlier.key == effect.key and not may_repeat(level, earlier.status):
            why = f"{earlier.effect_id} of the same key is {earlier.status}"
            raise IllegalMove(s.phase, s.phase, f"effect {effect.effect_id} would be a repetition: {why}")
    if effect.kind == "git_push" and (s.proposal is None or p.get("commit", s.proposal.commit) != s.proposal.commit):
        raise IllegalMove(s.phase, RunPhase.DELIVERING, "only the proposed commit is delivered")
    effects = kept((*s.effects, effect))
    if effect.kind == "git_push":
        return to(s, RunPhase.DELIVERING, r.type, effects=effects)
    return {"effects": effects, **charged(s, p)}


def kept(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """All open and unknown effects and the last closed ones."""
    closed = [e for e in effects if not e.open and e.status != "unknown"]
    dropped = {e.effect_id for e in closed[:-KEPT_CLOSED_EFFECTS]}
    return tuple(e for e in effects if e.effect_id not in dropped)


def dispatched(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Only what was meant and not closed meanwhile is sent off."""
    known = next((e for e in s.effects if e.effect_id == p["effect_id"]), None)
    if known is None or known.status not in {"intended", "dispatched"}:
        raise IllegalMove(s.phase, s.phase, f"effect {p['effect_id']} is {known.status if known else 'not known'}")
    return {"effects": _with_effect(s, r, known, "dispatched", "")}


def closed(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """I8: what is known of an effect is never given up for less."""
    outcome = p["outcome"]
    if outcome not in CLOSURES:
        raise IllegalMove(s.phase, s.phase, f"an effect can't end {outcome!r}")
    known = next((e for e in s.effects if e.effect_id == p["effect_id"]), None)
    if known is None:
        return charged(s, p)
    if known.status in KNOWN and outcome in CLOSURES - KNOWN:
        raise IllegalMove(s.phase, s.phase, f"effect {known.effect_id} is known to be {known.status}, not {outcome}")
    effects = _with_effect(s, r, known, outcome, p.get("detail", ""))
    closed = {"effects": effects, "deferral": None} if outcome in KNOWN else {"effects": effects}
    return {**closed, **charged(s, p)}


def _with_effect(s: RunState, r: Record, known: Effect, status: str, detail: str) -> tuple[Effect, ...]:
    now = changed(known, status=status, detail=detail, at=r.recorded_at)
    return tuple(now if e is known else e for e in s.effects)


def deferred(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """A try that came to nothing yet. A push that waits for its remote is a delivery under way."""
    if p["kind"] == FETCH:
        return _fetch_deferred(s, r, p)
    last = None if s.deferral is None or s.deferral.of_start else s.deferral
    since, tries = (last.since, last.tries) if last else (r.recorded_at, 0)
    deferral = Deferral(p["reason"], p.get("message", ""), tries + 1, since, r.recorded_at)
    if p["kind"] != "git_push":
        return {"deferral": deferral}
    if s.proposal is None:
        raise IllegalMove(s.phase, RunPhase.DELIVERING, "nothing was proposed")
    return to(s, RunPhase.DELIVERING, r.type, deferral=deferral)


def _fetch_deferred(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Only a start waits for its repository."""
    if s.phase is not RunPhase.PROVISIONING:
        return NOTHING
    since = s.deferral.since if s.deferral is not None and s.deferral.of_start else r.recorded_at
    return {"deferral": Deferral(p["reason"], p.get("message", ""), 0, since, r.recorded_at)}
