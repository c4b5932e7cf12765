"""J8 in a bucket: blobs with any server that speaks S3, for as many gateways as there are.

Each put is an object of its own, `<prefix>/<tenant>/<sha256>/<when it was put>`: so a collection names exactly the
objects that it found old, and can't take what another gateway puts at that moment, for which S3 has no lock. A get
looks for the newest. An object appears whole or not at all, and is durable once S3 has answered; a large one goes up
in parts, and parts that a killed gateway left behind are the bucket's lifecycle rule to remove.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from moorage.core.journal.record import BlobRef, Privacy, Retention
from moorage.points import Point, reached
from moorage.store.blobs import Arriving, Now, arriving_file, demand_digest, folder_of, reference
from moorage.store.bucket import Bucket
from moorage.store.errors import (
    AuthorityUnreadable,
    BlobCorrupted,
    BlobMissing,
    BucketMissing,
    BucketRefused,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import BackoffConfig, ClientConfig, RetryConfig, S3Config

PART = 5 << 20
"""Bytes: S3's smallest part. Two of them are held at once for each put and get."""

_OBJECT = re.compile(r"(?P<sha256>[0-9a-f]{64})/(?P<put_at>[0-9]{15})$")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_REFUSED = re.compile(r"status code: 40[13]\b")
_PAGE = 1000
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class _Copy:
    """One put of one content; `key` is its object's, without the prefix."""

    key: str
    sha256: str
    put_at: int
    size: int


