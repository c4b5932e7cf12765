"""Making a bundle of a run's evidence: fetched to disk, examined, and written as one file in one order.

Memory stays as it is, however long the journal: what grows with it lies in files and in a database on disk.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from moorage import __version__
from moorage.cli.evidence import Evidence
from moorage.cli.exits import CliError, NotFound
from moorage.core.evidence import manifest, tar
from moorage.core.evidence.manifest import Entry, Line, Title, Withheld
from moorage.core.evidence.verdict import Findings, verdict_bytes
from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import Broken
from moorage.core.journal.errors import JournalError
from moorage.core.journal.export import Header, verify_export
from moorage.core.journal.record import BlobRef, Record
from moorage.core.run.phases import IllegalMove

MISSING = "missing"


class Cited:
    """What a journal cites, in order, and what is known of each; in a database of its own that lies on disk and dies
    with it.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("")  # a temporary file, of which a few MiB are cached
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE cited (sha TEXT PRIMARY KEY, size INTEGER, at INTEGER, why TEXT)")

    def cite(self, ref: BlobRef) -> None:
        """A record needs it."""
        self._db.execute("INSERT OR IGNORE INTO cited (sha, size) VALUES (?, ?)", (ref.sha256, ref.size))

    def found(self, sha: str, size: int, at: int) -> bool:
        """It lies at that place of a file. False where nothing cites it, or it was found before."""
        change = "UPDATE cited SET at = ?, why = NULL WHERE sha = ? AND size = ? AND at IS NULL"
        return self._db.execute(change, (at, sha, size)).rowcount == 1

    def withheld(self, sha: str, why: str) -> bool:
        """It isn't handed over. False where nothing cites it."""
        return self._db.execute("UPDATE cited SET why = ? WHERE sha = ?", (why, sha)).rowcount == 1

    def held(self) -> Iterator[tuple[str, int, int]]:
        """Hash, size and place of all that was found, in the order of their citation."""
        yield from self._db.execute("SELECT sha, size, at FROM cited WHERE at IS NOT NULL ORDER BY rowid")

    def lacking(self) -> Iterator[Withheld]:
        """What wasn't found, with the reason."""
        asked = "SELECT sha, coalesce(why, ?) FROM cited WHERE at IS NULL ORDER BY rowid"
        for sha, why in self._db.execute(asked, (MISSING,)):
            yield Withheld(sha, why)

    def unheard_of(self) -> str | None:
        """The first that was neither found nor withheld."""
        asked = "SELECT sha FROM cited WHERE at IS NULL AND why IS NULL ORDER BY rowid LIMIT 1"
        found = self._db.execute(asked).fetchone()
        return str(found[0]) if found else None

    def lookup(self, sha: str) -> tuple[int, int] | None:
        """Size and place of one, where it was found."""
        found = self._db.execute("SELECT size, at FROM cited WHERE sha = ? AND at IS NOT NULL", (sha,)).fetchone()
        return (found[0], found[1]) if found else None

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


@dataclass(frozen=True)
class Examined:
    """A journal that is whole, and what follows from it."""

    header: Header
    findings: Findings


def examine(chunks: Iterable[bytes], cited: Cited) -> Examined:
    """Verify and reduce an exported journal in one pass. Raise CliError by the first bad record."""
    findings = Findings()

    def see(record: Record) -> None:
        findings.feed(record)
        for ref in record.blobs:
            cited.cite(ref)

    try:
        verdict = verify_export(chunks, see=see)
    except (IllegalMove, JournalError, KeyError, TypeError, ValueError) as error:
        at = findings.state.offset + 1
        raise CliError(f"{manifest.JOURNAL}: record {at} can't follow from what came before: {error}") from None
    if isinstance(verdict.chain, Broken) or verdict.header is None:
        broken = verdict.chain
        where = f"record {broken.offset} ({getattr(broken, 'record_id', None) or 'unreadable'})"
        raise CliError(f"{manifest.JOURNAL}: {where} is the first bad one: {getattr(broken, 'why', '')}")
    if verdict.header.pruned is not None:
        raise CliError(f"{manifest.JOURNAL}: it was pruned, its retention is over", "a bundle is made before that")
    return Examined(verdict.header, findings)


@dataclass(frozen=True)
class Source:
    """The content of a member, to be read as often as it is asked for."""

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]

    @property
    def entry(self) -> Entry:
        """Its line in the manifest."""
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        return Entry(self.name, digest.hexdigest(), self.size)


@dataclass(frozen=True)
class Made:
    """What a bundle came to."""

    members: int
    size: int
    withheld: int


