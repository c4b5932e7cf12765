"""C6: which runs a namespace's quotas have room for, by what the watch says of them and by what is on its way.

A run that has been let in and whose pod doesn't stand yet counts beside the quota's own numbers, so that one piece of
news lets in no more than there is room for. The first of a tenant that finds no room closes it for those behind, for as
long as it is the first: what is big isn't overtaken for ever by what is small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moorage.api.wire import ResolvedRun
from moorage.core.run.observed import Observed, Problem
from moorage.core.tenancy.room import Needs, Short, short_of
from moorage.sandbox.kube import Body
from moorage.sandbox.port import RunKey

SETTLED_MS = 1_500
"""So long what has just been made counts beside the quota's numbers, unless they say something newer before that."""
NeedsOf = Callable[[ResolvedRun, bool, bool], Needs]
"""What a run takes: of its pod, and of its volume, where these are to be made."""


@dataclass(frozen=True)
class _First:
    """Who found no room, and what it needs."""

    key: RunKey
    needs: Needs


class Rooms:
    """`now` in ms."""

    def __init__(self, needs: NeedsOf, now: Callable[[], int]) -> None:
        self._needs, self._now = needs, now
        self._place: Callable[[RunKey], int | None] = lambda _: None
        self._quotas: defaultdict[str, dict[str, Body]] = defaultdict(dict)
        self._reserved: defaultdict[str, dict[str, Needs]] = defaultdict(dict)
        self._settling: defaultdict[str, list[tuple[int, Needs]]] = defaultdict(list)
        self._first: dict[str, _First] = {}
        self._moved: set[str] = set()

    def line(self, place: Callable[[RunKey], int | None]) -> None:
        """Where they wait: a run's place among those of its tenant, from 1."""
        self._place = place

    # --- what is heard ------------------------------------------------------------------------------------------------

    def heard(self, event: str | None, quota: Body) -> bool:
        """The watch's word of a ResourceQuota, anybody's. True where what it allows is another now."""
        meta = quota.get("metadata") or {}
        tenant, name = str(meta.get("namespace", "")), str(meta.get("name", ""))
        before = self._quotas[tenant].pop(name, None)
        if event != "DELETED":
            self._quotas[tenant][name] = {key: quota.get(key) for key in ("metadata", "spec", "status")}
        self._settling.pop(tenant, None)
        return (before or {}).get("spec") != (quota.get("spec") if event != "DELETED" else None)

    def reopened(self, tenant: str) -> bool:
        """Whether somebody there found no room before, and would find it now."""
        return tenant in self._first and not self.closed(tenant)

    def moved(self, tenant: str) -> bool:
        """True once, where another one is the first without room by now, or nobody."""
        moved = tenant in self._moved
        self._moved.discard(tenant)
        return moved

    # --- who asks -----------------------------------------------------------------------------------------------------

    def closed(self, tenant: str) -> str:
        """Why nothing of the tenant begins now; empty where it may."""
        first = self._first.get(tenant)
        if first is None or self._place(first.key) != 1:
            return ""
        short = short_of(self._quotas[tenant].values(), self._beside(tenant, first.key), first.needs)
        return short.message if short is not None else ""

    def short(self, key: RunKey, run: ResolvedRun, *, volume: bool, waiting: bool = True) -> Short | None:
        """What there is too little of for that run, whose turn it would be. `volume`: it has one. `waiting`: it is in
        line, and not only about to be.
        """
        if not self._quotas.get(key.tenant):
            self._is_first(key.tenant, None)
            return None
        needs = self._needs(run, True, not volume)
        found = short_of(self._quotas[key.tenant].values(), self._beside(key.tenant, key), needs)
        first = self._first.get(key.tenant)
        mine = first is None or first.key == key or self._place(first.key) != 1
        if found is not None and not found.never and waiting and mine:
            self._is_first(key.tenant, _First(key, needs))
        elif first is not None and first.key == key:
            self._is_first(key.tenant, None)
        return found

    def _is_first(self, tenant: str, first: _First | None) -> None:
        if self._first.get(tenant) != first:
            self._moved.add(tenant)
        if first is not None:
            self._first[tenant] = first
        else:
            self._first.pop(tenant, None)

    def _beside(self, tenant: str, key: RunKey) -> Iterable[Needs]:
        """For others: on their way, just made, or of who found no room before this one came."""
        now, first = self._now(), self._first.get(tenant)
        ahead = [first.needs] if first is not None and first.key != key and self._place(first.key) == 1 else []
        settling = [needs for until, needs in self._settling.get(tenant, ()) if until > now]
        return [needs for uid, needs in self._reserved.get(tenant, {}).items() if uid != key.uid] + settling + ahead

    # --- who has been let in ------------------------------------------------------------------------------------------

    def took(self, key: RunKey, o: Observed) -> None:
        """It is let in: what it lacks is on its way."""
        if o.spec is not None and self._quotas.get(key.tenant):
            self._reserved[key.tenant][key.uid] = self._needs(o.spec, True, not o.volume)

    def passed(self, key: RunKey, o: Observed, *, live: bool) -> None:
        """What it lacks after a pass; nothing where it isn't live any more."""
        before = self._reserved.get(key.tenant, {}).pop(key.uid, {})
        if (first := self._first.get(key.tenant)) is not None and first.key == key and live:
            self._is_first(key.tenant, None)
        if not live or o.spec is None or not self._quotas.get(key.tenant):
            return
        lacks = self._needs(o.spec, not o.live_sandboxes, not o.volume)
        if any(lacks.values()):
            self._reserved[key.tenant][key.uid] = lacks
        made = {name: amount - lacks.get(name, 0) for name, amount in before.items()}
        if any(made.values()):
            self._settling[key.tenant].append((self._now() + SETTLED_MS, made))


def too_big(short: Short) -> Problem:
    """What no waiting for others mends."""
    return Problem("QuotaTooSmall", short.message, stalled=False, held=True)