class S3Blobs:
    """BlobStore in a bucket, for any number of processes. Raises AuthorityUnreadable."""

    def __init__(self, bucket: Bucket, now: Now) -> None:
        self._bucket, self._now = bucket, now
        self._store = _opened(bucket)

    async def check(self) -> None:
        """Raise BucketMissing, BucketRefused or StoreUnavailable where the bucket can't be used."""
        with self._told():
            await anext(aiter(obstore.list(self._store, chunk_size=1)), None)

    async def put(
        self,
        tenant: str,
        content: bytes,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """See the port."""
        ref = reference(content, privacy, retention)
        await self._put(tenant, ref, content)
        return ref

    async def put_file(
        self,
        tenant: str,
        path: Path,
        privacy: str = Privacy.CONTENT,
        retention: str = Retention.JOURNAL,
    ) -> BlobRef:
        """See the port."""
        ref = await asyncio.to_thread(reference, path, privacy, retention)
        await self._put(tenant, ref, path)
        return ref

    async def get(self, tenant: str, ref: BlobRef) -> bytes:
        """See the port."""
        content = io.BytesIO()
        await self._get(tenant, ref, content)
        return content.getvalue()

    async def get_file(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """See the port."""
        with arriving_file(path) as file:
            await self._get(tenant, ref, file)

    async def delete(self, tenant: str, sha256: str) -> bool:
        """See the port."""
        found = await self._copies(tenant, sha256)
        await self._erase(found)
        return bool(found)

    async def digests(self, tenant: str) -> list[str]:
        """See the port."""
        return sorted({copy.sha256 for copy in await self._copies(tenant)})

    async def collect_orphans(self, tenant: str, referenced: Collection[str], before: int) -> list[str]:
        """See the port. Of what is needed, old copies beside a newer one go as well."""
        found = await self._copies(tenant)
        due = _due(found, referenced, before)
        await self._erase(due)
        return sorted({copy.sha256 for copy in due} - {copy.sha256 for copy in found if copy not in due})

    async def _put(self, tenant: str, ref: BlobRef, source: bytes | Path) -> None:
        key = f"{folder_of(tenant)}/{ref.sha256}/{self._now():015d}"
        reached(Point.BLOB_BEFORE)
        with self._told():
            await obstore.put_async(self._store, key, source, chunk_size=PART, max_concurrency=2)
        reached(Point.BLOB_AFTER)

    async def _get(self, tenant: str, ref: BlobRef, into: BinaryIO) -> None:
        """The newest copy that is what the reference says. One that goes meanwhile has left a newer one, or none."""
        damaged, looks = False, 0
        while not damaged and looks < _LOOKS and (found := await self._copies(tenant, ref.sha256)):
            looks += 1
            for copy in found:
                whole = await self._receive(copy, ref, into)
                if whole:
                    return
                damaged = damaged or whole is False
        raise BlobCorrupted(tenant, ref.sha256) if damaged else BlobMissing(tenant, ref.sha256)

    async def _receive(self, copy: _Copy, ref: BlobRef, into: BinaryIO) -> bool | None:
        """Whether it is what the reference says; None where it is gone."""
        if copy.size != ref.size:
            return False
        into.seek(0)
        into.truncate()
        arriving = Arriving(ref)
        try:
            async with aclosing(self._stream(copy)) as pieces:
                async for piece in pieces:
                    if not arriving.fits(piece):
                        return False
                    await asyncio.to_thread(into.write, piece)
        except FileNotFoundError:
            return None
        return arriving.whole

    async def _stream(self, copy: _Copy) -> AsyncGenerator[bytes, None]:
        with self._told(gone=True):
            answer = await obstore.get_async(self._store, copy.key)
            async for piece in answer.stream(min_chunk_size=PART):
                yield piece

    async def _copies(self, tenant: str, sha256: str | None = None) -> list[_Copy]:
        """What is there of a tenant, or of one content of it; newest first."""
        folder = folder_of(tenant)
        below = f"{folder}/{demand_digest(tenant, sha256)}" if sha256 is not None else folder
        found: list[_Copy] = []
        with self._told():
            async for page in obstore.list(self._store, below, chunk_size=_PAGE):
                found += filter(None, map(_copy, page))
        return sorted(found, key=lambda copy: copy.put_at, reverse=True)

    async def _erase(self, copies: Collection[_Copy]) -> None:
        with self._told():
            await obstore.delete_async(self._store, [copy.key for copy in copies])

    @contextmanager
    def _told(self, *, gone: bool = False) -> Iterator[None]:
        """With `gone`, an object that isn't there stays a FileNotFoundError."""
        try:
            yield
        except (BaseError, OSError) as error:
            trouble = self._trouble(error)
            if gone and isinstance(error, FileNotFoundError) and not isinstance(trouble, BucketMissing):
                raise
            raise trouble from error

    def _trouble(self, error: Exception) -> StoreUnavailable:
        code = found[1] if (found := _CODE.search(str(error))) else None
        name, where = self._bucket.name, self._bucket.where
        if code == "NoSuchBucket":
            return BucketMissing(name, where)
        if _REFUSED.search(str(error)):
            return BucketRefused(name, where, code or "AccessDenied")
        why = code or str(error).partition("\n")[0]
        do = "check store.blobs.s3.endpoint, the network between, and the server's health"
        return StoreUnavailable(f"bucket {name} at {where} can't be used ({why}): {do}")


def _copy(found: ObjectMeta) -> _Copy | None:
    """None for what isn't ours."""
    named = _OBJECT.search(found["path"])
    return _Copy(found["path"], named["sha256"], int(named["put_at"]), found["size"]) if named else None


def _due(found: Sequence[_Copy], referenced: Collection[str], before: int) -> set[_Copy]:
    """The old ones that nothing needs, and of what is needed the old ones beside a newer one. Newest come first."""
    newest = {copy.sha256: copy for copy in reversed(found)}
    return {
        copy
        for copy in found
        if copy.put_at < before and (copy.sha256 not in referenced or copy is not newest[copy.sha256])
    }


def _opened(bucket: Bucket) -> S3Store:
    """Nobody is spoken to yet. What it may refuse of a bucket are the certificates: all else is told by the server."""
    try:
        return S3Store(
            bucket.name,
            prefix=bucket.prefix.strip("/") or None,
            config=_config(bucket),
            client_options=_client(bucket),
            retry_config=_retries(bucket),
        )
    except (BaseError, ValueError) as error:
        if bucket.ca is None:
            raise
        raise AuthorityUnreadable from error


def _config(bucket: Bucket) -> S3Config:
    config: S3Config = {"region": bucket.region, "disable_bulk_delete": True}  # not every server has it
    if bucket.endpoint:
        config["endpoint"] = bucket.endpoint
    if bucket.access_key and bucket.secret_key:
        config |= {"access_key_id": bucket.access_key, "secret_access_key": bucket.secret_key}
    return config


def _client(bucket: Bucket) -> ClientConfig:
    client: ClientConfig = {
        "allow_http": (bucket.endpoint or "").startswith("http://"),
        "connect_timeout": timedelta(seconds=min(5.0, bucket.patience_s)),
        "read_timeout": timedelta(seconds=bucket.patience_s),
        "timeout": timedelta(hours=1),
    }
    if bucket.ca is not None:
        client["root_certificate"] = bucket.ca
    return client


def _retries(bucket: Bucket) -> RetryConfig:
    """5xx and lost connections; a put may be repeated, since it comes to the same object."""
    backoff: BackoffConfig = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2)}
    return {"max_retries": 4, "retry_timeout": timedelta(seconds=bucket.patience_s), "backoff": backoff}
