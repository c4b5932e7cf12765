"""Who is there: the AgentRuns seen so far, with as little as the queue and the skipping of ended runs need. All of it
is rebuilt from the watch after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from moorage.controller.preemption import Entry, MakingRoom
from moorage.controller.told import (
    Standing,
    begun,
    created_at,
    due_at,
    key_of,
    labels_of,
    origin_of,
    parent_of,
    rank_of,
    scheduling_of,
    settled,
    stale,
    standing_told,
    stoppable,
    stopped_since,
    succeeded,
    time_told,
    unsettled,
    version_of,
)
from moorage.core.scheduling.explain import Slots
from moorage.core.scheduling.fair import WINDOW_MS, FairQueue, Share
from moorage.core.tenancy.admission import CONCURRENCY
from moorage.core.tenancy.contract import Contract
from moorage.sandbox.port import RunKey
from moorage.telemetry.tenants import TenantUse

UNBOUND = Contract()
STARTS = "the operator has just started and asks who has a sandbox; next in a moment"
COUNTED = frozenset({Standing.WAITING, Standing.LIVE})
KEPT = frozenset({CONCURRENCY})
"""Reasons of a run that waits for others of its namespace, in a line of its own."""
FOR_PARENT = frozenset({"ParentBudget", "ParentEnded", "ParentNotFound", "ParentNotReady", "ParentPaused"})
"""Reasons of a child that waits for what its parent's journal may say next."""
FOR_ORIGIN = frozenset({"ContinuedNotEnded", "ContinuedNotFound", "SessionBusy"})
"""Reasons of a run that waits for another one of its session to end."""


