from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any

import orjson
import pytest

from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import (
    EMPTY,
    MAX_INLINE,
    Broken,
    ChainVerifier,
    Head,
    Intact,
    head_at,
    seal,
    verify,
)
from moorage.core.journal.errors import InvalidDraft, JournalCorrupted, Malformed, PayloadTooLarge, UnknownCritical
from moorage.core.journal.record import (
    KNOWN_TYPES,
    OPTIONAL_TYPES,
    Assurance,
    BlobRef,
    Draft,
    Record,
    RecordType,
    Retention,
    RunIdentity,
    Source,
    Stored,
    decode,
    readable,
)

RUN = RunIdentity(tenant="team-a", run_uid="run-1", session_id="s-1")


def draft(n: int, **more: Any) -> Draft:
    facts = {"type": RecordType.CHECKPOINT, "recorded_at": n, "source": Source.GATEWAY, "payload": {"n": n}} | more
    return Draft(record_id=f"r{n}", assurance=Assurance.OBSERVED, **facts)


def journal(length: int) -> list[Stored]:
    return seal([draft(n) for n in range(length)], EMPTY, RUN, 1)


def rehash(body: dict[str, Any], prev_hash: str | None) -> Stored:
    """What somebody could write who knows the formula."""
    data = canonical(body)
    return Stored(hashlib.sha256((prev_hash or "GENESIS").encode() + data).hexdigest(), data)


@pytest.mark.rule("J4")
def test_the_chain_is_the_published_formula() -> None:
    first, second = journal(2)
    one = hashlib.sha256(b"GENESIS" + first.body).hexdigest()
    two = hashlib.sha256(one.encode() + second.body).hexdigest()
    assert (first.hash, second.hash) == (one, two)
    assert first.body == canonical(orjson.loads(first.body))
    assert "hash" not in orjson.loads(second.body)
    assert orjson.loads(second.body)["prev_hash"] == one


@pytest.mark.rule("J4")
def test_the_bytes_of_version_1_stay_as_they_are() -> None:
    """Golden: journals that exist are verified by these bytes."""
    stored = seal([draft(0, attempt=1, payload_ref=BlobRef("ab" * 32, 7), actor="é")], Head(4, "f" * 64, 9), RUN, 3)[0]
    assert stored.body.decode() == (
        '{"actor":"é","assurance":"observed","attempt":1,"criticality":"critical","epoch":3,"logical_time":10,'
        '"payload":{"n":0},"payload_ref":{"privacy":"metadata","retention":"journal","sha256":"' + "ab" * 32 + '",'
        '"size":7},"prev_hash":"' + "f" * 64 + '","privacy":"metadata","record_id":"r0","recorded_at":0,'
        '"retention":"journal","run_uid":"run-1","schema_version":1,"seq":5,"session_id":"s-1","source":"gateway",'
        '"tenant":"team-a","type":"CHECKPOINT"}'
    )
    assert stored.hash == "e2d77d49f6b49f53e0ed2076f63c4e2d05ce6df13b1f8a7ae767d67f2008398c"


def test_sealing_in_parts_is_sealing_at_once() -> None:
    whole = journal(6)
    head = head_at(decode(whole[3]))
    assert seal([draft(4), draft(5)], head, RUN, 1) == whole[4:]


@pytest.mark.rule("J5")
def test_an_intact_chain_says_where_it_ends() -> None:
    entries = journal(5)
    head = head_at(decode(entries[-1]))
    assert verify(entries) == verify(entries, expected=head) == Intact(4, entries[4].hash)
    assert verify([]) == verify([], expected=EMPTY) == Intact(-1, None)


@pytest.mark.rule("J5")
@pytest.mark.parametrize("at", [0, 3, 5])
def test_the_first_changed_record_is_named(at: int) -> None:
    entries = journal(6)
    body = entries[at].body.replace(b'"seq"', b'"seQ"', 1)
    for bad in (
        Stored(entries[at].hash, entries[at].body.replace(b'{"n":', b'{"m":')),
        Stored("0" * 64, entries[at].body),
    ):
        broken = verify([*entries[:at], bad, *entries[at + 1 :]])
        assert broken == Broken(at, f"r{at}", "its hash doesn't match its bytes and the hash before it")
    broken = verify([*entries[:at], Stored(entries[at].hash, body), *entries[at + 1 :]])
    assert isinstance(broken, Broken)
    assert (broken.offset, broken.record_id) == (at, None)


