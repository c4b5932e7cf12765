"""B3, X2: what the records about a run's children make of its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes
from moorage.core.run.family import Child, ChildStatus, kept, share_of
from moorage.core.run.phases import IllegalMove
from moorage.core.run.state import RunState


def child_started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """A share is reserved. That enough is left was its gateway's condition; it was judged by this very state."""
    if s.children_ending:
        raise IllegalMove(s.phase, s.phase, "no child begins while the others are to end")
    if any(each.uid == p["uid"] for each in s.children):
        raise IllegalMove(s.phase, s.phase, f"child {p['uid']} was started before")
    asked = s.child("", p["name"])
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


def child_ended(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """B2: the share is settled at what was used, once."""
    known = s.child(p["uid"], p["name"])
    if known is None or not known.open:
        return NOTHING
    used = share_of(p["used"])
    over = known.ended(used, p["outcome"], p.get("commit"))
    children = tuple(over if each is known else each for each in s.children)
    return {"children": kept(children), "children_used": s.children_used.plus(used)}


def children_ending(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """They hear of it at their next pass."""
    return {"children_ending": True}
