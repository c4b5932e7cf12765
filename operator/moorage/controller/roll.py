"""Who is there: the AgentRuns seen so far, with as little as admission by a concurrency cap and the skipping of ended
runs need. All of it is rebuilt from the watch after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from moorage.api.meta import parse_time
from moorage.api.quantity import duration_ms
from moorage.core.run.observed import Slots
from moorage.core.run.phases import RunPhase
from moorage.core.run.status import ENDS
from moorage.sandbox.port import RunKey

DEFAULT_TTL = "168h"
NOT_LIVE = frozenset({RunPhase.PENDING.value, ""})


class Standing(StrEnum):
    """What a run counts as for admission."""

    WAITING = "waiting"
    BLOCKED = "blocked"  # waits for something else than a slot
    LIVE = "live"
    ENDED = "ended"


COUNTED = frozenset({Standing.WAITING, Standing.LIVE})
FOR_PARENT = frozenset({"ParentBudget", "ParentEnded", "ParentNotFound", "ParentNotReady", "ParentPaused"})
"""Reasons of a child that waits for what its parent's journal may say next."""
FOR_ORIGIN = frozenset({"ContinuedNotEnded", "ContinuedNotFound", "SessionBusy"})
"""Reasons of a run that waits for another one of its session to end."""


@dataclass
class Entry:
    """One AgentRun. `body` is kept while it may still be worked on."""

    key: RunKey
    created_at: int
    standing: Standing
    body: Mapping[str, Any] | None
    version: int
    due_at: int | None = None  # ended: when its retention is over
    succeeded: bool = False
    background: bool = False
    parent: tuple[str, str] | None = None  # namespace and name
    origin: tuple[str, str] | None = None  # likewise, of the run that it waits to go on with
    fresh: bool = False  # created under this process's own eyes, and not looked at since
    reason: str = ""  # why it stands there, as its last pass found


