"""The ring of the latest events, beside all events: whoever reads at whatever pace has each once, in order (M4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.sse import Event, Parser
from moorage.gateway.ring import Place, Ring

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 60) | st.none(), st.integers(1, 3)),
        st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 200)),
    ),
    max_size=80,
)


def wire(events: list[tuple[int, Event]], first: int, last: int) -> bytes:
    """What a page of the journal brings: the events from `first` to before `last`."""
    return b"".join(event.encoded() for seq, event in events if first <= seq < last)


@pytest.mark.rule("M4", "M5")
@given(STEPS, st.integers(1, 400), st.integers(0, 5))
def test_readers_at_any_pace_have_each_event_once_and_the_ring_is_bounded(
    steps: list[tuple[str, int | None, int]], most: int, since: int
) -> None:
    ring, events, offset = Ring(since, most), list[tuple[int, Event]](), since
    readers = [Place(since), Place(since), Place(since)]
    seen = [b"", b"", b""]

    def read(which: int, size: int) -> None:
        place = readers[which]
        if place.next < ring.since:
            seen[which] += wire(events, place.next, ring.since)
            readers[which] = Place(ring.since)
            return
        chunk, readers[which] = ring.after(place, size)
        seen[which] += chunk

    for kind, number, size in steps:
        if kind == "read":
            read(number or 0, size)
            continue
        offset += size - 1  # offsets that a repair dropped
        event = None if number is None else Event("output", b"x" * number, offset)
        ring.add(offset, event)
        events += [(offset, event)] if event is not None else []
        offset += 1
        assert ring.size <= max(most, len(events[-1][1].encoded()) if events else 0)
    for which in range(3):
        while readers[which].next < ring.until:
            read(which, 50)
        assert list(Parser().feed(seen[which])) == [event for _, event in events]


def test_what_a_live_reader_has_missed_is_counted() -> None:
    ring = Ring(0, 1)
    events = [Event("output", b"x" * size, size) for size in range(5)]
    ring.add(0, events[0])
    _, place = ring.after(Place(0), 100)
    for event in events[1:]:
        ring.add(event.id or 0, event)
    assert ring.since == 4
    assert ring.missed(place) == sum(len(event.encoded()) for event in events[1:4])
    assert ring.missed(Place(0)) is None
