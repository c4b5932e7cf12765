from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from moorage.core.journal.chain import EMPTY, MAX_INLINE, Broken, Intact, head_at, seal
from moorage.core.journal.errors import Malformed
from moorage.core.journal.export import (
    MAX_LINE,
    Header,
    Line,
    header_line,
    parse_header,
    parse_record,
    read_lines,
    record_line,
    verify_export,
)
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source, decode

RUN = RunIdentity(tenant="team-a", run_uid="run-1", session_id="s-1")
AWKWARD = "line\u2028separator \u0085 nul\0 \r\n \x1c 😀"


def draft(n: int, payload: dict[str, Any]) -> Draft:
    return Draft(record_id=f"r{n}", type=RecordType.AGENT_OUTPUT, recorded_at=n, source=Source.RUNNER,
                 assurance=Assurance.REPORTED, payload=payload)  # fmt: skip


def export(length: int) -> list[bytes]:
    """Header line and record lines."""
    entries = seal([draft(n, {"n": n, "text": AWKWARD}) for n in range(length)], EMPTY, RUN, 1)
    head = head_at(decode(entries[-1])) if entries else EMPTY
    header = Header(tenant="team-a", run_uid="run-1", name="fix", spec_hash="s", offset=head.offset, hash=head.hash)
    return [header_line(header), *map(record_line, entries)]


def chunked(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


@pytest.mark.rule("J5")
@pytest.mark.parametrize("size", [1, 7, 1024, 1 << 20])
def test_an_exported_journal_is_verified_offline_however_it_is_cut(size: int) -> None:
    lines = export(40)
    verdict = verify_export(chunked(b"".join(lines), size))
    assert isinstance(verdict.chain, Intact)
    assert (verdict.chain.offset, verdict.header) == (39, parse_header(Line(1, 0, lines[0])))
    assert verify_export(export(0)).chain == Intact(-1, None)


def test_each_line_is_json_for_other_tools() -> None:
    header, first, *_ = export(2)
    assert orjson.loads(header)["moorage_journal"] == 1
    line = orjson.loads(first)
    assert set(line) == {"hash", "record"}
    assert line["record"]["payload"] == {"n": 0, "text": AWKWARD}
    stored = parse_record(Line(2, 0, first.rstrip(b"\n")))
    assert record_line(stored) == first


@pytest.mark.rule("J5")
def test_one_changed_byte_anywhere_is_found_at_its_record() -> None:
    lines = export(4)
    for number, line in enumerate(lines[1:], 1):
        for position in range(len(line) - 1):
            changed = bytearray(line)
            changed[position] ^= 1
            verdict = verify_export([*lines[:number], bytes(changed), *lines[number + 1 :]])
            assert isinstance(verdict.chain, Broken)
            assert verdict.chain.offset == number - 1, (number, position)
            assert f"line {number + 1} at byte" in verdict.chain.why


@pytest.mark.rule("J5", "J12")
def test_lines_that_are_gone_torn_or_too_many_are_found() -> None:
    lines = export(4)
    whole = b"".join(lines)
    assert verify_export([b"".join(lines[:-1])]).chain == Broken(
        3, None, "the journal ends here, its head says offset 3"
    )
    for cut in range(len(whole) - len(lines[-1]) + 1, len(whole)):
        torn = verify_export([whole[:cut]]).chain
        assert isinstance(torn, Broken)
        assert torn.offset == 3
        assert "torn" in torn.why
    twice = verify_export([whole, lines[-1]]).chain
    assert isinstance(twice, Broken)
    assert (twice.offset, twice.record_id) == (4, "r3")


@pytest.mark.rule("J12")
@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\0" * 5000,
        b"\xff\xfe\xfd",
        b"\xe2\x80\xa8",
        b"{}",
        b"null",
        b'{"hash":"',
        b'{"hash":"' + b"g" * 64 + b'","record":{}}',
        b'{"hash":"' + b"0" * 64 + b'","record":}',
        b'{"hash":"' + b"0" * 64 + b'","record":' + b"[" * 50_000 + b"}",
        b"[" * 200_000,
    ],
)
def test_hostile_lines_are_refused_by_place(bad: bytes) -> None:
    lines = export(3)
    chain = verify_export([*lines[:2], bad + b"\n", *lines[2:]]).chain
    assert isinstance(chain, Broken)
    assert (chain.offset, chain.record_id) == (1, None)
    assert f"line 3 at byte {len(lines[0]) + len(lines[1])}" in chain.why
    assert verify_export([bad]).header is None


@pytest.mark.rule("J12")
@pytest.mark.parametrize(
    "header",
    [
        {"moorage_journal": 2},
        {"tenant": 1},
        {"offset": "3"},
        {"offset": True},
        {"hash": 5},
        {"run_uid": None},
    ],
)
def test_a_header_that_isnt_one_is_refused(header: dict[str, Any]) -> None:
    lines = export(1)
    bad = orjson.dumps(orjson.loads(lines[0]) | header) + b"\n"
    verdict = verify_export([bad, lines[1]])
    assert (verdict.header, type(verdict.chain)) == (None, Broken)


@pytest.mark.rule("J12")
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_long_line_is_refused_without_being_held(end: bytes) -> None:
    lines = export(1)
    piece = b"\0" * (1 << 20)
    tracemalloc.start()
    chain = verify_export(iter([*lines, *[piece] * 16, end])).chain
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(chain, Broken)
    assert f"line 3 at byte {len(lines[0]) + len(lines[1])} is longer than {MAX_LINE}" in chain.why
    assert peak < 4 * MAX_LINE


@pytest.mark.rule("J12")
def test_one_huge_chunk_without_an_end_is_not_copied() -> None:
    chunk = b"x" * (16 << 20)
    tracemalloc.start()
    with pytest.raises(Malformed, match="longer"):
        list(read_lines([chunk]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MAX_LINE


def test_the_longest_record_fits_into_a_line() -> None:
    entries = seal([draft(0, {"x": "y" * (MAX_INLINE - 8)})], EMPTY, RUN, 1)
    head = head_at(decode(entries[0]))
    header = Header(tenant="t", run_uid="run-1", name="n", spec_hash="s", offset=0, hash=head.hash)
    assert verify_export([header_line(header), record_line(entries[0])]).chain == Intact(0, head.hash)


@pytest.mark.rule("J5", "J12")
def test_a_journal_of_hundreds_of_mebibytes_is_verified_in_little_memory() -> None:
    """The same way reads 2 GiB; here as much as a unit test has time for, never held as a whole."""
    length, head = 3000, EMPTY

    def lines() -> Iterator[bytes]:
        nonlocal head
        for n in range(length):
            entry = seal([draft(n, {"x": "y" * 60_000})], head, RUN, 1)[0]
            head = head_at(decode(entry))
            yield record_line(entry)

    for _ in lines():
        pass
    header = Header(tenant="t", run_uid="run-1", name="n", spec_hash="s", offset=head.offset, hash=head.hash)
    head = EMPTY
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = verify_export(chunk for part in ([header_line(header)], lines()) for chunk in part)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert verdict.chain == Intact(length - 1, header.hash)
    assert grown < 20 * 1024  # KiB