class Roll:
    """By namespace and name: an object of the same name with another UID takes the old one's place.

    `now` in ms since the epoch. `contract` is a tenant's, as it stands; `closed`: why nothing of a tenant begins now.
    `opened`: False where nobody begins before `open` has told who is live.
    """

    def __init__(
        self,
        limit: int,
        now: Callable[[], int] = lambda: 0,
        contract: Callable[[str], Contract] = lambda _: UNBOUND,
        closed: Callable[[str], str] = lambda _: "",
        *,
        opened: bool = True,
    ) -> None:
        self.limit, self._now, self._contract, self._opened = limit, now, contract, opened
        self.queue: FairQueue[RunKey] = FairQueue(
            limit, lambda tenant: share_of(contract(tenant), closed(tenant) if self._opened else STARTS)
        )
        self._entries: dict[tuple[str, str], Entry] = {}
        self._children: dict[tuple[str, str], set[str]] = {}
        self._next: dict[tuple[str, str], set[str]] = {}
        self._making_room = MakingRoom(self.queue, self.get, now)

    def saw(self, body: Mapping[str, Any], *, created: bool = False) -> Entry | None:
        """Take note of an AgentRun as the watch or a write showed it; None where a newer one is known
        already, or that very one with nothing left to tell: the echo of our own write.
        `created`: the watch tells of its creation, after having listed what stood before.
        """
        meta = body.get("metadata") or {}
        key = key_of(body)
        known = self.get(key)
        version = version_of(meta)
        if known is not None and stale(body, version, known.version):
            return None
        standing, fresh = (known.standing, known.fresh) if known is not None else (standing_told(body), created)
        if settled(body):
            standing = Standing.ENDED
        kept = None if settled(body) else body
        since = stopped_since(body) or (known.since if known is not None else None)
        entry = Entry(key, created_at(meta), standing, kept, version, rank_of(key, body, since), due_at=due_at(body))
        entry.since, entry.stoppable = since, known.stoppable if known is not None else stoppable(body)
        entry.succeeded, entry.began_at = succeeded(body), time_told(body, "startedAt")
        scheduling = scheduling_of(body)
        entry.background = scheduling.get("class") == "background"
        entry.preemptible = entry.background and scheduling.get("preemptible") is True
        entry.fresh, entry.parent = fresh, parent_of(body)
        entry.origin = origin_of(body) if standing is not Standing.ENDED else None
        entry.reason = known.reason if known is not None else ""
        if (before := self._entries.get((key.tenant, key.name))) is not None:
            self._replaced(before, entry)
        self._entries[key.tenant, key.name] = entry
        self._placed(entry, body if known is None else None)
        if entry.parent is not None:
            self._children.setdefault(entry.parent, set()).add(key.name)
        if entry.origin is not None:
            self._next.setdefault(entry.origin, set()).add(key.name)
        return entry

    def open(self, live: Iterable[RunKey]) -> bool:
        """These have begun by their journals, which a status may not have told yet. True where slots are granted from
        now on, and were not before.
        """
        if self._opened:
            return False
        for key in live:
            entry = self.get(key)
            if entry is not None and entry.standing in {Standing.WAITING, Standing.BLOCKED}:
                self.note(key, Standing.LIVE)
        self._opened = True
        self.queue.changed()
        return True

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
        self.queue.leave(key, self._now())
        self._making_room.placed(entry, live=False)
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

    def is_live(self, key: RunKey) -> bool:
        """It has a slot."""
        entry = self.get(key)
        return entry is not None and entry.standing is Standing.LIVE

    def is_waiting(self, key: RunKey) -> bool:
        """It is in line for one."""
        entry = self.get(key)
        return entry is not None and entry.standing is Standing.WAITING

    def heeds(self, key: RunKey) -> bool:
        """Whether what is journaled about that run is news: until its end, and then while an effect is told as open."""
        entry = self.get(key)
        if entry is None or entry.standing is not Standing.ENDED:
            return entry is not None
        status = (entry.body or {}).get("status")
        return isinstance(status, Mapping) and unsettled(status)

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
        return [each.key for each in found if each.reason in FOR_PARENT and not begun(each.body)]

    def continuing(self, key: RunKey) -> list[RunKey]:
        """Runs that are to go on with this one, haven't begun, and wait for its end."""
        named = self._next.get((key.tenant, key.name), ())
        found = [self._entries.get((key.tenant, name)) for name in sorted(named)]
        return [each.key for each in found if each is not None and each.reason in FOR_ORIGIN and not begun(each.body)]

    def note(
        self, key: RunKey, standing: Standing, reason: str = "", *, since: int | None = None, may_stop: bool = True
    ) -> bool:
        """Set what it counts as, and why. True where that moved a line: a slot is free, or nobody is ahead now.
        `since`: when it was stopped to make room. `may_stop`: whether it still can be, while it is live.
        """
        entry = self.get(key)
        if entry is None:
            return False
        moved = standing is not entry.standing and (entry.standing in COUNTED or entry.reason in KEPT)
        if standing is Standing.LIVE or since is not None:
            entry.since = since
            entry.rank = rank_of(key, entry.body or {}, since) if since is not None else entry.rank
        entry.standing, entry.reason, entry.stoppable = standing, reason, may_stop
        self._placed(entry)
        return moved

    def stumbled(self, key: RunKey) -> bool:
        """A pass of it failed by a fault of ours: nobody waits behind it, nor does it hold a slot that it never began
        in. True where that moved the queue.
        """
        entry = self.get(key)
        if entry is None or entry.standing not in COUNTED or begun(entry.body):
            return False
        return self.note(key, Standing.BLOCKED, entry.reason)

    def _replaced(self, before: Entry, entry: Entry) -> None:
        """The object is another one, or waits for another one now."""
        if before.origin != entry.origin:
            _leave(self._next, before.origin, entry.key.name)
        if before.parent != entry.parent:
            _leave(self._children, before.parent, entry.key.name)
        if before.key != entry.key:
            self.queue.leave(before.key, self._now())
            self._making_room.placed(before, live=False)

    def _placed(self, entry: Entry, first: Mapping[str, Any] | None = None) -> None:
        """The queue follows what a run counts as. `first`: the object of one that was not known before."""
        key = entry.key
        self._making_room.placed(entry, live=entry.standing is Standing.LIVE)
        if entry.standing is Standing.WAITING:
            self.queue.wait(key, key.tenant, entry.rank, self._now())
        elif entry.standing is Standing.LIVE:
            self.queue.begin(key, key.tenant, (entry.began_at if first is not None else None) or self._now())
        else:
            self.queue.leave(key, self._now())
            ended = time_told(first, "finishedAt") if first is not None else None
            if ended is not None and entry.began_at is not None and ended > self._now() - WINDOW_MS:
                self.queue.was(key.tenant, entry.began_at, ended)

    def slots(self, key: RunKey) -> Slots:
        """Whether it is this run's turn, and what to say where it isn't."""
        entry = self.get(key)
        if entry is not None and (self._beside(entry) or self._turn(entry)):
            return Slots()
        contract, held = self._contract(key.tenant), self.queue.held(key.tenant)
        return Slots(
            free=False,
            place=self.queue.place(key) or 1,
            tenant=key.tenant,
            live=self.queue.live,
            limit=self.limit,
            held=len(held),
            most=contract.sandboxes,
            set_by=contract.set_by.get("concurrency.sandboxes", ""),
            first_to_end=next((each.name for each in held), None),
            closed=self.queue.share(key.tenant).closed,
        )

    def _turn(self, entry: Entry) -> bool:
        """Whether it may begin. One that waits for something else is asked about as if it waited for its turn; one that
        counts as live already, since a pass of its failed half-way, has its slot.
        """
        if entry.standing is Standing.LIVE:
            return True
        if entry.standing is not Standing.BLOCKED:
            return entry.key in self.queue.turns(self._now())
        self.queue.wait(entry.key, entry.key.tenant, entry.rank, self._now())
        turn = entry.key in self.queue.turns(self._now())
        self.queue.leave(entry.key, self._now())
        return turn

    def _beside(self, entry: Entry) -> bool:
        """The cap doesn't keep it, since a live run may be waiting for it: its parent is live, and no sibling is live
        or comes earlier. Else runs that hold all slots could wait for their children for ever.
        """
        parent = self._entries.get(entry.parent) if entry.parent is not None else None
        if parent is None or parent.standing is not Standing.LIVE:
            return False
        siblings = [self._entries.get((key.tenant, key.name)) for key in self.children(parent.key) if key != entry.key]
        return not any(
            each.standing is Standing.LIVE or (each.standing is Standing.WAITING and each.rank < entry.rank)
            for each in siblings
            if each is not None
        )

    def next_waiting(self) -> list[RunKey]:
        """Those whose turn it is, and those that no cap keeps."""
        turns = self.queue.turns(self._now())
        named = {(tenant, name) for (tenant, _), names in self._children.items() for name in names}
        children = (self._entries[at] for at in named if at in self._entries)
        beside = [e.key for e in children if e.standing is Standing.WAITING and e.key not in turns and self._beside(e)]
        return [*turns, *beside]

    def make_room(self, heir: RunKey) -> RunKey | None:
        """Q5: the live run that is to stop at a safe point so that this one, which somebody waits for, has its turn."""
        return self._making_room.ask(heir)

    def makes_room_for(self, key: RunKey) -> str:
        """Name of the run that this one is to stop for, while that waits; else nothing."""
        return self._making_room.heir(key)

    def contracts_changed(self) -> None:
        """What a tenant may have is another now."""
        self.queue.changed()

    def blocked(self, tenant: str | None = None) -> Iterator[RunKey]:
        """Runs that wait for something else than a slot, of one tenant or of all."""
        for entry in list(self._entries.values()):
            if entry.standing is Standing.BLOCKED and tenant in {None, entry.key.tenant}:
                yield entry.key

    def first_kept(self, tenant: str) -> list[RunKey]:
        """Of a tenant's runs that wait for others which the same constraints select, the first of each line."""
        kept = (self._entries[each.tenant, each.name] for each in self.blocked(tenant))
        first: dict[tuple[str, ...], Entry] = {}
        for entry in sorted((each for each in kept if each.reason in KEPT), key=lambda each: each.rank):
            line = tuple(scope.name for scope in self._contract(tenant).selecting(labels_of(entry.body)))
            first.setdefault(line, entry)
        return [entry.key for entry in first.values()]

    def live(self, tenant: str) -> list[Mapping[str, str]]:
        """The labels of each live run there."""
        return [labels_of(self._entries[key.tenant, key.name].body) for key in self.queue.held(tenant)]

    def uses(self, unknown: Mapping[str, int]) -> dict[str, TenantUse]:
        """H2: each tenant that has, or had of late, a run that waits or is live, or one with an unknown effect."""
        now = self._now()
        told = {tenant: TenantUse(unknown=count) for tenant, count in unknown.items()}
        for tenant, tally in self.queue.tally(now).items():
            share, live = self.queue.share(tenant), len(self.queue.held(tenant))
            told[tenant] = TenantUse(
                waiting=tally.waiting,
                live=live,
                oldest_s=max(0, now - tally.since) / 1000 if tally.since is not None else 0,
                charge_s=tally.charge / 1000,
                most=self._contract(tenant).sandboxes,
                unknown=unknown.get(tenant, 0),
                bound=bool(share.closed) or (share.most is not None and live >= share.most),
            )
        return told

    def keys(self) -> frozenset[RunKey]:
        """All runs that are known."""
        return frozenset(entry.key for entry in self._entries.values())

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


def share_of(contract: Contract, closed: str = "") -> Share:
    """What the queue goes by. `closed`: why nothing of the tenant begins now."""
    return Share(contract.weight, contract.sandboxes, closed)