async def make(evidence: Evidence, folder: Path, target: IO[bytes]) -> Made:
    """Fetch into `folder`, which is empty, and write the bundle to `target`. Raises CliError."""
    with contextlib.closing(Cited()) as cited:
        journal, blobs = folder / "journal", folder / "blobs"
        await _fetch(evidence.journal(), journal)
        examined = examine(_pieces(journal), cited)
        await _fetch(evidence.blobs(), blobs)
        with blobs.open("rb") as file:
            _place(file, cited)
            small, lacking = await _small(evidence, folder, examined, file, cited)
            return _write(_Gathered(examined, cited, file, small, lacking), target)


@dataclass(frozen=True)
class _Gathered:
    examined: Examined
    cited: Cited
    blobs: IO[bytes]
    small: tuple[Source, ...]
    lacking: tuple[Withheld, ...]


async def _fetch(chunks: AsyncIterator[bytes], path: Path) -> None:
    with path.open("wb") as file:
        async for chunk in chunks:
            file.write(chunk)


def _place(file: IO[bytes], cited: Cited) -> None:
    """Take note of where each blob lies; what isn't what it is called isn't taken."""
    try:
        for member in tar.members(file):
            folder, _, sha = member.name.partition("/")
            if folder == "withheld":
                cited.withheld(sha, b"".join(tar.content(file, member)).decode("ascii", "replace"))
            elif _digest(tar.content(file, member)) == sha:
                cited.found(sha, member.size, member.at)
            else:
                cited.withheld(sha, "damaged")
    except tar.NotSound as error:
        raise CliError(f"what the gateway sent broke off: {error}", "try again") from None


async def _small(
    evidence: Evidence, folder: Path, examined: Examined, blobs: IO[bytes], cited: Cited
) -> tuple[tuple[Source, ...], tuple[Withheld, ...]]:
    """All members but blobs."""
    found = [_of_file(manifest.JOURNAL, folder / "journal")]
    found.append(_of_bytes(manifest.VERDICT, verdict_bytes(examined.findings.verdict)))
    spec = examined.findings.spec
    at = cited.lookup(spec.sha256) if spec else None
    if at is not None:
        blobs.seek(at[1])
        found.append(_of_bytes(manifest.SPEC, blobs.read(at[0])))
    key = await evidence.head_key()
    if key is not None:
        found.append(_of_bytes(manifest.KEY, key))
    if evidence.published is not None:
        found.append(_of_bytes(manifest.PUBLISHED, canonical(asdict(evidence.published)) + b"\n"))
    lacking: tuple[Withheld, ...] = ()
    try:
        await _fetch(evidence.result(), folder / "result")
        found.append(_of_file(manifest.RESULT, folder / "result"))
    except NotFound:
        proposal = examined.findings.state.proposal
        if proposal is not None and not proposal.empty:
            lacking = (Withheld(manifest.RESULT, MISSING),)
    return tuple(found), lacking


def _write(gathered: _Gathered, target: IO[bytes]) -> Made:
    header = gathered.examined.header
    title = Title(__version__, header.run_uid, header.tenant, header.name)
    with tempfile.TemporaryFile() as listing:
        members = withheld = 0
        for line in manifest.written(title, _lines(gathered)):
            listing.write(line)
            withheld += line.count(b'"withheld"')
        size = _member(target, Source(manifest.MANIFEST, listing.tell(), lambda: _whole(listing)))
        for source in _sources(gathered):
            size += _member(target, source)
            members += 1
        target.write(tar.END)
    return Made(members, size + len(tar.END), withheld)


def _lines(gathered: _Gathered) -> Iterator[Line]:
    for source in gathered.small:
        yield source.entry
    for sha, size, _ in gathered.cited.held():
        yield Entry(manifest.BLOBS + sha, sha, size)
    yield from gathered.lacking
    yield from gathered.cited.lacking()


def _sources(gathered: _Gathered) -> Iterator[Source]:
    yield from gathered.small
    for sha, size, at in gathered.cited.held():
        member = tar.Member(manifest.BLOBS + sha, size, at)
        yield Source(member.name, size, functools.partial(tar.content, gathered.blobs, member))


def _member(target: IO[bytes], source: Source) -> int:
    """Write one; how many bytes that took."""
    target.write(tar.header(source.name, source.size))
    for chunk in source.chunks():
        target.write(chunk)
    zeros = tar.padding(source.size)
    target.write(zeros)
    return tar.BLOCK + source.size + len(zeros)


def _whole(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(tar.CHUNK):
        yield chunk


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _whole(file)


def _of_file(name: str, path: Path) -> Source:
    return Source(name, path.stat().st_size, lambda: _pieces(path))


def _of_bytes(name: str, data: bytes) -> Source:
    return Source(name, len(data), lambda: iter((data,)))


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
