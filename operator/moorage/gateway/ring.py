"""The latest events of one stream, in a ring of bounded size: the oldest go first."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from moorage.api.sse import Event


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader has come: the offset that it wants next, and the bytes of all events before that, where it has
    read them from the ring.
    """

    next: int
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """An event: its offset, its bytes as they go over the wire, and the bytes of all events before it."""

    seq: int
    wire: bytes
    before: int


class Ring:
    """At most `most` bytes of events, and at least one. It holds every event from the offset `since` to `until`, which
    is the first one that nobody has read yet.
    """

    def __init__(self, since: int, most: int) -> None:
        self.since, self.until, self.total, self.size = since, since, 0, 0
        self._most = most
        self._events: deque[Held] = deque()

    def add(self, seq: int, event: Event | None) -> None:
        """The record at `seq` comes after all before, and this is its event, where it has one."""
        self.until = seq + 1
        if event is None:
            return
        wire = event.encoded()
        self._events.append(Held(seq, wire, self.total))
        self.total, self.size = self.total + len(wire), self.size + len(wire)
        while self.size > self._most and len(self._events) > 1:
            oldest = self._events.popleft()
            self.size -= len(oldest.wire)
            self.since = oldest.seq + 1

    def after(self, place: Place, most: int) -> tuple[bytes, Place]:
        """Events from a place in the ring on, about `most` bytes of them, and the place behind them."""
        at = bisect_left(self._events, place.next, key=lambda held: held.seq)
        taken: list[bytes] = []
        size = 0
        while at < len(self._events):
            held = self._events[at]
            if size >= most:
                return b"".join(taken), Place(held.seq, held.before)
            taken.append(held.wire)
            size, at = size + len(held.wire), at + 1
        return b"".join(taken), Place(self.until, self.total)

    def missed(self, place: Place) -> int | None:
        """Bytes of the events that have left the ring since somebody was at that place; None where nobody knows."""
        return None if place.total is None else max(0, self.total - self.size - place.total)