@pytest.mark.rule("J5")
def test_a_record_that_is_missing_moved_or_added_is_found() -> None:
    entries = journal(6)
    cases = {
        "left out": [*entries[:2], *entries[3:]],
        "swapped": [*entries[:2], entries[3], entries[2], *entries[4:]],
        "twice": [*entries[:3], *entries[2:]],
    }
    expected = {"left out": (2, "r3"), "swapped": (2, "r3"), "twice": (3, "r2")}
    for name, case in cases.items():
        broken = verify(case)
        assert isinstance(broken, Broken), name
        assert (broken.offset, broken.record_id) == expected[name], name
    assert isinstance(verify(entries[1:]), Broken)


@pytest.mark.rule("J5")
def test_a_tail_that_is_cut_off_is_found_by_the_head() -> None:
    entries = journal(6)
    head = head_at(decode(entries[-1]))
    assert verify(entries[:4]) == Intact(3, entries[3].hash)
    broken = verify(entries[:4], expected=head)
    assert broken == Broken(4, None, "the journal ends here, its head says offset 5")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seq": 9}, "it says seq 9"),
        ({"run_uid": "run-2"}, "it belongs to run run-2"),
        ({"prev_hash": "0" * 64}, "it names another hash before it"),
    ],
)
def test_a_record_that_hashes_right_but_stands_wrong_is_found(change: dict[str, Any], why: str) -> None:
    entries = journal(3)
    bad = rehash(orjson.loads(entries[2].body) | change, entries[1].hash)
    assert verify([*entries[:2], bad]) == Broken(2, "r2", why)


def test_a_verifier_stays_with_its_first_fault_and_can_start_at_a_head() -> None:
    entries = journal(6)
    verifier = ChainVerifier(head_at(decode(entries[2])), "run-1")
    assert verifier.feed(entries[3]) is None
    assert verifier.last is not None
    assert verifier.last.record_id == "r3"
    broken = verifier.feed(entries[5])
    assert broken is not None
    assert verifier.feed(entries[4]) is verifier.result() is broken is verifier.fail("more")
    assert isinstance(ChainVerifier(run_uid="run-2").feed(entries[0]), Broken)


@pytest.mark.rule("J5")
def test_a_broken_chain_is_an_error_that_says_what_to_do() -> None:
    error = Broken(3, "r3", "why").error()
    assert isinstance(error, JournalCorrupted)
    assert "offset 3 (record r3): why" in str(error)
    assert "backup" in str(error)
    assert "unreadable" in str(Broken(3, None, "why").error())


@pytest.mark.rule("J9")
def test_the_six_events_of_the_loop_are_types() -> None:
    loop = {
        "MODEL_REQUEST",
        "MODEL_RESPONSE",
        "TOOL_REQUEST",
        "TOOL_RESPONSE",
        "CONTEXT_COMPACTED",
        "ITERATION_COMPLETE",
    }
    assert loop <= KNOWN_TYPES


@pytest.mark.rule("J10")
def test_each_record_carries_its_criticality() -> None:
    for record_type in RecordType:
        record = decode(seal([draft(0, type=record_type)], EMPTY, RUN, 1)[0])
        assert record.criticality == ("optional" if record_type in OPTIONAL_TYPES else "critical")
    assert decode(seal([draft(0, type="OF_A_LATER_VERSION")], EMPTY, RUN, 1)[0]).criticality == "critical"


