"""Checking a bundle on a machine that has nothing else: no cluster, no gateway, no clone.

Everything in it hangs on the journal's chain, and the chain on its signed head: what the journal cites is there by its
hash, the verdict is reduced again, and the result's tree is computed from its objects. The first thing that doesn't
hold ends the reading, by the name of the member or record.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeGuard

import orjson

from moorage.cli.bundling import Cited, Examined, examine
from moorage.cli.exits import CliError, NotFound
from moorage.core.evidence import manifest, tar
from moorage.core.evidence.manifest import Entry, Title, Withheld
from moorage.core.evidence.tar import Member, NotSound
from moorage.core.evidence.verdict import verdict_bytes
from moorage.core.journal.canonical import canonical_hash
from moorage.core.journal.export import parse_record, read_lines
from moorage.core.journal.heads import HeadRefused, SignedHead, VerifyingKey
from moorage.workspace.bundle import NotTheResult, tree_in

MAX_SMALL = 64 << 20  # bytes of a member that is read whole: spec, verdict, key
BEGINS = manifest.MANIFEST.encode() + b"\0"


@dataclass
class Checked:
    """What a sound bundle says. `notes` are what nobody could check, or what is left open."""

    title: Title
    examined: Examined
    verdict: dict[str, Any]
    blobs: int
    withheld: int
    key: str | None
    notes: list[str] = field(default_factory=list)


def is_bundle(path: Path) -> bool:
    """Whether the file begins as one."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(BEGINS)) == BEGINS
    return False


def check_bundle(path: Path, trusted: VerifyingKey | None = None) -> Checked:
    """Check all of it. `trusted` is a key that came by another way. Raise CliError at the first fault."""
    try:
        with path.open("rb") as file, contextlib.closing(Cited()) as held:
            return _check(file, held, trusted)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise CliError(f"{path} can't be read: {error.strerror}") from None
    except NotSound as error:
        raise CliError(f"not sound: {error}", "ask for the bundle again, from where it was made") from None


def _check(file: IO[bytes], cited: Cited, trusted: VerifyingKey | None) -> Checked:
    walked = _walk(file)
    try:
        examined = examine(tar.content(file, walked.small(manifest.JOURNAL)), cited)
    except CliError as error:
        raise CliError(f"not sound: {error.message}") from None
    _demand_whose(walked.title, examined)
    withheld = _demand_cited(file, walked, cited)
    verdict = _demand_verdict(file, walked, examined)
    notes = [f"open: {each}" for each in verdict["open"]]
    _demand_spec(file, walked, examined)
    key = _demand_heads(file, walked, examined, trusted, notes)
    _demand_result(file, walked, examined, notes)
    return Checked(walked.title, examined, verdict, walked.blobs, withheld, key, notes)


@dataclass
class _Walked:
    """The bundle's members, checked against the manifest; of the blobs only their number."""

    title: Title
    members: dict[str, Member]
    manifest: Member
    blobs: int = 0
    result_withheld: bool = False

    def small(self, name: str) -> Member:
        """A member that isn't a blob. Raise NotSound where it isn't there."""
        if name not in self.members:
            raise NotSound(name, "it is missing")
        return self.members[name]


SMALL = frozenset(
    {manifest.JOURNAL, manifest.VERDICT, manifest.SPEC, manifest.KEY, manifest.PUBLISHED, manifest.RESULT}
)


def _walk(file: IO[bytes]) -> _Walked:
    """Every byte of every member against the manifest."""
    members = tar.members(file)
    first = next(members, None)
    if first is None or first.name != manifest.MANIFEST:
        raise NotSound(manifest.MANIFEST, "it isn't the first member")
    _read_through(file, first)
    listed = manifest.read(_second_hand(file, first))
    title = next(listed, None)
    if not isinstance(title, Title):
        raise NotSound(manifest.MANIFEST, "it has no title")
    walked = _Walked(title, {}, first)
    for line in listed:
        if isinstance(line, Entry):
            _take(walked, file, next(members, None), line)
    extra = next(members, None)
    if extra is not None:
        raise NotSound(extra.name, "the manifest doesn't name it")
    return walked


