"""J4, J5: the hash chain over a run's records.

    hash_0 = SHA256("GENESIS" ‖ canonical(record_0))
    hash_n = SHA256(hex(hash_{n-1}) ‖ canonical(record_n))

`canonical(record)` covers the whole record but its own hash. Bytes are made once, by `seal`, and are stored; verifying
hashes the stored bytes. The chain goes on across attempts and segments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from moorage.core.journal.canonical import MAX_SAFE_INTEGER, canonical, canonical_with
from moorage.core.journal.errors import InvalidDraft, JournalCorrupted, Malformed, PayloadTooLarge
from moorage.core.journal.lineage import Dropped, Repair, repair_of
from moorage.core.journal.record import (
    SCHEMA_VERSION,
    BlobRef,
    Draft,
    Fact,
    Record,
    Retention,
    RunIdentity,
    Stored,
    criticality_of,
    decode,
)

GENESIS = b"GENESIS"
_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_INLINE = 64 * 1024
"""J8: bytes of canonical payload that a record may hold itself."""
MAX_ENVELOPE = 64 * 1024
"""Bytes that all other fields of a record may take."""
MAX_RECORD = MAX_INLINE + MAX_ENVELOPE
MAX_ID = 128


@dataclass(frozen=True, slots=True)
class Head:
    """Where a journal ends. `offset` is the last record's `seq`, -1 before the first."""

    offset: int = -1
    hash: str | None = None
    logical_time: int = 0


EMPTY = Head()


@dataclass(frozen=True, slots=True)
class Intact:
    """The chain holds up to and with `offset`. `repairs` are those that it goes on behind (I1)."""

    offset: int
    hash: str | None
    repairs: tuple[Repair, ...] = ()

    @property
    def records(self) -> int:
        """How many there are, without what was dropped."""
        return self.offset + 1 - sum(each.dropped.last + 1 - each.dropped.first for each in self.repairs)


@dataclass(frozen=True, slots=True)
class Broken:
    """The first bad record. `record_id` is None where the bytes don't tell it."""

    offset: int
    record_id: str | None
    why: str

    def error(self) -> JournalCorrupted:
        """Return the error that refuses recovery."""
        return JournalCorrupted(self.offset, self.record_id, self.why)


def link(prev_hash: str | None, body: bytes) -> str:
    """Return the chain's hash at a record with these canonical bytes, in lower-case hex."""
    return hashlib.sha256((prev_hash.encode("ascii") if prev_hash is not None else GENESIS) + body).hexdigest()


def head_at(record: Record) -> Head:
    """Return the head of a journal that ends with this record."""
    return Head(record.seq, record.hash, record.logical_time)


def seal(drafts: Iterable[Draft], head: Head, run: RunIdentity, epoch: int) -> list[Stored]:
    """Give each draft its place after `head`: the bytes to store and the hash at each.

    Raise InvalidDraft, NotCanonical or PayloadTooLarge; then none is sealed. Read a result with `decode`.
    """
    sealed = []
    for draft in drafts:
        place = _Place(epoch, head.offset + 1, max(head.logical_time, draft.caused_at) + 1, head.hash)
        body = _body(draft, run, place)
        head = Head(place.seq, link(head.hash, body), place.logical_time)
        sealed.append(Stored(head.hash or "", body))
    return sealed


def same_fact(draft: Draft, existing: Record, stored: Stored) -> bool:
    """Whether `draft` says what `existing` (decoded from `stored`) says; when and under which trace doesn't count."""
    run = RunIdentity(**{f.name: getattr(existing, f.name) for f in fields(RunIdentity)})
    place = _Place(
        existing.epoch,
        existing.seq,
        existing.logical_time,
        existing.prev_hash,
        existing.schema_version,
        existing.criticality,
    )
    then = replace(
        draft,
        recorded_at=existing.recorded_at,
        trace_id=existing.trace_id,
        correlation_id=existing.correlation_id,
    )
    return canonical_with(_envelope(then, run, place), then.payload) == stored.body


class ChainVerifier:
    """Follows a chain record by record, holding one hash only. `feed` returns the first fault, and then always that."""

    def __init__(self, start: Head = EMPTY, run_uid: str | None = None) -> None:
        self._offset, self._hash, self._run_uid = start.offset, start.hash, run_uid
        self._broken: Broken | None = None
        self._repairs: tuple[Repair, ...] = ()
        self.last: Record | None = None
        """The last record that was found good."""

    def feed(self, stored: Stored) -> Broken | None:
        """Check that `stored` follows what came before."""
        if self._broken is not None:
            return self._broken
        try:
            record = decode(stored)
        except Malformed as e:
            return self.fail(f"the record can't be read: {e}")
        if self._run_uid is None:
            self._run_uid = record.run_uid
        seq, before, repair = self._offset + 1, self._hash, None
        if record.seq != seq and (repair := self._repaired(record)) is not None:
            seq = record.seq
        follows = record.seq == seq and record.prev_hash == before and record.run_uid == self._run_uid
        if not follows or link(before, stored.body) != stored.hash:
            self._broken = Broken(seq, record.record_id, self._fault(record, stored))
            return self._broken
        self.last, self._offset, self._hash = record, seq, stored.hash
        if repair is not None:
            self._repairs += (repair,)
        return None

    def _repaired(self, record: Record) -> Repair | None:
        """The repair by which this record follows, where it names every offset from here to itself as dropped."""
        repair = repair_of(record)
        if repair is None or repair.dropped != Dropped(self._offset + 1, record.seq - 1):
            return None
        return repair

    def fail(self, why: str) -> Broken:
        """Record that what should follow can't be read."""
        self._broken = self._broken or Broken(self._offset + 1, None, why)
        return self._broken

    def result(self, expected: Head | None = None) -> Intact | Broken:
        """Return the verdict; with `expected`, also that the journal ends there and nowhere earlier."""
        if (
            self._broken is None
            and expected is not None
            and (self._offset, self._hash) != (expected.offset, expected.hash)
        ):
            return Broken(self._offset + 1, None, f"the journal ends here, its head says offset {expected.offset}")
        return self._broken or Intact(self._offset, self._hash, self._repairs)

    def _fault(self, record: Record, stored: Stored) -> str:
        if link(self._hash, stored.body) != stored.hash:
            return "its hash doesn't match its bytes and the hash before it"
        if record.seq != self._offset + 1:
            return f"it says seq {record.seq}"
        if record.prev_hash != self._hash:
            return "it names another hash before it"
        return f"it belongs to run {record.run_uid}"


