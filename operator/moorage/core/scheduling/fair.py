"""Q1, Q2: whose turn it is.

Between tenants: a tenant is charged for the time that its runs hold slots, and for a live run as much as they usually
take, if it hasn't taken more; of those with somebody who waits, the one is next that would be charged least for its
weight half-way through another run. (By what it was charged before that run small weights come out ahead, by what it
is charged after it they fall behind.) Only the last WINDOW_MS count, so that nobody saves up more than that by waiting,
and so that all of it can be read from the objects after a restart: when live runs began, and when those that ended of
late began and ended.

Within a tenant: by `Rank`, a time that never changes while a run waits. So nobody is overtaken for ever.

Before all of that: a slot that somebody gave up for a run is that run's (`promise`), until it begins or stops waiting.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
WINDOW_MS = 600_000
USUAL_MS = 60_000
"""What a run is taken to need where its tenant has had none of late."""

LEAST_MS = 1_000
"""No run costs less: what is free has no fair share."""

PATIENCE_MS = 1_800_000
"""A background run stands where an interactive one would that came so much later."""

SLACK_MS = 3_600_000
"""A run is due so long before its deadline, if not earlier by its age."""

FRESH_MS = 1_000
"""For so long the turns that were found are still true where nothing else changed."""


@dataclass(frozen=True, order=True)
class Rank:
    """A place within a tenant: the earlier it is due the better. Times in ms since the epoch."""

    due: int
    created_at: int
    name: str


def rank(name: str, created_at: int, *, background: bool = False, deadline_ms: int | None = None) -> Rank:
    """By class, age and deadline. Nobody is overtaken by a run that comes more than PATIENCE_MS and SLACK_MS later."""
    due = created_at + (PATIENCE_MS if background else 0)
    if deadline_ms is not None:
        due = min(due, created_at + deadline_ms - SLACK_MS)
    return Rank(due, created_at, name)


@dataclass(frozen=True)
class Share:
    """What a tenant may have. most: live runs at once (None: as many as there are slots). closed: why nothing of it
    begins now.
    """

    weight: int = 1
    most: int | None = None
    closed: str = ""


@dataclass(frozen=True)
class Tally:
    """A tenant in the queue: how many wait, what it was charged for its weight (ms), and when its first one came."""

    waiting: int
    charge: float
    since: int | None


@dataclass
class _Tenant(Generic[K]):
    """`past`: when runs ended, in order, and what each is charged; `used` is the sum of that."""

    waiting: list[tuple[Rank, K]] = field(default_factory=list)
    live: dict[K, int] = field(default_factory=dict)
    past: deque[tuple[int, int]] = field(default_factory=deque)
    used: int = 0

    def remember(self, began: int, ended: int) -> None:
        """Times may come from other clocks than ours."""
        if ended < began:
            return
        after, cost = len(self.past), max(LEAST_MS, min(ended - began, WINDOW_MS))
        while after and self.past[after - 1][0] > ended:
            after -= 1
        self.past.insert(after, (ended, cost))
        self.used += cost
        self.drop(ended)

    def drop(self, now: int) -> None:
        """What has left the window."""
        while self.past and self.past[0][0] <= now - WINDOW_MS:
            self.used -= self.past.popleft()[1]

    def usual(self) -> int:
        """How long its runs hold a slot."""
        return self.used // len(self.past) if self.past else USUAL_MS

    def charge(self, now: int) -> int:
        """Slot time of what is live, and of what ended in the window; of each run no more than the window."""
        self.drop(now)
        usual = self.usual()
        return self.used + sum(max(usual, min(now - began, WINDOW_MS)) for began in self.live.values())


class FairQueue(Generic[K]):
    """Who waits, who is live, and who was of late. `share` says what a tenant may have as its contract stands."""

    def __init__(self, limit: int, share: Callable[[str], Share] = lambda _: Share()) -> None:
        self.limit, self._share = limit, share
        self._tenants: dict[str, _Tenant[K]] = {}
        self._where: dict[K, tuple[str, Rank | None]] = {}  # tenant, and the rank of who waits
        self._promised: dict[K, None] = {}  # who waits, and has a slot that was given up for it; in order
        self._live = 0
        self._turns: tuple[int, dict[K, None]] | None = None

    # --- what happens -------------------------------------------------------------------------------------------------

    def wait(self, key: K, tenant: str, place: Rank, now: int) -> None:
        """It waits, at that place from now on."""
        if self._where.get(key) == (tenant, place):
            return
        promised = key in self._promised
        self.leave(key, now)
        if promised:
            self._promised[key] = None
        insort(self._tenant(tenant).waiting, (place, key), key=_by_rank)
        self._where[key] = (tenant, place)

    def begin(self, key: K, tenant: str, now: int) -> None:
        """It holds a slot; who does already goes on holding it."""
        known = self._where.get(key)
        if known is not None and known[1] is None:
            return
        turns = self._turns if self._turns is not None and key in self._turns[1] else None
        self.leave(key, now)
        self._tenant(tenant).live[key] = now
        self._where[key] = (tenant, None)
        self._live += 1
        if turns is not None:  # it was its turn, and those of the others were found on that ground
            del turns[1][key]
            self._turns = turns

    def leave(self, key: K, now: int) -> None:
        """It neither waits nor holds a slot any more. What it held is remembered for the window."""
        self._turns = None
        known = self._where.pop(key, None)
        if known is None:
            return
        name, place = known
        of = self._tenants[name]
        self._promised.pop(key, None)
        if place is not None:
            del of.waiting[_index(of.waiting, place)]
        else:
            self._live -= 1
            of.remember(of.live.pop(key), now)
        if not (of.waiting or of.live or of.past):
            del self._tenants[name]

    def promise(self, key: K) -> None:
        """A slot is given up for that run: while it waits, and its tenant may have one, nobody else takes it."""
        if self.place(key) is not None:
            self._promised[key] = None
            self._turns = None

    def was(self, tenant: str, began: int, ended: int) -> None:
        """A run held a slot then, as its object says."""
        self._turns = None
        self._tenant(tenant).remember(began, ended)

    def changed(self) -> None:
        """What a tenant may have has changed."""
        self._turns = None

    # --- what follows -------------------------------------------------------------------------------------------------

    def turns(self, now: int) -> dict[K, None]:
        """Those that may begin now, in order."""
        if self._turns is None or not 0 <= now - self._turns[0] < FRESH_MS:
            self._turns = (now, dict.fromkeys(self._picks(now)))
        return self._turns[1]

    def next_after(self, stops: K, place: Rank, now: int) -> K | None:
        """Whose turn it would be if that live run let go of its slot and waited at that place."""
        known = self._where.get(stops)
        if known is None or known[1] is not None:
            return None
        found = []
        for name, of in self._tenants.items():
            share, leaves = self._share(name), name == known[0]
            line = [*of.waiting[:1], *([(place, stops)] if leaves else [])]
            if line and _room(of, share, -1 if leaves else 0):
                found.append((*_charged(of, share, now), *min(line, key=_by_rank), name))
        return min(found, key=lambda each: (each[0], each[2], each[4]))[3] if found else None

    def _picks(self, now: int) -> Iterator[K]:
        free, ahead = self.limit - self._live, Counter[str]()
        for key in self._promised:
            name, _ = self._where[key]
            if free > 0 and _room(self._tenants[name], self._share(name), ahead[name]):
                free, ahead[name] = free - 1, ahead[name] + 1
                yield key
        heap = []
        for name, of in self._tenants.items():
            share = self._share(name)
            line = of.waiting if not ahead[name] else [each for each in of.waiting if each[1] not in self._promised]
            if line and _room(of, share, ahead[name]):
                charged, each = _charged(of, share, now)
                heap.append((charged + each * ahead[name], line[0][0], name, 0, each, share, line))
        heapify(heap)
        for _ in range(free):
            if not heap:
                return
            charged, _, name, taken, each, share, line = heappop(heap)
            yield line[taken][1]
            taken += 1
            if taken < len(line) and _room(self._tenants[name], share, taken + ahead[name]):
                heappush(heap, (charged + each, line[taken][0], name, taken, each, share, line))

    @property
    def live(self) -> int:
        """How many hold a slot."""
        return self._live

    def place(self, key: K) -> int | None:
        """Its place among those of its tenant that wait, from 1."""
        known = self._where.get(key)
        if known is None or known[1] is None:
            return None
        return _index(self._tenants[known[0]].waiting, known[1]) + 1

    def first(self, tenant: str) -> K | None:
        """The first of the tenant that waits."""
        of = self._tenants.get(tenant)
        return of.waiting[0][1] if of is not None and of.waiting else None

    def held(self, tenant: str) -> dict[K, int]:
        """The tenant's live runs, with when they began, the earliest first."""
        of = self._tenants.get(tenant)
        return dict(sorted(of.live.items(), key=lambda each: each[1])) if of else {}

    def share(self, tenant: str) -> Share:
        """What the tenant may have now."""
        return self._share(tenant)

    def tally(self, now: int) -> dict[str, Tally]:
        """Each tenant that has, or had of late, a run that waits or is live."""
        return {
            name: Tally(
                len(of.waiting),
                of.charge(now) / self._share(name).weight,
                min((place.created_at for place, _ in of.waiting), default=None),
            )
            for name, of in self._tenants.items()
        }

    def _tenant(self, name: str) -> _Tenant[K]:
        self._turns = None
        return self._tenants.setdefault(name, _Tenant())


def _room(of: _Tenant[K], share: Share, taken: int) -> bool:
    return not share.closed and (share.most is None or len(of.live) + taken < share.most)


def _charged(of: _Tenant[Any], share: Share, now: int) -> tuple[float, float]:
    """What the tenant would be charged for its weight half-way through another run, and for each run."""
    charge = of.charge(now)  # it drops what has left the window, so before what is usual
    each = of.usual() / share.weight
    return charge / share.weight + each / 2, each


def _by_rank(each: tuple[Rank, K]) -> Rank:
    return each[0]


def _index(waiting: list[tuple[Rank, K]], place: Rank) -> int:
    """Names are unique within a tenant, and so are ranks."""
    return bisect_left(waiting, place, key=_by_rank)
