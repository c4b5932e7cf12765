"""I1: what is left of a run whose journal was broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.core.effects.levels import level_of
from moorage.core.journal.record import Record
from moorage.core.run import pauses
from moorage.core.run.account import account_of
from moorage.core.run.changes import Changes
from moorage.core.run.family import Child, ChildStatus, share_of
from moorage.core.run.phases import LIVE, TERMINAL, RunPhase, move
from moorage.core.run.reducing.effects import kept
from moorage.core.run.reducing.usage import add_usage
from moorage.core.run.state import AttemptEnd, Effect, End, RunState, changed

REPAIRED = "JournalRepaired"
ENDED, STOOD = frozenset({"COMPLETED", "FAILED", "CANCELLED"}), "PAUSED"  # statuses of a store's row (S4)


def repaired(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """I1: a new generation. What was dropped is gone as fact and kept as doubt: spent, unknown, and not to be repeated.

    A run that had ended, as the store's row says, can't prove its end any more; any other recovers under a new epoch,
    one that stood still once somebody says so.
    """
    feared = tuple(_feared(e, r) for e in p["effects"] if all(e["effect_id"] != known.effect_id for known in s.effects))
    doubts = {
        "generation": p["generation"],
        "epoch": max(s.epoch, p["epoch"]),
        "usage": add_usage(s.usage, p["usage"]),
        "effects": kept((*s.effects, *feared)),
        "last_loss": AttemptEnd(s.epoch, REPAIRED, p["why"], r.recorded_at),
        "children": _made(_with_feared(s.children, p.get("children", ())), p.get("children_made", ())),
        "children_used": s.children_used.plus(share_of(p.get("children_used", {}))),
        "children_asked": s.children_asked + p.get("children_asked", 0),
    }
    if "account" in p:
        account = account_of(p["account"])
        doubts |= {"carried": account.used, "carried_ms": account.wall_ms}
    if s.phase in TERMINAL:
        return doubts
    if p["status"] in ENDED:
        end = End(REPAIRED, f"the store says {p['status']}, the records of it are lost", None, r.recorded_at)
        return doubts | {"phase": move(s.phase, RunPhase.FAILED, r.type), "end": end}
    if p["status"] == STOOD:
        doubts |= pauses.stood(s, r)
    if s.phase not in LIVE or s.phase is RunPhase.PAUSED:  # who is paused stays so
        return doubts
    return doubts | {"phase": move(s.phase, RunPhase.RECOVERING, r.type)}


def _feared(e: Mapping[str, Any], r: Record) -> Effect:
    level = level_of(e.get("level"))
    return Effect(
        e["effect_id"], e["kind"], e["key"], e["target"], "unknown", e.get("detail", ""), level=level, at=r.recorded_at
    )


def _with_feared(children: tuple[Child, ...], told: Iterable[Mapping[str, Any]]) -> tuple[Child, ...]:
    """Those that dropped records tell of may live: their shares stay reserved until they are settled (again)."""
    for each in told:
        uid, name = each["uid"], each["name"]
        asked = next((c for c in children if c.open and not c.uid and c.name == name), None)
        if any(c.uid == uid for c in children) if uid else asked is not None:
            continue
        key = each.get("key") or (asked.key if asked else "")
        status = ChildStatus.STARTED if uid else ChildStatus.REQUESTED
        new = Child(uid, name, share_of(each["reserve"]), status, key=key)
        children = (*(c for c in children if c is not asked), new)
    return children


def _made(children: tuple[Child, ...], names: Iterable[str]) -> tuple[Child, ...]:
    """Those whose objects dropped records tell of are made by nobody again."""
    known = frozenset(names)
    return tuple(
        changed(each, status=ChildStatus.MADE) if each.status == ChildStatus.REQUESTED and each.name in known else each
        for each in children
    )
