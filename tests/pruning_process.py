"""A process that prunes the sealed journal of `run-1`, for a test to disturb: python -m tests.pruning_process FILE."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from moorage.core.journal.chain import Head
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.pruning import KIND_OF_STATEMENT, Pruned
from moorage.points import arm
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore
from moorage.testing.killpoints import DSN


def tombstone(head: Head) -> Pruned:
    gone = Pruned(
        run_uid="run-1",
        last=head.offset,
        hash=head.hash or "",
        segments=1,
        generation=1,
        sealed_at=1,
        pruned_at=2,
        reason="its retention is over",
        state={},
    )
    return replace(gone, signature=SigningKey.new().say(KIND_OF_STATEMENT, gone.said(), gone.pruned_at))


async def prune(path: Path) -> None:
    dsn = os.environ.get(DSN)
    async with await PostgresStore.open(dsn) if dsn else SqliteStore(path) as store:
        await store.prune(tombstone((await store.get("run-1")).head))


if __name__ == "__main__":
    arm(os.environ)
    asyncio.run(prune(Path(sys.argv[1])))