class Roll:
    """By namespace and name: an object of the same name with another UID takes the old one's place."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: dict[tuple[str, str], Entry] = {}
        self._children: dict[tuple[str, str], set[str]] = {}
        self._next: dict[tuple[str, str], set[str]] = {}

    def saw(self, body: Mapping[str, Any], *, created: bool = False) -> Entry | None:
        """Take note of an AgentRun as the watch or a write showed it; None where a newer one is known
        already, or that very one with nothing left to tell: the echo of our own write.
        `created`: the watch tells of its creation, after having listed what stood before.
        """
        meta = body.get("metadata") or {}
        key = key_of(body)
        known = self.get(key)
        version = _version(meta)
        if known is not None and _stale(body, version, known.version):
            return None
        standing, fresh = (known.standing, known.fresh) if known is not None else (_standing(body), created)
        if settled(body):
            standing = Standing.ENDED
        kept = None if settled(body) else body
        entry = Entry(key, _created(meta), standing, kept, version, _due_at(body), _succeeded(body), _background(body))
        entry.fresh, entry.parent = fresh, parent_of(body)
        entry.origin = origin_of(body) if standing is not Standing.ENDED else None
        entry.reason = known.reason if known is not None else ""
        if (before := self._entries.get((key.tenant, key.name))) is not None and before.origin != entry.origin:
            _leave(self._next, before.origin, key.name)
        self._entries[key.tenant, key.name] = entry
        if entry.parent is not None:
            self._children.setdefault(entry.parent, set()).add(key.name)
        if entry.origin is not None:
            self._next.setdefault(entry.origin, set()).add(key.name)
        return entry

    def first_look(self, key: RunKey) -> bool:
        """True once, for a run that was created under this process's eyes: nobody has worked on it before."""
        entry = self.get(key)
        if entry is None or not entry.fresh:
            return False
        entry.fresh = False
        return True

    def forget(self, key: RunKey) -> bool:
        """That very run is gone; True where that moved the queue."""
        entry = self.get(key)
        if entry is None:
            return False
        del self._entries[key.tenant, key.name]
        _leave(self._next, entry.origin, key.name)
        _leave(self._children, entry.parent, key.name)
        return entry.standing in COUNTED

    def knows(self, key: RunKey) -> bool:
        """Whether that very run is known to exist."""
        known = self._entries.get((key.tenant, key.name))
        return known is not None and known.key.uid == key.uid

    def get(self, key: RunKey) -> Entry | None:
        """What is known of that very run."""
        known = self._entries.get((key.tenant, key.name))
        return known if known is not None and known.key.uid == key.uid else None

    def heeds(self, key: RunKey) -> bool:
        """Whether what is journaled about that run is news: until its end, and then while an effect is told as open."""
        entry = self.get(key)
        if entry is None or entry.standing is not Standing.ENDED:
            return entry is not None
        status = (entry.body or {}).get("status")
        return isinstance(status, Mapping) and _unsettled(status)

    def find(self, tenant: str, name: str) -> RunKey | None:
        """The run of that name."""
        known = self._entries.get((tenant, name))
        return known.key if known else None

    def children(self, key: RunKey) -> list[RunKey]:
        """Runs that name this one as their parent and haven't ended."""
        named = self._children.get((key.tenant, key.name), ())
        found = [self._entries.get((key.tenant, name)) for name in sorted(named)]
        return [entry.key for entry in found if entry is not None and entry.standing is not Standing.ENDED]

    def unadmitted(self, key: RunKey) -> list[RunKey]:
        """Children of this run that haven't begun, and wait for what may be in its journal."""
        found = (self._entries[child.tenant, child.name] for child in self.children(key))
        return [each.key for each in found if each.reason in FOR_PARENT and not _begun(each.body)]

    def continuing(self, key: RunKey) -> list[RunKey]:
        """Runs that are to go on with this one, haven't begun, and wait for its end."""
        named = self._next.get((key.tenant, key.name), ())
        found = [self._entries.get((key.tenant, name)) for name in sorted(named)]
        return [each.key for each in found if each is not None and each.reason in FOR_ORIGIN and not _begun(each.body)]

    def note(self, key: RunKey, standing: Standing, reason: str = "") -> bool:
        """Set what it counts as, and why. True where that moved the queue: a slot is free, or nobody is ahead now."""
        entry = self.get(key)
        if entry is None:
            return False
        moved = entry.standing in COUNTED and standing is not entry.standing
        entry.standing, entry.reason = standing, reason
        return moved

    def slots(self, key: RunKey) -> Slots:
        """How many are live, and how many wait that came earlier."""
        entry = self.get(key)
        mine = _order(entry) if entry else (False, 0, "", "")
        live = ahead = 0
        for other in self._entries.values():
            if other.key == key:
                continue
            if other.standing is Standing.LIVE:
                live += 1
            elif other.standing is Standing.WAITING and _order(other) < mine:
                ahead += 1
        return Slots(self.limit, live, ahead, beside=entry is not None and self._beside(entry))

    def _beside(self, entry: Entry) -> bool:
        """See Slots: its parent is live, and no sibling is live or comes earlier."""
        parent = self._entries.get(entry.parent) if entry.parent is not None else None
        if parent is None or parent.standing is not Standing.LIVE:
            return False
        siblings = [self._entries.get((key.tenant, key.name)) for key in self.children(parent.key) if key != entry.key]
        return not any(
            each.standing is Standing.LIVE or (each.standing is Standing.WAITING and _order(each) < _order(entry))
            for each in siblings
            if each is not None
        )

    def next_waiting(self, count: int) -> list[RunKey]:
        """The first in the queue, and those that the cap doesn't keep."""
        waiting = sorted((e for e in self._entries.values() if e.standing is Standing.WAITING), key=_order)
        return [e.key for n, e in enumerate(waiting) if n < count or self._beside(e)]

    def blocked(self, tenant: str | None = None) -> Iterator[RunKey]:
        """Runs that wait for something else than a slot, of one tenant or of all."""
        for entry in list(self._entries.values()):
            if entry.standing is Standing.BLOCKED and tenant in {None, entry.key.tenant}:
                yield entry.key

    def tenants(self) -> frozenset[str]:
        """Namespaces with at least one AgentRun."""
        return frozenset(tenant for tenant, _ in self._entries)

    def count(self, standing: Standing) -> int:
        """How many count as that."""
        return sum(1 for entry in self._entries.values() if entry.standing is standing)

    def __len__(self) -> int:
        return len(self._entries)


