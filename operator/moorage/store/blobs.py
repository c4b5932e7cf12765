"""J8: content beside the journal, named by its SHA-256, apart for each tenant, checked whenever it is read.

Order makes it safe: the blob is durable first, then the record that names it. A crash between the two leaves an orphan,
which is collected once it is old enough that no append can still be on its way; the other way round can't happen.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, Protocol, TypeVar

import orjson

from moorage.core.journal.canonical import canonical
from moorage.core.journal.chain import MAX_INLINE
from moorage.core.journal.record import BlobRef, Draft, Privacy, Record, Retention
from moorage.points import Point, reached
from moorage.store.disk import sync_folder
from moorage.store.errors import BlobCorrupted, BlobMissing, StoreFull, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")
Now = Callable[[], int]
"""Returns milliseconds since the epoch: a blob's age decides only whether an orphan is collected yet."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SAFE_TENANT = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}$")
_TEMPORARY = ".tmp-"
_PIECE = 1 << 20
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class BlobStore(Protocol):
    """Where content is kept. Tenants never see each other's, not even that it is there."""

    async def put(
        self,
        tenant: str,
        content: bytes,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """Make content durable and return its reference; the same content again is the same blob, and young again."""

    async def get(self, tenant: str, ref: BlobRef) -> bytes:
        """Return content whose hash was checked. Raise BlobMissing or BlobCorrupted."""

    async def put_file(
        self,
        tenant: str,
        path: Path,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """Put what a file holds, a piece at a time: it may be larger than memory. Nobody may write to it meanwhile."""

    async def get_file(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """Write content to a file, a piece at a time. Raise as `get` does: then the file isn't there."""

    async def delete(self, tenant: str, sha256: str) -> bool:
        """Erase content; return whether it was there."""

    async def digests(self, tenant: str) -> list[str]:
        """Return the SHA-256 of all content of a tenant, sorted."""

    async def collect_orphans(self, tenant: str, referenced: Collection[str], before: int) -> list[str]:
        """Erase and return what no record needs and was put before that time (ms)."""


async def dangling(blobs: BlobStore, tenant: str, referenced: Iterable[str]) -> list[str]:
    """Return what records need and isn't there: to be reported, since nothing can bring it back (J8)."""
    return sorted(set(referenced) - set(await blobs.digests(tenant)))


async def externalise(draft: Draft, blobs: BlobStore, tenant: str, keep: Collection[str] = ()) -> Draft:
    """Return a draft that can be appended: its payload goes to the blob store where it is too big or erasable (J8).

    `keep` names top-level fields that stay inline as well: those that the reducer reads.
    """
    if draft.payload is None or draft.payload_ref is not None:
        return draft
    content = canonical(draft.payload)
    if len(content) <= MAX_INLINE and draft.retention != Retention.ERASABLE:
        return draft
    ref = await blobs.put(tenant, content, draft.privacy, draft.retention)
    kept = {name: draft.payload[name] for name in keep if name in draft.payload}
    return replace(draft, payload=kept or None, payload_ref=ref)


async def payload_of(record: Record, blobs: BlobStore, tenant: str) -> Mapping[str, Any] | None:
    """What a record says, wherever its payload lies (see `externalise`); None where that was erased, or is damaged."""
    if record.payload_ref is None:
        return record.payload or {}
    try:
        content = orjson.loads(await blobs.get(tenant, record.payload_ref))
    except (BlobMissing, BlobCorrupted):
        return None
    return content if isinstance(content, dict) else {}


@dataclass
class _Held:
    content: bytes
    put_at: int


class MemoryBlobs:
    """BlobStore in memory."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._held: dict[tuple[str, str], _Held] = {}

    async def put(
        self,
        tenant: str,
        content: bytes,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """See the port."""
        ref = reference(content, privacy, retention)
        self._held[tenant, ref.sha256] = _Held(bytes(content), self._now())
        return ref

    async def get(self, tenant: str, ref: BlobRef) -> bytes:
        """See the port."""
        held = self._held.get((tenant, ref.sha256))
        return _checked(tenant, ref, held.content if held else None)

    async def put_file(
        self,
        tenant: str,
        path: Path,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """See the port."""
        return await self.put(tenant, await asyncio.to_thread(path.read_bytes), privacy, retention)

    async def get_file(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """See the port."""
        content = await self.get(tenant, ref)
        await asyncio.to_thread(path.write_bytes, content)

    async def delete(self, tenant: str, sha256: str) -> bool:
        """See the port."""
        return self._held.pop((tenant, sha256), None) is not None

    async def digests(self, tenant: str) -> list[str]:
        """See the port."""
        return sorted(sha for owner, sha in self._held if owner == tenant)

    async def collect_orphans(self, tenant: str, referenced: Collection[str], before: int) -> list[str]:
        """See the port."""
        orphans = [
            sha
            for sha in await self.digests(tenant)
            if sha not in referenced and self._held[tenant, sha].put_at < before
        ]
        for sha in orphans:
            del self._held[tenant, sha]
        return orphans


class FileBlobs:
    """BlobStore in a folder: `<root>/<tenant>/<first two digits>/<sha256>`, for one process.

    A blob is written beside its place, synced, renamed, and its folder synced: it is whole or not there. Disk work is
    done on threads, since content may be large. A file's modification time says when it was last put.
    """

    def __init__(self, root: Path, now: Now) -> None:
        self._root, self._now = root, now
        self._aging = threading.Lock()  # a put makes young what a collection is about to erase

    async def put(
        self,
        tenant: str,
        content: bytes,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """See the port."""
        ref = reference(content, privacy, retention)
        await self._on_thread(self._put, self._path(tenant, ref.sha256), content)
        return ref

    async def get(self, tenant: str, ref: BlobRef) -> bytes:
        """See the port."""
        return _checked(tenant, ref, await self._on_thread(_read, self._path(tenant, ref.sha256), ref.size))

    async def put_file(
        self,
        tenant: str,
        path: Path,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """See the port."""
        ref = await self._on_thread(reference, path, privacy, retention)
        await self._on_thread(self._put, self._path(tenant, ref.sha256), path)
        return ref

    async def get_file(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """See the port."""
        await self._on_thread(_copy, tenant, ref, self._path(tenant, ref.sha256), path)

    async def delete(self, tenant: str, sha256: str) -> bool:
        """See the port."""
        return await self._on_thread(_unlink, self._path(tenant, sha256))

    async def digests(self, tenant: str) -> list[str]:
        """See the port."""
        return await self._on_thread(self._list, tenant)

    async def collect_orphans(self, tenant: str, referenced: Collection[str], before: int) -> list[str]:
        """See the port. Files that a crash left half written go as well."""
        return await self._on_thread(self._collect, tenant, referenced, before)

    async def _on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except OSError as e:
            if e.errno in _NO_SPACE:
                raise StoreFull(str(self._root)) from e
            raise StoreUnavailable(
                f"{self._root} can't be used ({e}): check the disk's space, rights and health"
            ) from e

    def _put(self, path: Path, source: bytes | Path) -> None:
        reached(Point.BLOB_BEFORE)
        if not (self._refresh(path) and reference(path).sha256 == path.name):
            self._write(path, source)
        sync_folder(path.parent)
        reached(Point.BLOB_AFTER)

    def _refresh(self, path: Path) -> bool:
        with self._aging:
            try:
                os.utime(path, ns=self._times())
            except FileNotFoundError:
                return False
        return True

    def _write(self, path: Path, source: bytes | Path) -> None:
        _make_folders(path.parent)
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in _pieces(source):
                    file.write(piece)
                file.flush()
                os.utime(descriptor, ns=self._times())
                os.fsync(descriptor)
            reached(Point.BLOB_WITHIN)
            Path(temporary).replace(path)
        except BaseException:
            _unlink(Path(temporary))
            raise

    def _list(self, tenant: str) -> list[str]:
        return sorted(path.name for path in self._files(tenant) if _DIGEST.fullmatch(path.name))

    def _collect(self, tenant: str, referenced: Collection[str], before: int) -> list[str]:
        unreferenced = [path for path in self._files(tenant) if path.name not in referenced]
        erased = [path.name for path in unreferenced if self._erase_if_old(path, before)]
        return sorted(name for name in erased if _DIGEST.fullmatch(name))

    def _erase_if_old(self, path: Path, before: int) -> bool:
        with self._aging:
            try:
                old = path.stat().st_mtime_ns < before * 1_000_000
            except FileNotFoundError:
                return False
            return old and _unlink(path)

    def _files(self, tenant: str) -> Iterator[Path]:
        return (self._root / folder_of(tenant)).glob("??/*")

    def _path(self, tenant: str, sha256: str) -> Path:
        return self._root / folder_of(tenant) / demand_digest(tenant, sha256)[:2] / sha256

    def _times(self) -> tuple[int, int]:
        nanoseconds = self._now() * 1_000_000
        return nanoseconds, nanoseconds


def reference(source: bytes | Path, privacy: str = Privacy.CONTENT, retention: str = Retention.JOURNAL) -> BlobRef:
    """What content is known by: its own, or that of a file."""
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(source):
        digest.update(piece)
        size += len(piece)
    return BlobRef(digest.hexdigest(), size, str(privacy), str(retention))


def demand_digest(tenant: str, sha256: str) -> str:
    """The name, where it can be content's. Raise BlobMissing."""
    if not _DIGEST.fullmatch(sha256):
        raise BlobMissing(tenant, sha256)
    return sha256


class Arriving:
    """Content that comes in pieces, against what its reference says."""

    def __init__(self, ref: BlobRef) -> None:
        self._ref, self._size, self._digest = ref, 0, hashlib.sha256()

    def fits(self, piece: bytes) -> bool:
        """Whether the content may still be what the reference says: damaged content can't fill memory or disk."""
        self._digest.update(piece)
        self._size += len(piece)
        return self._size <= self._ref.size

    @property
    def whole(self) -> bool:
        """This is what the reference says."""
        return self._size == self._ref.size and self._digest.hexdigest() == self._ref.sha256


def _pieces(source: bytes | Path) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


@contextmanager
def arriving_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be written; where that fails there is none."""
    try:
        with path.open("wb") as file:
            yield file
    except BaseException:
        _unlink(path)
        raise


def _copy(tenant: str, ref: BlobRef, source: Path, target: Path) -> None:
    """Copy a blob's file. Raise BlobMissing or BlobCorrupted, and leave nothing."""
    if not source.exists():
        raise BlobMissing(tenant, ref.sha256)
    arriving = Arriving(ref)
    with arriving_file(target) as file:
        for piece in _pieces(source):
            if not arriving.fits(piece):
                break
            file.write(piece)
        if not arriving.whole:
            raise BlobCorrupted(tenant, ref.sha256)


def _checked(tenant: str, ref: BlobRef, content: bytes | None) -> bytes:
    """Content that is what the reference says. Raise BlobMissing or BlobCorrupted."""
    if content is None:
        raise BlobMissing(tenant, ref.sha256)
    arriving = Arriving(ref)
    if not (arriving.fits(content) and arriving.whole):
        raise BlobCorrupted(tenant, ref.sha256)
    return content


def folder_of(tenant: str) -> str:
    """A namespace as it is; anything else hashed, under a name that no namespace can have."""
    return tenant if _SAFE_TENANT.match(tenant) else "_" + hashlib.sha256(tenant.encode()).hexdigest()[:40]


def _read(path: Path, size: int) -> bytes | None:
    """At most one byte more than expected, so that a damaged file can't fill the memory."""
    try:
        with path.open("rb") as file:
            return file.read(size + 1)
    except FileNotFoundError:
        return None


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _make_folders(folder: Path) -> None:
    """Make a folder and those above it, durably, outermost first."""
    if folder.is_dir():
        return
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_folder(path.parent)
