"""The first member of a bundle: what is in it, each with its SHA-256, and what is not, each with the reason.

JSON lines, canonical, so that it is written and read without ever being held whole:

    {"moorage_bundle":1,"moorage":…,"run_uid":…,"tenant":…,"name":…}
    {"name":"journal.jsonl","sha256":…,"size":…}          one for each further member, in the tar's order
    {"withheld":"<sha256>","why":"erased"}                cited by the journal, and not here
    {"sha256":…}                                          of all lines above
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import orjson

from moorage.core.evidence.tar import NotSound
from moorage.core.journal.canonical import canonical
from moorage.core.journal.errors import Malformed, NotCanonical
from moorage.core.journal.export import read_lines

FORMAT = 1
MANIFEST = "manifest.jsonl"
JOURNAL = "journal.jsonl"
SPEC = "spec.json"
VERDICT = "verdict.json"
PUBLISHED = "published.json"
KEY = "key.pem"
RESULT = "result.bundle"
BLOBS = "blobs/"


@dataclass(frozen=True, slots=True)
class Title:
    """Whose evidence it is, and which version of Moorage made the bundle."""

    moorage: str
    run_uid: str
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A member."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Withheld:
    """What the journal cites and the bundle doesn't hold: a blob by its SHA-256, or the result."""

    withheld: str
    why: str


Line = Entry | Withheld


def written(title: Title, lines: Iterable[Line]) -> Iterator[bytes]:
    """The manifest's bytes, line by line."""
    digest = hashlib.sha256()
    first = canonical({"moorage_bundle": FORMAT} | asdict(title)) + b"\n"
    digest.update(first)
    yield first
    for line in lines:
        data = canonical(asdict(line)) + b"\n"
        digest.update(data)
        yield data
    yield canonical({"sha256": digest.hexdigest()}) + b"\n"


def read(chunks: Iterable[bytes]) -> Iterator[Title | Line]:
    """What the manifest says, first its title. Raise NotSound, at its end at the latest, for what isn't as written."""
    try:
        yield from _said(chunks)
    except (Malformed, NotCanonical, KeyError, ValueError, TypeError) as error:
        raise NotSound(MANIFEST, f"it can't be read: {error}") from None


def _said(chunks: Iterable[bytes]) -> Iterator[Title | Line]:
    digest, closed = hashlib.sha256(), False
    for line in read_lines(chunks):
        if closed:
            raise Malformed(f"line {line.number} comes after its end")
        said = _parse(line.data)
        if said.keys() == {"sha256"}:
            closed = _demand_hash(said["sha256"], digest.hexdigest())
            continue
        digest.update(line.data + b"\n")
        yield _title(said) if line.number == 1 else _line(said)
    if not closed:
        raise Malformed("it has no end")


def _demand_hash(told: object, found: str) -> bool:
    if told != found:
        raise Malformed("its lines don't match its own hash")
    return True


def _parse(data: bytes) -> dict[str, object]:
    said = orjson.loads(data)
    if not isinstance(said, dict) or canonical(said) != data:
        raise Malformed("it isn't as it was written")
    return said


def _title(said: dict[str, object]) -> Title:
    if said.pop("moorage_bundle", None) != FORMAT:
        raise Malformed(f"it is no bundle of format {FORMAT}")
    return Title(**{name: str(value) for name, value in said.items()})


def _line(said: dict[str, object]) -> Line:
    if "withheld" in said:
        return Withheld(str(said["withheld"]), str(said["why"]))
    size = said["size"]
    if type(size) is not int:
        raise Malformed("size is no integer")
    return Entry(str(said["name"]), str(said["sha256"]), size)
