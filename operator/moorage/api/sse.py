"""Server-sent events, both ends of them: what the gateway streams and the program reads.

An event is a few lines that end at line feeds and nothing else, and an empty line ends it:

    id: 17
    event: output
    data: {"stream":"stdout","text":"first\\n"}

`id` is a cursor: whoever comes back with the last one, as `Last-Event-ID`, misses nothing and hears nothing twice. What
begins with a colon is a sign of life. A connection that breaks within an event has not brought it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MEDIA_TYPE = "text/event-stream"
LAST_EVENT_ID = "last-event-id"
HEARTBEAT = b": \n\n"
MAX_EVENT = 16 * 1024 * 1024
"""Bytes. No event of ours is longer: a chunk of output is mostly 32 KiB, and 8 MiB is all that a sandbox may report."""


class BadStream(ValueError):
    """What came is no stream of events of ours; the message says how."""


@dataclass(frozen=True, slots=True)
class Event:
    """`data` is JSON in one line; `id` is None where the event has no place in the stream's order."""

    kind: str
    data: bytes
    id: int | None = None

    def encoded(self) -> bytes:
        """As it goes over the wire."""
        place = b"" if self.id is None else b"id: %d\n" % self.id
        return b"%sevent: %s\ndata: %s\n\n" % (place, self.kind.encode(), self.data)


class Parser:
    """Bytes in, in chunks that end anywhere, and events out. Memory is bounded by MAX_EVENT."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._begin()

    def _begin(self) -> None:
        self._kind, self._data, self._size = "message", list[bytes](), 0
        self._id: int | None = None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end within the chunk. Raise BadStream."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._line += chunk[start:end]
            event = self._take(bytes(self._line))
            self._line.clear()
            start = end + 1
            if event is not None:
                yield event
        self._line += chunk[start:]
        self._demand_short(len(self._line))

    def _take(self, line: bytes) -> Event | None:
        """One line: the empty one ends an event; one without data is none."""
        if not line:
            found = Event(self._kind, b"\n".join(self._data), self._id) if self._data else None
            self._begin()
            return found
        name, _, value = line.partition(b":")
        self._field(name, value.removeprefix(b" "))
        return None

    def _field(self, name: bytes, value: bytes) -> None:
        match name:
            case b"data":
                self._size += len(value)
                self._demand_short(self._size)
                self._data.append(value)
            case b"event":
                self._kind = value.decode("utf-8", "replace")
            case b"id":
                self._id = _cursor(value)

    def _demand_short(self, size: int) -> None:
        if size > MAX_EVENT:
            raise BadStream(f"an event has more than {MAX_EVENT} bytes")


def _cursor(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise BadStream(f"an event's id is no cursor: {value[:32]!r}") from None
