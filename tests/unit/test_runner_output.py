"""Output on its way to artifacts: nothing is changed, memory is bounded, and what is missing is said."""

import asyncio
import base64
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.runner.output import (
    BURST_BYTES,
    CHUNK_BYTES,
    FLUSH_S,
    KEPT_BYTES,
    SLOWER_AFTER,
    SLOWEST_FLUSH_S,
    TAIL_BYTES,
    OutputLog,
    chunks,
    pause_s,
)


class Shipped:
    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.log = OutputLog(self.emit)

    async def emit(self, kind: str, payload: Any) -> None:
        assert kind == "AGENT_OUTPUT"
        await self.gate.wait()
        self.payloads.append(dict(payload))

    def of(self, stream: str) -> bytes:
        found = [p for p in self.payloads if p["stream"] == stream]
        return b"".join(base64.b64decode(p["data"]) if "data" in p else p["text"].encode() for p in found)


@pytest.fixture
def shipped() -> Shipped:
    return Shipped()


async def test_streams_keep_their_order_and_their_bytes(shipped) -> None:
    for stream, data in [("stdout", b"a\n"), ("stdout", b"b\0\n"), ("stderr", b"\xff\xfe"), ("stdout", b"c")]:
        shipped.log.add(stream, data)
    await shipped.log.flush()
    assert [(p["stream"], p["bytes"]) for p in shipped.payloads] == [("stdout", 5), ("stderr", 2), ("stdout", 1)]
    assert (shipped.of("stdout"), shipped.of("stderr")) == (b"a\nb\0\nc", b"\xff\xfe")
    assert [p["index"] for p in shipped.payloads] == [1, 2, 3]


def dropped(shipped: Shipped) -> int:
    """Bytes that are said to be missing."""
    return sum(payload.get("dropped", 0) for payload in shipped.payloads)


def lines(first: int, size: int) -> bytes:
    """Numbered lines, about so many bytes of them."""
    return b"".join(b"%011d\n" % number for number in range(first, first + size // 12))


async def test_of_a_burst_the_middle_is_dropped_and_that_is_said_where_it_is(shipped) -> None:
    whole = lines(0, 3 * BURST_BYTES)
    for at in range(0, len(whole), 10_000):
        shipped.log.add("stdout", whole[at : at + 10_000])
    await shipped.log.flush()
    kept = shipped.of("stdout")
    assert BURST_BYTES - 100 < len(kept) <= BURST_BYTES
    assert len(kept) + dropped(shipped) == len(whole)
    at = next(i for i, payload in enumerate(shipped.payloads) if "dropped" in payload)
    mark, after = shipped.payloads[at], b"".join(p["text"].encode() for p in shipped.payloads[at + 1 :])
    assert (mark["stream"], mark["text"]) == ("moorage", f"\n[{mark['dropped']} bytes of output dropped here]\n")
    assert whole.startswith(kept[: -len(after)])
    assert whole.endswith(b"\n" + after), "the last bytes, from the beginning of a line"
    assert len(after) > TAIL_BYTES - 100
    shipped.log.add("stdout", b"after")
    await shipped.log.flush()
    assert shipped.of("stdout") == kept + b"after"


async def test_an_attempt_keeps_so_much_and_its_last_words(shipped) -> None:
    """However long it floods, and whoever ends it."""
    bursts = KEPT_BYTES // BURST_BYTES + 50
    for number in range(bursts):
        shipped.log.add("stdout", lines(number * 10**6, BURST_BYTES - TAIL_BYTES))
        await shipped.log.flush()
    shipped.log.add("stderr", b"killed\n")
    before = len(shipped.payloads)
    await shipped.log.flush()
    assert len(shipped.payloads) == before, "it waits for the end"
    await shipped.log.flush(last=True)
    assert shipped.of("stderr") == b"killed\n"
    assert shipped.of("stdout").endswith(lines((bursts - 1) * 10**6, BURST_BYTES - TAIL_BYTES)[-1000:])
    written = bursts * len(lines(0, BURST_BYTES - TAIL_BYTES))
    assert len(shipped.of("stdout")) + dropped(shipped) == written
    assert len(shipped.of("stdout")) <= KEPT_BYTES
    told = [p for p in shipped.payloads if p["stream"] == "moorage" and "dropped" not in p]
    assert [each["text"] for each in told] == ["\n[8 MiB of output are kept; the end of it comes last]\n"]
    await shipped.log.flush(last=True)
    assert len(shipped.of("stdout")) + dropped(shipped) == written


async def test_a_line_without_end_keeps_its_end_and_cuts_no_character(shipped) -> None:
    shipped.log.add("stdout", "ж".encode() * BURST_BYTES * 4)
    await shipped.log.flush(last=True)
    assert all("text" in payload for payload in shipped.payloads)
    assert len(shipped.of("stdout")) + dropped(shipped) == 8 * BURST_BYTES


WRITES = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.integers(0, 3 * BURST_BYTES), st.booleans()), max_size=60
)


@given(WRITES)
async def test_whatever_is_written_and_whenever_it_is_shipped_no_byte_is_moved_or_unaccounted_for(writes) -> None:
    shipped, whole = Shipped(), {"stdout": b"", "stderr": b""}
    for number, (stream, size, flush) in enumerate(writes):
        data = bytes([number % 256]) * size
        whole[stream] += data
        shipped.log.add(stream, data)
        assert shipped.log.held <= BURST_BYTES
        if flush:
            await shipped.log.flush()
    await shipped.log.flush(last=True)
    kept = {stream: shipped.of(stream) for stream in whole}
    assert sum(map(len, kept.values())) + dropped(shipped) == sum(map(len, whole.values()))
    assert sum(map(len, kept.values())) <= KEPT_BYTES
    for stream, data in kept.items():
        assert subsequence(data, whole[stream])


def subsequence(part: bytes, whole: bytes) -> bool:
    """Of runs of equal bytes: each run of the part, in order, is within one of the whole."""
    runs = iter((key, len(list(group))) for key, group in groupby(whole))
    for key, group in groupby(part):
        size = len(list(group))
        if not any(key == other and size <= length for other, length in runs):
            return False
    return True


def test_flushes_become_rarer_with_what_was_shipped() -> None:
    assert pause_s(0) == pause_s(SLOWER_AFTER - 1) == FLUSH_S
    assert pause_s(SLOWER_AFTER) == 2 * FLUSH_S
    assert pause_s(10**9) == SLOWEST_FLUSH_S
    seconds, shipped = 0.0, 0
    while seconds < 86_400:
        seconds, shipped = seconds + pause_s(shipped), shipped + 1
    assert shipped < 20_000


async def test_adding_never_waits_for_a_slow_journal(shipped) -> None:
    shipped.gate.clear()
    shipped.log.add("stdout", b"one")
    flush = asyncio.create_task(shipped.log.flush())
    await asyncio.sleep(0)
    shipped.log.add("stdout", b"two")
    shipped.gate.set()
    await flush
    await shipped.log.flush()
    assert shipped.of("stdout") == b"onetwo"


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)), st.integers(0, CHUNK_BYTES))
def test_chunks_are_the_whole_and_cut_no_character(tail, lead) -> None:
    data = b"x" * lead + tail + "жж€🜁".encode() * (CHUNK_BYTES // 6)
    parts = list(chunks(data))
    assert b"".join(parts) == data
    assert all(0 < len(part) <= CHUNK_BYTES for part in parts)
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    for part in parts:
        part.decode()
