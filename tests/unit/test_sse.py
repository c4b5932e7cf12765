"""Events over the wire: whole ones only, whatever they hold and wherever their bytes are cut (J12)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.sse import HEARTBEAT, MAX_EVENT, BadStream, Event, Parser

TEXTS = st.text(max_size=40) | st.sampled_from(["\u2028\u2029\x85", "a\r\nb\rc\n\n", "\x00", "data: x\n\nid: 9"])
DATA = st.dictionaries(TEXTS, TEXTS, max_size=3)
EVENTS = st.builds(
    lambda kind, data, place: Event(kind, json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"), place),
    st.sampled_from(["output", "gap", "end"]),
    DATA,
    st.none() | st.integers(0, 2**53),
)


def cut(wire: bytes, sizes: list[int]) -> list[bytes]:
    """Pieces of these sizes, over and over."""
    pieces, at, turn = [], 0, 0
    while at < len(wire):
        size = sizes[turn % len(sizes)]
        pieces.append(wire[at : at + size])
        at, turn = at + size, turn + 1
    return pieces


@pytest.mark.rule("J12")
@given(st.lists(EVENTS | st.none(), max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=5), st.data())
def test_what_was_sent_comes_whole_wherever_it_was_cut(events: list[Any], sizes: list[int], data: Any) -> None:
    wire = b"".join(HEARTBEAT if event is None else event.encoded() for event in events)
    sent = [event for event in events if event is not None]
    parser = Parser()
    assert [event for piece in cut(wire, sizes) for event in parser.feed(piece)] == sent
    broken = data.draw(st.integers(0, len(wire)))
    parser = Parser()
    arrived = [event for piece in cut(wire[:broken], sizes) for event in parser.feed(piece)]
    assert arrived == sent[: len(arrived)], "a torn event is none"


def test_what_is_no_stream_of_ours_is_refused_and_memory_is_bounded() -> None:
    with pytest.raises(BadStream, match="no cursor"):
        list(Parser().feed(b"id: seven\n"))
    for piece in (b"x" * 65_536, b"data: " + b"x" * 65_536 + b"\n"):
        with pytest.raises(BadStream, match="more than"):
            flooded(piece)


def flooded(piece: bytes) -> None:
    parser = Parser()
    for _ in range(MAX_EVENT // 65_536 + 2):
        assert list(parser.feed(piece)) == []


def test_fields_and_comments_that_are_unknown_are_passed_over() -> None:
    wire = b"retry: 5\n: a comment\nevent: output\ndata:{}\nid: 3\nunknown\n\n\n"
    assert list(Parser().feed(wire)) == [Event("output", b"{}", 3)]
