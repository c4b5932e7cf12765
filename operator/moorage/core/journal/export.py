"""A journal as a file: JSON lines, to be verified offline (J5) without trusting whoever handed it over (J12).

The first line is a header, and each further line one record with its stored bytes as they are:

    {"moorage_journal":1,"tenant":…,"run_uid":…,"name":…,"spec_hash":…,"offset":…,"hash":…}
    {"hash":"<64 hex digits>","record":<canonical bytes>}

Lines end with one line feed and nothing else; U+2028 is a character like others. The reader keeps one line in memory,
of bounded length; the first thing that it can't accept ends the reading, named by line and byte offset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import EMPTY, MAX_RECORD, Broken, ChainVerifier, Head, Intact
from moorage.core.journal.errors import Malformed
from moorage.core.journal.pruning import Pruned, pruned_of
from moorage.core.journal.record import Record, Stored

FORMAT = 1
MAX_LINE = 2 * MAX_RECORD
"""Bytes. No line of ours is longer: a record is at most MAX_RECORD and a header much less."""

_OPENING, _MIDDLE, _CLOSING = b'{"hash":"', b'","record":', b"}"
_BODY_AT = len(_OPENING) + 64 + len(_MIDDLE)
_HEX = re.compile(rb"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Whose journal it is and where it ended when it was exported. `hash` is None for an empty journal.

    `signature` is the gateway's word for that head (J6), where whoever exported it had one. `pruned` stands for all
    records of a journal whose retention is over (J7).
    """

    tenant: str
    run_uid: str
    name: str
    spec_hash: str
    offset: int
    hash: str | None
    signature: str | None = None
    pruned: Pruned | None = None

    @property
    def head(self) -> Head:
        """Where the chain must end."""
        return Head(self.offset, self.hash)


_HEADER = ("tenant", "run_uid", "name", "spec_hash", "offset", "hash", "signature")


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its line feed, with its number (from 1) and its place in the file (bytes)."""

    number: int
    at: int
    data: bytes


def header_line(header: Header) -> bytes:
    """Return the first line of an export."""
    said = {"moorage_journal": FORMAT} | {name: getattr(header, name) for name in _HEADER}
    if header.pruned is not None:
        said["pruned"] = header.pruned.said()
        said["pruned_signature"] = header.pruned.signature
    return canonical(said) + b"\n"


def record_line(stored: Stored) -> bytes:
    """Return the line of a record."""
    return _OPENING + stored.hash.encode("ascii") + _MIDDLE + stored.body + _CLOSING + b"\n"


def read_lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """Split on line feeds only. Raise Malformed, by place, for a line that is too long or torn at the end."""
    number, at, pending = 1, 0, bytearray()
    for chunk in chunks:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending += chunk[start:end]
            _refuse_long(number, at, len(pending))
            yield Line(number, at, bytes(pending))
            number, at, start = number + 1, at + len(pending) + 1, end + 1
            pending.clear()
        pending += chunk[start : start + MAX_LINE + 1]
        _refuse_long(number, at, len(pending))
    if pending:
        raise Malformed(f"line {number} at byte {at} is torn: it has no end")


def parse_header(line: Line) -> Header:
    """Return the header. Raise Malformed."""
    try:
        raw = orjson.loads(line.data)
    except orjson.JSONDecodeError as e:
        raise Malformed(f"{_place(line)} is no header of an exported journal: {e}") from e
    if not isinstance(raw, dict) or raw.get("moorage_journal") != FORMAT:
        raise Malformed(f"{_place(line)} is no header of an exported journal of format {FORMAT}")
    texts: dict[str, Any] = {name: raw.get(name) for name in ("tenant", "run_uid", "name", "spec_hash")}
    offset, digest = raw.get("offset"), raw.get("hash")
    if not all(isinstance(t, str) for t in texts.values()):
        raise Malformed(f"{_place(line)}: the header lacks one of {', '.join(texts)}")
    signature = raw.get("signature")
    if type(offset) is not int or not isinstance(digest, str | None) or not isinstance(signature, str | None):
        raise Malformed(f"{_place(line)}: the header lacks offset or hash")
    gone = pruned_of(raw["pruned"], raw.get("pruned_signature")) if "pruned" in raw else None
    if gone is not None and (gone.run_uid, gone.last, gone.hash) != (texts["run_uid"], offset, digest):
        raise Malformed(f"{_place(line)}: its tombstone is of another journal")
    return Header(**texts, offset=offset, hash=digest, signature=signature, pruned=gone)


def parse_record(line: Line) -> Stored:
    """Return the stored bytes of a record's line. Raise Malformed."""
    data = line.data
    digest = data[len(_OPENING) : len(_OPENING) + 64]
    framed = data.startswith(_OPENING) and data[_BODY_AT - len(_MIDDLE) : _BODY_AT] == _MIDDLE
    if not framed or not data.endswith(_CLOSING) or not _HEX.match(digest):
        raise Malformed(f"{_place(line)} is no record of an exported journal")
    return Stored(digest.decode("ascii"), data[_BODY_AT : -len(_CLOSING)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an export turned out to be. `header` is None where even that can't be read; `sound` records are good."""

    header: Header | None
    chain: Intact | Broken
    sound: int = 0


def verify_export(
    chunks: Iterable[bytes], *, published: Head | None = None, see: Callable[[Record], None] | None = None
) -> Verdict:
    """Verify an exported journal, given as chunks of bytes of any size. Never raises for what the bytes hold.

    `published` is a head that somebody else kept (J6): the journal must have passed through it. `see` is shown each
    record that was found good; what it raises ends the reading.
    """
    lines = read_lines(chunks)
    try:
        first = next(lines, None)
        if first is None:
            return Verdict(None, Broken(0, None, "the file is empty"))
        header = parse_header(first)
    except Malformed as e:
        return Verdict(None, Broken(0, None, str(e)))
    sound = _Counted(see)
    chain = _follow(lines, header, published, sound)
    return Verdict(header, chain, sound.records)


class _Counted:
    """Counts the records that were found good, and shows them on."""

    def __init__(self, see: Callable[[Record], None] | None) -> None:
        self._see, self.records = see, 0

    def __call__(self, record: Record) -> None:
        self.records += 1
        if self._see:
            self._see(record)


def _follow(
    lines: Iterator[Line], header: Header, published: Head | None, see: Callable[[Record], None]
) -> Intact | Broken:
    verifier = ChainVerifier(header.pruned.head if header.pruned else EMPTY, header.run_uid)
    try:
        for line in lines:
            if broken := verifier.feed(parse_record(line)):
                return Broken(broken.offset, broken.record_id, f"{_place(line)}: {broken.why}")
            record = verifier.last
            if record is None:
                continue
            if published and record.seq == published.offset and record.hash != published.hash:
                return Broken(record.seq, record.record_id, f"the head in status disagrees: it says {published.hash}")
            see(record)
    except Malformed as e:
        return verifier.fail(str(e))
    verdict = verifier.result(header.head)
    if published and header.pruned and published.offset == header.offset and published.hash != header.hash:
        return Broken(header.offset, None, f"the head in status disagrees: it says {published.hash}")
    if published and isinstance(verdict, Intact) and verdict.offset < published.offset:
        return Broken(verdict.offset + 1, None, f"the head in status disagrees: it says offset {published.offset}")
    return verdict


def _refuse_long(number: int, at: int, length: int) -> None:
    if length > MAX_LINE:
        raise Malformed(f"line {number} at byte {at} is longer than {MAX_LINE} bytes")


def _place(line: Line) -> str:
    return f"line {line.number} at byte {line.at}"
