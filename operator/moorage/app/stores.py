"""What a gateway keeps on one volume: the journal, the blobs, the git mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from moorage.clock import Clock
from moorage.store.blobs import FileBlobs
from moorage.store.sqlite import SqliteStore
from moorage.workspace.mirror import Mirrors


@dataclass(frozen=True)
class Stores:
    """Below one folder: `moorage.db`, `blobs/`, `mirrors/`."""

    store: SqliteStore
    blobs: FileBlobs
    mirrors: Mirrors


@asynccontextmanager
async def open_stores(folder: Path, clock: Clock) -> AsyncIterator[Stores]:
    """Open (and where need be create) what lies in `folder`; closed at the end. Raises StoreError, OSError."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with SqliteStore(folder / "moorage.db") as store:
        yield Stores(store, FileBlobs(folder / "blobs", clock.now_ms), Mirrors(folder / "mirrors", now_ms=clock.now_ms))
