"""Output on its way to artifacts: nothing is changed, memory is bounded, and what is missing is said."""

import asyncio
import base64
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


async def test_a_burst_is_bounded_and_what_is_missing_is_said(shipped) -> None:
    shipped.log.add("stdout", b"x" * (3 * BURST_BYTES))
    await shipped.log.flush()
    assert len(shipped.of("stdout")) == BURST_BYTES
    assert shipped.of("moorage") == f"\n[{2 * BURST_BYTES} bytes of output dropped here]\n".encode()
    shipped.log.add("stdout", b"after")
    await shipped.log.flush()
    assert shipped.of("stdout").endswith(b"after")


async def test_an_attempt_keeps_so_much_and_no_more(shipped) -> None:
    for _ in range(2 * KEPT_BYTES // BURST_BYTES):
        shipped.log.add("stdout", b"x" * BURST_BYTES)
        await shipped.log.flush()
    assert KEPT_BYTES - BURST_BYTES < len(shipped.of("stdout")) <= KEPT_BYTES


async def test_past_that_there_are_two_marks_however_long_it_floods(shipped) -> None:
    bursts = KEPT_BYTES // BURST_BYTES + 50
    for _ in range(bursts):
        shipped.log.add("stdout", b"x" * BURST_BYTES)
        await shipped.log.flush()
    await shipped.log.flush(last=True)
    await shipped.log.flush(last=True)
    marks = [int(line[1:].split()[0]) for line in shipped.of("moorage").decode().splitlines() if line]
    assert len(marks) == 2
    assert len(shipped.of("stdout")) + sum(marks) == bursts * BURST_BYTES


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