def verify(stored: Iterable[Stored], *, expected: Head | None = None) -> Intact | Broken:
    """Stream a whole journal with bounded memory and name the first bad record (J5)."""
    verifier = ChainVerifier()
    for entry in stored:
        if broken := verifier.feed(entry):
            return broken
    return verifier.result(expected)


@dataclass(frozen=True, slots=True)
class _Place:
    """What the store gives to a draft."""

    epoch: int
    seq: int
    logical_time: int
    prev_hash: str | None
    schema_version: int = SCHEMA_VERSION
    criticality: str | None = None


class _Fields:
    """Reads the fields of a dataclass that apply; members of string enumerations are text to both serialisers."""

    def __init__(self, kind: type, *without: str) -> None:
        self._names = tuple(f.name for f in fields(kind) if f.name not in without)
        self._values = attrgetter(*self._names)

    def of(self, source: object) -> dict[str, Any]:
        """Return name and value of each that isn't None."""
        return {k: v for k, v in zip(self._names, self._values(source), strict=True) if v is not None}


_FACT = _Fields(Fact, "payload_ref", "attachments")
_RUN = _Fields(RunIdentity)
_PLACE = _Fields(_Place)
_BLOB = _Fields(BlobRef)


def _body(draft: Draft, run: RunIdentity, place: _Place) -> bytes:
    check_draft(draft)
    body = canonical_with(_envelope(draft, run, place), draft.payload)
    if len(body) > MAX_INLINE:
        _check_sizes(draft, len(body))
    return body


def _envelope(draft: Draft, run: RunIdentity, place: _Place) -> dict[str, Any]:
    """The record as a JSON object, without what doesn't apply and without its own hash."""
    envelope = _RUN.of(run) | _PLACE.of(place) | _FACT.of(draft)
    envelope.setdefault("criticality", criticality_of(draft.type))
    if draft.payload_ref is not None:
        envelope["payload_ref"] = _BLOB.of(draft.payload_ref)
    if draft.attachments:
        envelope["attachments"] = {name: _BLOB.of(ref) for name, ref in draft.attachments.items()}
    return envelope


def check_draft(draft: Draft) -> None:
    """Refuse a draft with a field outside its bounds: raise InvalidDraft or PayloadTooLarge."""
    if not 1 <= len(draft.record_id) <= MAX_ID:
        raise InvalidDraft(f"record_id must have 1 to {MAX_ID} characters, it has {len(draft.record_id)}")
    if not _is_text(draft.record_id):
        raise InvalidDraft(f"record_id {draft.record_id!r} is not valid Unicode without NUL")
    if not all(name.isascii() for name in draft.attachments or ()):
        raise InvalidDraft(f"record {draft.record_id}: names of attachments must be ASCII")
    if not all(_SHA256.fullmatch(blob.sha256) for blob in draft.blobs):
        raise InvalidDraft(f"record {draft.record_id}: a blob is named by its SHA-256 in lower-case hex")
    if not draft.type:
        raise InvalidDraft(f"record {draft.record_id} has no type")
    if not 0 <= draft.recorded_at <= MAX_SAFE_INTEGER:
        raise InvalidDraft(f"record {draft.record_id}: recorded_at must be milliseconds since the epoch")
    if draft.retention == Retention.ERASABLE and draft.payload and draft.payload_ref is None:
        raise PayloadTooLarge(f"record {draft.record_id}: erasable content is never inline, put it into the blob store")


def _check_sizes(draft: Draft, total: int) -> None:
    inline = len(canonical(draft.payload or {}))
    if inline > MAX_INLINE:
        raise PayloadTooLarge(
            f"record {draft.record_id}: the payload has {inline} bytes, at most {MAX_INLINE} are inline: "
            "put it into the blob store and give payload_ref"
        )
    if total - inline > MAX_ENVELOPE:
        raise PayloadTooLarge(
            f"record {draft.record_id}: fields beside the payload take {total - inline} bytes, at most {MAX_ENVELOPE}"
        )


def _is_text(value: str) -> bool:
    """Whether every database can keep it."""
    return "\0" not in value and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))
