"""What a gateway keeps: the journal, the blobs, the git mirrors; all on one volume, or the first two elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moorage.app.keys import head_key
from moorage.clock import Clock
from moorage.core.journal.heads import SigningKey
from moorage.store.blobs import BlobStore, FileBlobs
from moorage.store.bucket import Bucket
from moorage.store.port import DurableExecutionStore
from moorage.store.sqlite import SqliteStore
from moorage.workspace.mirror import Mirrors

if TYPE_CHECKING:
    from moorage.store.postgres import PostgresStore


@dataclass(frozen=True)
class Stores:
    """Below one folder: `moorage.db` and `blobs/` (where they aren't kept elsewhere), `mirrors/`, `head.key`."""

    store: DurableExecutionStore
    blobs: BlobStore
    mirrors: Mirrors
    head_key: SigningKey


@asynccontextmanager
async def open_stores(
    folder: Path, clock: Clock, dsn: str | None = None, bucket: Bucket | None = None
) -> AsyncIterator[Stores]:
    """Open (and where need be create) what lies in `folder`; closed at the end. Raises StoreError, OSError.

    With `dsn`, a PostgreSQL connection string, the journal is kept there instead; with `bucket`, so are the blobs.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with await _open_store(folder, dsn) as store:
        key = await asyncio.to_thread(head_key, folder / "head.key")
        blobs = await _open_blobs(folder / "blobs", clock, bucket)
        yield Stores(store, blobs, Mirrors(folder / "mirrors", now_ms=clock.now_ms), key)


async def _open_store(folder: Path, dsn: str | None) -> PostgresStore | SqliteStore:
    if dsn is None:
        return SqliteStore(folder / "moorage.db")
    from moorage.store.postgres import PostgresStore  # noqa: PLC0415  its driver costs memory where it isn't used

    return await PostgresStore.open(dsn)


async def _open_blobs(folder: Path, clock: Clock, bucket: Bucket | None) -> BlobStore:
    if bucket is None:
        return FileBlobs(folder, clock.now_ms)
    from moorage.store.blobs_s3 import S3Blobs  # noqa: PLC0415  its client costs memory where it isn't used

    blobs = S3Blobs(bucket, clock.now_ms)
    await blobs.check()
    return blobs
