from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.journal.chain import EMPTY, Broken, Intact, head_at, same_fact, seal, verify
from moorage.core.journal.export import Header, header_line, parse_record, read_lines, record_line, verify_export
from moorage.core.journal.record import Assurance, Draft, Record, RecordType, RunIdentity, Source, Stored, decode

RUN = RunIdentity(tenant="team-a", run_uid="run-1", session_id="s-1", workspace="web", agent_id="a")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
payloads = st.dictionaries(texts, st.none() | st.booleans() | st.integers(-(10**9), 10**9) | texts, max_size=4)
maybe = st.none() | texts


@st.composite
def drafts(draw: st.DrawFn, number: int) -> Draft:
    return Draft(
        record_id=f"r{number}",
        type=draw(st.sampled_from(list(RecordType)) | st.just("OF_A_LATER_VERSION")),
        recorded_at=draw(st.integers(0, 2**53 - 1)),
        source=draw(st.sampled_from(Source)),
        assurance=draw(st.sampled_from(Assurance)),
        payload=draw(st.none() | payloads),
        attempt=draw(st.none() | st.integers(0, 99)),
        trace_id=draw(maybe),
        actor=draw(maybe),
        caused_at=draw(st.integers(0, 1000)),
    )


@st.composite
def journals(draw: st.DrawFn) -> list[Stored]:
    length = draw(st.integers(1, 8))
    return seal([draw(drafts(n)) for n in range(length)], EMPTY, RUN, draw(st.integers(0, 9)))


@pytest.mark.rule("J5")
@given(journals(), st.data())
def test_a_flipped_bit_is_found_at_its_record(journal: list[Stored], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(journal) - 1))
    digest, body = journal[at]
    whole = bytearray(digest.encode() + body)
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 6 if position < 64 else 7))
    bad = Stored(whole[:64].decode("latin-1"), bytes(whole[64:]))
    verdict = verify([*journal[:at], bad, *journal[at + 1 :]])
    assert isinstance(verdict, Broken)
    assert verdict.offset == at


@pytest.mark.rule("J4", "J5")
@given(journals(), st.integers(1, 5000))
def test_a_journal_survives_being_exported(journal: list[Stored], size: int) -> None:
    head = head_at(decode(journal[-1]))
    header = Header(tenant="t", run_uid="run-1", name="n", spec_hash="s", offset=head.offset, hash=head.hash)
    data = b"".join([header_line(header), *map(record_line, journal)])
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert [parse_record(line) for line in list(read_lines(chunks))[1:]] == journal
    assert verify_export(chunks).chain == verify(journal, expected=head) == Intact(head.offset, head.hash)


@pytest.mark.rule("J12")
@given(st.lists(st.binary(max_size=300) | st.sampled_from([b"\n", b"\0" * 100, "\u2028".encode()]), max_size=20))
def test_no_bytes_crash_the_reader(chunks: list[bytes]) -> None:
    assert isinstance(verify_export(chunks).chain, Broken)


@pytest.mark.rule("J12")
@given(journals(), st.data())
def test_no_damage_to_an_export_crashes_the_reader_or_is_overlooked(journal: list[Stored], data: st.DataObject) -> None:
    head = head_at(decode(journal[-1]))
    header = Header(tenant="t", run_uid="run-1", name="n", spec_hash="s", offset=head.offset, hash=head.hash)
    prefix = header_line(header)
    whole = b"".join(map(record_line, journal))
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start, len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=20)) + whole[end:]
    verdict = verify_export([prefix, damaged]).chain
    assert isinstance(verdict, Intact if damaged == whole else Broken)


@given(st.data())
def test_a_retry_is_recognised_and_a_change_is_not(data: st.DataObject) -> None:
    draft = data.draw(drafts(0))
    stored = seal([draft], EMPTY, RUN, 1)[0]
    record = decode(stored)
    retry = replace(draft, recorded_at=data.draw(st.integers(0, 10**12)), trace_id=data.draw(maybe), caused_at=0)
    assert same_fact(retry, record, stored)
    changed = replace(draft, payload={**(draft.payload or {}), "new": 1})
    assert not same_fact(changed, record, stored)
    assert not same_fact(replace(draft, actor=(draft.actor or "") + "x"), record, stored)


@given(journals())
def test_records_say_what_their_drafts_said(journal: list[Stored]) -> None:
    records: list[Record] = [decode(stored) for stored in journal]
    assert [r.seq for r in records] == list(range(len(records)))
    times = [r.logical_time for r in records]
    assert times == sorted(set(times))
    assert all(r.tenant == "team-a" and r.agent_id == "a" for r in records)
