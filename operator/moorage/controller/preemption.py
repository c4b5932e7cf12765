"""Q5: who stops at a safe point so that a run which somebody waits for has its turn.

Nothing is remembered past a restart: until the journal has it, it is asked for anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moorage.controller.told import Standing, rank_of
from moorage.core.scheduling.fair import FairQueue, Rank
from moorage.sandbox.port import RunKey

LEAST_HELD_MS = 60_000
"""Nobody is stopped sooner after it began: what starts would do nothing but start."""


@dataclass
class Entry:
    """One AgentRun. `body` is kept while it may still be worked on."""

    key: RunKey
    created_at: int
    standing: Standing
    body: Mapping[str, Any] | None
    version: int
    rank: Rank  # its place in its tenant's queue
    background: bool = False  # scheduling.class
    preemptible: bool = False  # Q5: a background run whose author lets it be stopped to make room
    stoppable: bool = True  # and that can be, as far as its last pass knew: it isn't on its way to its end
    since: int | None = None  # when it was stopped to make room: its age counts from then on
    due_at: int | None = None  # ended: when its retention is over
    succeeded: bool = False
    began_at: int | None = None  # when it first started, as its status tells
    parent: tuple[str, str] | None = None  # namespace and name
    origin: tuple[str, str] | None = None  # likewise, of the run that it waits to go on with
    fresh: bool = False  # created under this process's own eyes, and not looked at since
    reason: str = ""  # why it stands there, as its last pass found


class MakingRoom:
    """Which live runs may be asked to stop, and who is to stop for whom. `now` in ms since the epoch."""

    def __init__(self, queue: FairQueue[RunKey], get: Callable[[RunKey], Entry | None], now: Callable[[], int]) -> None:
        self._queue, self._get, self._now = queue, get, now
        self._may: set[RunKey] = set()  # preemptible, and live
        self._for: dict[RunKey, RunKey] = {}  # who is to stop, and for whom; until it has

    def ask(self, heir: RunKey) -> RunKey | None:
        """The one that is to stop for that run: of those that may, the one that began last. `heir` says so from then
        on.
        """
        entry, now = self._get(heir), self._now()
        if entry is None or entry.standing is not Standing.WAITING or entry.background or not self._lacks_room(heir):
            return None
        may = [each for key in self._may - self._for.keys() if (each := self._stoppable(key)) is not None]
        held = {each.key: self._queue.held(each.key.tenant).get(each.key, now) for each in may}
        settled = [each for each in may if now - held[each.key] >= LEAST_HELD_MS]
        for each in sorted(settled, key=lambda e: (e.key.tenant == heir.tenant, held[e.key]), reverse=True):
            if self._queue.next_after(each.key, rank_of(each.key, each.body or {}, now), now) == heir:
                self._for[each.key] = heir
                return each.key
        return None

    def heir(self, key: RunKey) -> str:
        """Name of the run that this one is to stop for, while that waits; else nothing."""
        heir = self._for.get(key)
        entry = self._get(heir) if heir is not None else None
        waits = entry is not None and entry.standing is Standing.WAITING and not self._has_turn(entry.key)
        if entry is None or not waits or self._stoppable(key) is None:
            self._for.pop(key, None)
            return ""
        return entry.key.name if entry.key.tenant == key.tenant else "a run of another namespace"

    def placed(self, entry: Entry, *, live: bool) -> None:
        """Only who is live and may be stopped can be asked to. What it gives up is for whom it was asked to stop."""
        if live and entry.preemptible:
            self._may.add(entry.key)
            return
        self._may.discard(entry.key)
        if (heir := self._for.pop(entry.key, None)) is not None:
            self._queue.promise(heir)

    def _stoppable(self, key: RunKey) -> Entry | None:
        entry = self._get(key)
        return entry if entry is not None and entry.stoppable else None

    def _lacks_room(self, heir: RunKey) -> bool:
        """It is the first of its tenant, it isn't its turn yet, and nobody is stopping for it."""
        first = self._queue.place(heir) == 1
        return first and not self._has_turn(heir) and heir not in self._for.values()

    def _has_turn(self, key: RunKey) -> bool:
        return key in self._queue.turns(self._now())
