"""J6: heads signed as they are asked for. Each is signed once: views of a run ask for the same one many times."""

from __future__ import annotations

from collections import OrderedDict

from moorage.core.journal.errors import JournalCorrupted
from moorage.core.journal.heads import SignedHead, SigningKey
from moorage.store.port import DurableExecutionStore

KEPT = 1024  # runs whose last signature stays in memory


class Heads:
    """The signatures of one gateway."""

    def __init__(self, store: DurableExecutionStore, key: SigningKey) -> None:
        self._store, self._key = store, key
        self._kept: OrderedDict[str, SignedHead] = OrderedDict()

    async def signed(self, run_uid: str, offset: int, digest: str) -> SignedHead | None:
        """The signed head of a journal that ends, or ended, there; None for an empty one. Raise as the store does."""
        if offset < 0:
            return None
        found = self._kept.get(run_uid)
        if found is None or (found.offset, found.hash) != (offset, digest):
            at = await self._time_of(run_uid, offset)
            found = self._kept[run_uid] = self._key.sign(run_uid, offset, digest, at)
        self._kept.move_to_end(run_uid)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found

    async def _time_of(self, run_uid: str, offset: int) -> int:
        """When the record there was made (ms); of a pruned journal its tombstone knows."""
        for record in await self._store.read(run_uid, offset, 1):
            return record.recorded_at
        gone = await self._store.pruned(run_uid)
        if gone is None:
            raise JournalCorrupted(offset, None, "the journal's last record is missing")
        return gone.sealed_at