@pytest.mark.rule("J10")
def test_unknown_optional_types_are_skipped_and_critical_ones_refused() -> None:
    entries = journal(3)
    later = orjson.loads(entries[1].body) | {"type": "NEW", "schema_version": 7, "of_later": {"x": [1]}}
    optional = rehash(later | {"criticality": "optional"}, entries[0].hash)
    record = decode(optional)
    assert (record.type, record.known, record.schema_version) == ("NEW", False, 7)
    assert [r.record_id for r in readable([decode(entries[0]), record])] == ["r0"]
    assert verify([entries[0], optional]) == Intact(1, optional.hash)
    with pytest.raises(UnknownCritical, match="record 1 has the critical type NEW"):
        list(readable([replace(record, criticality="critical")]))


@pytest.mark.parametrize(
    ("facts", "error", "says"),
    [
        ({"type": ""}, InvalidDraft, "no type"),
        ({"recorded_at": -1}, InvalidDraft, "milliseconds"),
        ({"recorded_at": 2**53}, InvalidDraft, "milliseconds"),
        ({"payload": {"x": "y" * MAX_INLINE}}, PayloadTooLarge, "blob store"),
        ({"retention": Retention.ERASABLE}, PayloadTooLarge, "erasable"),
    ],
)
def test_a_draft_out_of_bounds_is_refused(facts: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        seal([draft(0, **facts)], EMPTY, RUN, 1)


@pytest.mark.rule("J8")
def test_erasable_content_may_be_named_and_some_of_it_kept_inline() -> None:
    ref = BlobRef("ab" * 32, 7, retention="erasable")
    record = decode(seal([draft(0, retention=Retention.ERASABLE, payload_ref=ref)], EMPTY, RUN, 1)[0])
    assert (record.payload_ref, record.payload) == (ref, {"n": 0})


@pytest.mark.rule("J12")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 1000,
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"record_id":"x"',
        b'{"record_id":"\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"record_id":1}',
    ],
)
def test_hostile_bytes_are_malformed_and_broken(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(Stored("0" * 64, body))
    broken = verify([rehash_bytes(body)])
    assert isinstance(broken, Broken)
    assert (broken.offset, broken.record_id) == (0, None)


@pytest.mark.rule("J12")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seq": True}, "seq"),
        ({"payload_ref": {"sha256": "ab" * 32, "size": True}}, "needs sha256 and size"),
        ({"payload_ref": "ab"}, "payload_ref"),
        ({"type": ["x"]}, "type"),
        ({"type": None}, "type"),
    ],
)
def test_a_record_that_looks_like_the_last_one_of_its_type_is_judged_too(change: dict[str, Any], says: str) -> None:
    ref = BlobRef("ab" * 32, 7)
    (stored,) = seal([draft(0, payload_ref=ref)], EMPTY, RUN, 1)
    good = orjson.loads(stored.body)
    for _ in range(2):
        assert decode(stored).payload_ref == ref
        with pytest.raises(Malformed, match=says):
            decode(Stored(stored.hash, canonical(good | change)))
    later = decode(Stored(stored.hash, canonical(good | {"zz_of_later": 1})))
    assert later == decode(stored)
    assert not hasattr(later, "zz_of_later")


def rehash_bytes(body: bytes) -> Stored:
    return Stored(hashlib.sha256(b"GENESIS" + body).hexdigest(), body)


@pytest.mark.rule("J12")
def test_every_field_of_a_wrong_kind_is_malformed() -> None:
    good = orjson.loads(journal(1)[0].body)
    for field in fields(Record):
        if field.name != "hash":
            with pytest.raises(Malformed, match=field.name):
                decode(rehash(good | {field.name: [1]}, None))
    with pytest.raises(Malformed, match="seq"):
        decode(rehash(good | {"seq": False}, None))
    for ref in ({}, {"sha256": 1, "size": 1}, {"sha256": "x", "size": True}):
        with pytest.raises(Malformed, match="blob"):
            decode(rehash(good | {"payload_ref": ref}, None))
    with pytest.raises(Malformed, match="blob"):
        decode(rehash(good | {"attachments": {"x": []}}, None))
    for name in ("record_id", "type", "seq", "epoch", "run_uid"):
        with pytest.raises(Malformed, match=name):
            decode(rehash({k: v for k, v in good.items() if k != name}, None))