def _read_through(file: IO[bytes], first: Member) -> None:
    """A fault in the manifest is told before faults that only follow from it."""
    for _ in manifest.read(tar.content(file, first)):
        pass


def _second_hand(file: IO[bytes], member: Member) -> Iterator[bytes]:
    """Content of a member, while others are being read from the same file."""
    at = 0
    while at < member.size:
        file.seek(member.at + at)
        chunk = file.read(min(tar.CHUNK, member.size - at))
        if not chunk:
            raise NotSound(member.name, "the file ends within it")
        at += len(chunk)
        yield chunk


def _take(walked: _Walked, file: IO[bytes], member: Member | None, line: Entry) -> None:
    if member is None:
        raise NotSound(line.name, "it is missing")
    if (member.name, member.size) != (line.name, line.size):
        raise NotSound(line.name, f"{member.name} of {member.size} bytes is in its place")
    if _digest(tar.content(file, member)) != line.sha256:
        raise NotSound(line.name, "its bytes don't have the hash that the manifest gives it")
    if line.name == manifest.BLOBS + line.sha256:
        walked.blobs += 1
    elif line.name in SMALL and line.name not in walked.members:
        walked.members[line.name] = member
    else:
        raise NotSound(line.name, "a bundle has no such member")


def _demand_whose(title: Title, examined: Examined) -> None:
    header = examined.header
    if (title.run_uid, title.tenant, title.name) != (header.run_uid, header.tenant, header.name):
        raise NotSound(manifest.MANIFEST, "it names another run than the journal")


def _demand_cited(file: IO[bytes], walked: _Walked, cited: Cited) -> int:
    """I9: what the journal cites is there, or named as withheld; nothing else is."""
    withheld = 0
    for line in manifest.read(_second_hand(file, walked.manifest)):
        if isinstance(line, Withheld):
            withheld += 1
            if line.withheld == manifest.RESULT:
                walked.result_withheld = True
            elif not cited.withheld(line.withheld, line.why):
                raise NotSound(manifest.MANIFEST, f"it withholds {line.withheld}, which no record cites")
        elif _is_blob(line) and not cited.found(line.sha256, line.size, 0):
            raise NotSound(line.name, "no record cites it, or with another size")
    if sha := cited.unheard_of():
        raise NotSound(manifest.BLOBS + sha, "a record cites it, and it is neither here nor withheld")
    return withheld


def _is_blob(line: Title | Entry) -> TypeGuard[Entry]:
    return isinstance(line, Entry) and line.name.startswith(manifest.BLOBS)


def _demand_verdict(file: IO[bytes], walked: _Walked, examined: Examined) -> dict[str, Any]:
    """The verdict follows from the journal; one of another reducer is told and made again."""
    verdict = examined.findings.verdict
    told = _whole(file, walked.small(manifest.VERDICT))
    if told != verdict_bytes(verdict):
        raise NotSound(manifest.VERDICT, _difference(told, verdict))
    return verdict


def _difference(told: bytes, verdict: dict[str, Any]) -> str:
    try:
        said = orjson.loads(told)
        differing = sorted(k for k in verdict.keys() | said.keys() if said.get(k) != verdict.get(k))
    except (ValueError, AttributeError):
        return "it can't be read"
    if "reducer" in differing:
        return (
            f"it was made by reducer {said.get('reducer')}, this is {verdict['reducer']}: use that version of moorage"
        )
    return f"the journal says otherwise of {', '.join(differing) or 'its form'}"


def _demand_spec(file: IO[bytes], walked: _Walked, examined: Examined) -> None:
    """O6: what was admitted is what the journal was opened for."""
    if manifest.SPEC not in walked.members:
        return
    try:
        found = canonical_hash(orjson.loads(_whole(file, walked.members[manifest.SPEC])))
    except ValueError:
        found = "nothing that can be read"
    if found != examined.findings.state.spec_hash:
        raise NotSound(
            manifest.SPEC, f"it has the hash {found}, the journal admitted {examined.findings.state.spec_hash}"
        )