def _leave(named: dict[tuple[str, str], set[str]], relative: tuple[str, str] | None, name: str) -> None:
    others = named.get(relative) if relative is not None else None
    if relative is not None and others is not None:
        others.discard(name)
        if not others:
            del named[relative]


def key_of(body: Mapping[str, Any]) -> RunKey:
    """The key of an AgentRun."""
    meta = body.get("metadata") or {}
    return RunKey(str(meta.get("uid", "")), str(meta.get("namespace", "")), str(meta.get("name", "")))


def parent_of(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the run that it names as its parent."""
    return _named(body, "parentRef")


def origin_of(body: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the run that it is to go on with."""
    return _named(body, "continueFrom")


def _named(body: Mapping[str, Any], field: str) -> tuple[str, str] | None:
    spec, meta = body.get("spec"), body.get("metadata") or {}
    ref = spec.get(field) if isinstance(spec, Mapping) else None
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return (str(meta.get("namespace", "")), str(name)) if name else None


def truth(status: Mapping[str, Any], kind: str) -> str | None:
    """What the condition of that type says in a status as it stands, however malformed; None where there is none."""
    listed = status.get("conditions")
    told = [c for c in listed if isinstance(c, Mapping)] if isinstance(listed, list) else []
    return next((str(c.get("status")) for c in told if c.get("type") == kind), None)


def settled(body: Mapping[str, Any]) -> bool:
    """It has ended, its status says so about this very generation, nobody is deleting it, and no effect is left to ask
    about."""
    meta, status = body.get("metadata") or {}, body.get("status") or {}
    if not isinstance(status, Mapping) or meta.get("deletionTimestamp"):
        return False
    told = str(status.get("phase")) in ENDS and status.get("observedGeneration") == meta.get("generation")
    return told and not _unsettled(status)


def _unsettled(status: Mapping[str, Any]) -> bool:
    return truth(status, "EffectsClosed") == "False"


def _standing(body: Mapping[str, Any]) -> Standing:
    status = body.get("status") or {}
    phase = str(status.get("phase") or "") if isinstance(status, Mapping) else ""
    if phase in ENDS:
        return Standing.ENDED
    if phase == RunPhase.PAUSED:
        return Standing.BLOCKED
    return Standing.WAITING if phase in {*NOT_LIVE, "Queued"} else Standing.LIVE


def _begun(body: Mapping[str, Any] | None) -> bool:
    status = (body or {}).get("status")
    return isinstance(status, Mapping) and status.get("epoch") is not None


def _due_at(body: Mapping[str, Any]) -> int | None:
    """When the retention of an ended run is over; None where that can't be told from the object."""
    status, spec = body.get("status"), body.get("spec")
    try:
        ended = parse_time(status["finishedAt"]) if isinstance(status, Mapping) else None
        kept = spec.get("retention") if isinstance(spec, Mapping) else None
        return ended + duration_ms((kept or {}).get("ttlAfterFinished") or DEFAULT_TTL) if ended is not None else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _succeeded(body: Mapping[str, Any]) -> bool:
    status = body.get("status")
    return isinstance(status, Mapping) and status.get("phase") == RunPhase.SUCCEEDED.value


def _background(body: Mapping[str, Any]) -> bool:
    """Nobody waits for it (scheduling.class)."""
    spec = body.get("spec")
    scheduling = spec.get("scheduling") if isinstance(spec, Mapping) else None
    return isinstance(scheduling, Mapping) and scheduling.get("class") == "background"


def _order(entry: Entry) -> tuple[bool, int, str, str]:
    """Its place in the queue: those that somebody waits for, then the others, each by age."""
    return (entry.background, entry.created_at, entry.key.tenant, entry.key.name)


def _created(meta: Mapping[str, Any]) -> int:
    try:
        return parse_time(str(meta.get("creationTimestamp")))
    except ValueError:
        return 0


def _stale(body: Mapping[str, Any], version: int, known: int) -> bool:
    """Nothing new. Somebody's change that our own write overtook shows as a generation that isn't told yet."""
    meta, status = body.get("metadata") or {}, body.get("status")
    told = isinstance(status, Mapping) and status.get("observedGeneration") == meta.get("generation")
    return version < known or (version == known and version > 0 and told and not meta.get("deletionTimestamp"))


def _version(meta: Mapping[str, Any]) -> int:
    text = str(meta.get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
