"""B3, X2: what the records about a run's children make of its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.constraints.limits import SHARED
from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes
from moorage.core.run.family import Child, ChildStatus, Share, kept, share_of
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.state import Pause, PauseReason, RunState, changed


def child_started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """A share is reserved. That enough is left was its gateway's condition; it was judged by this very state.

    A paused run begins nothing new; what its agent asked for before has its share, and waiting for it might be all that
    keeps the run paused.
    """
    asked = s.child("", p["name"])
    if s.phase is RunPhase.CANCELLING or (s.phase is RunPhase.PAUSED and asked is None):
        raise IllegalMove(s.phase, s.phase, f"child {p['name']} was not asked for before")
    if s.children_ending:
        raise IllegalMove(s.phase, s.phase, "no child begins while the others are to end")
    if any(each.uid == p["uid"] for each in s.children):
        raise IllegalMove(s.phase, s.phase, f"child {p['uid']} was started before")
    new = Child(p["uid"], p["name"], share_of(p["reserve"]), key=asked.key if asked else "")
    return {"children": kept((*(each for each in s.children if each is not asked), new))}


def child_requested(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Its share counts from here on."""
    if s.children_ending:
        raise IllegalMove(s.phase, s.phase, "no child begins while the others are to end")
    if any(each.name == p["name"] and each.open for each in s.children):
        raise IllegalMove(s.phase, s.phase, f"child {p['name']} was asked for before")
    new = Child("", p["name"], share_of(p["reserve"]), ChildStatus.REQUESTED, key=p["key"])
    return {"children": kept((*s.children, new)), "children_asked": s.children_asked + 1}


def child_made(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Its object was seen: from here on nobody makes it again. What has begun meanwhile is further on."""
    known = s.child("", p["name"])
    if known is None:
        return NOTHING
    made = changed(known, status=ChildStatus.MADE)
    return {"children": tuple(made if each is known else each for each in s.children)}


def child_ended(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """B2: the share is settled at what was used, once."""
    known = s.child(p["uid"], p["name"])
    if known is None or not known.open:
        return NOTHING
    used = share_of(p["used"])
    over = known.ended(used, p["outcome"], p.get("commit"), p.get("base"), p.get("problem", ""))
    children = tuple(over if each is known else each for each in s.children)
    changes = {"children": kept(children), "children_used": s.children_used.plus(used)}
    if s.pause is not None and _relieved(s.pause, known.reserve, used):
        changes["pause"] = changed(s.pause, widened=True)
    return changes


def _relieved(pause: Pause, reserve: Share, used: Share) -> bool:
    """Whether what this child gives back is what the run was stopped for; anything, where only the agent knew it."""
    if pause.reason != PauseReason.BUDGET or pause.by == "approvals":
        return False
    concerned = [each for each in SHARED if pause.limit in {None, each.limit}]
    return any(getattr(reserve, each.uses) > getattr(used, each.uses) for each in concerned)


def children_ending(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """They hear of it at their next pass."""
    return {"children_ending": True}