def _demand_heads(
    file: IO[bytes], walked: _Walked, examined: Examined, trusted: VerifyingKey | None, notes: list[str]
) -> str | None:
    """J6: the heads' signatures hold, and the journal went through the head that status had. Returns the key's id."""
    try:
        key = _key(file, walked, trusted)
        signed = _demand_signature(examined, key, trusted, notes)
    except HeadRefused as error:
        raise NotSound(manifest.JOURNAL, str(error)) from None
    _demand_published(file, walked, examined, key, notes)
    return signed


def _key(file: IO[bytes], walked: _Walked, trusted: VerifyingKey | None) -> VerifyingKey | None:
    if manifest.KEY not in walked.members:
        return trusted
    key = VerifyingKey.read(_whole(file, walked.members[manifest.KEY]))
    if trusted and key.id != trusted.id:
        raise NotSound(manifest.KEY, f"it is key {key.id}, the trusted one is {trusted.id}")
    return trusted or key


def _demand_signature(
    examined: Examined, key: VerifyingKey | None, trusted: VerifyingKey | None, notes: list[str]
) -> str | None:
    """Who gives a key asks for a signature: one that was taken away is no mere note then."""
    header = examined.header
    if key is None or header.signature is None or header.hash is None:
        if trusted:
            raise HeadRefused(f"its head isn't signed, though it should be by key {trusted.id}")
        notes.append("its head isn't signed")
        return None
    key.check(SignedHead(header.run_uid, header.offset, header.hash, header.signature))
    if trusted is None:
        notes.append(f"signed by key {key.id}, which came with the bundle: compare it, or give it with --key")
    return key.id


def _demand_published(
    file: IO[bytes], walked: _Walked, examined: Examined, key: VerifyingKey | None, notes: list[str]
) -> None:
    if manifest.PUBLISHED not in walked.members:
        notes.append("no head of a status came with it")
        return
    try:
        head = _head(orjson.loads(_whole(file, walked.members[manifest.PUBLISHED])))
        if head.signature and key:
            key.check(head)
    except ValueError as error:
        raise NotSound(manifest.PUBLISHED, str(error)) from None
    found = _hash_at(tar.content(file, walked.members[manifest.JOURNAL]), head.offset)
    if head.run_uid != examined.header.run_uid or found != head.hash:
        raise NotSound(manifest.JOURNAL, f"record {head.offset}: the head in status disagrees: it says {head.hash}")


def _head(said: Any) -> SignedHead:
    kinds = {"run_uid": str, "offset": int, "hash": str, "signature": str}
    if not isinstance(said, dict) or {name: type(value) for name, value in said.items()} != kinds:
        raise HeadRefused("it is no head")
    return SignedHead(**said)


def _hash_at(chunks: Iterable[bytes], offset: int) -> str | None:
    """The chain's hash at an offset of a journal that is known to be whole."""
    lines = read_lines(chunks)
    next(lines)
    found = next((line for line in lines if line.number == offset + 2), None)
    return parse_record(found).hash if found else None


def _demand_result(file: IO[bytes], walked: _Walked, examined: Examined, notes: list[str]) -> None:
    """The proposed commit, its tree and its way from the base, computed from their objects."""
    proposal = examined.findings.state.proposal
    if manifest.RESULT not in walked.members:
        if proposal is not None and not proposal.empty:
            if not walked.result_withheld:
                raise NotSound(manifest.RESULT, "the run proposed a change, and it is neither here nor withheld")
            notes.append("the result isn't in it: the journal alone names its commit")
        return
    if proposal is None:
        raise NotSound(manifest.RESULT, "the run proposed nothing")
    content = tar.content(file, walked.members[manifest.RESULT])
    try:
        tree = asyncio.run(tree_in(content, proposal.base, proposal.commit))
    except NotTheResult as error:
        raise NotSound(manifest.RESULT, str(error)) from None
    if tree != proposal.tree:
        raise NotSound(manifest.RESULT, f"its tree is {tree}, the journal says {proposal.tree}")


def _whole(file: IO[bytes], member: Member) -> bytes:
    if member.size > MAX_SMALL:
        raise NotSound(member.name, f"it has more than {MAX_SMALL} bytes")
    return b"".join(tar.content(file, member))


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
