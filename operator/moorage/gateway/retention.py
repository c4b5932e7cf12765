"""J7: journals whose retention is over are pruned, whole and sealed ones only, each behind a signed tombstone.

A journal is verified from its first record before it goes: what is broken is told and kept, since a tombstone over it
would say that all had been well. Blobs that nobody else needs are orphans from then on, and housekeeping collects them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moorage.clock import Clock
from moorage.core.journal.errors import JournalCorrupted, JournalPruned
from moorage.core.journal.heads import HeadRefused, SigningKey
from moorage.core.journal.plain import plain
from moorage.core.journal.pruning import KIND_OF_STATEMENT, Pruned
from moorage.core.journal.record import Record
from moorage.gateway.ledger import Ledger, Run
from moorage.gateway.settings import GatewaySettings
from moorage.store.port import Execution

REASON = "its retention is over"


class Retention:
    """What one gateway prunes."""

    def __init__(self, ledger: Ledger, key: SigningKey, clock: Clock, log: Any, settings: GatewaySettings) -> None:
        self._ledger, self._key, self._clock, self._log = ledger, key, clock, log
        self._kept_ms = settings.journal_retention_ms

    async def sealed(self) -> list[Execution]:
        """Journals that will be pruned one day; none where they are kept for ever."""
        return [] if self._kept_ms is None else await self._ledger.store.list_sealed()

    async def due(self, row: Execution) -> bool:
        """Whether a sealed journal has been kept for long enough, or was pruned in part. Raise JournalCorrupted and
        the store's errors.
        """
        if self._kept_ms is None:
            return False
        begun = await self._ledger.store.pruned(row.run_uid) is not None
        return begun or await self._sealed_at(row) <= self._clock.now_ms() - self._kept_ms

    async def prune(self, row: Execution) -> Pruned:
        """Put a tombstone in a journal's place, or remove what is left behind one of ours. Raise JournalCorrupted,
        JournalPruned and the store's errors: then what there is is kept.
        """
        await self._ledger.store.recover(row.run_uid)
        run = await self._ledger.open(row.run_uid)
        if (begun := await self._ledger.store.pruned(row.run_uid)) is not None:
            self._demand_ours(begun)
        gone = begun or self._tombstone(run, await self._last(row))
        await self._ledger.store.prune(gone)
        run.at = None
        self._log.info("journal_pruned", run_uid=row.run_uid, offset=gone.last, sealed_at=gone.sealed_at)
        return gone

    def _demand_ours(self, gone: Pruned) -> None:
        """Whoever may write the database can put a tombstone there, and gets nobody to remove evidence behind it."""
        try:
            self._key.verifying.check_said(KIND_OF_STATEMENT, gone.said(), gone.signature, of="the tombstone")
        except HeadRefused:
            raise JournalPruned(gone.run_uid, gone.last) from None

    def _tombstone(self, run: Run, last: Record) -> Pruned:
        gone = Pruned(
            run_uid=run.uid,
            last=last.seq,
            hash=last.hash,
            segments=run.facts.segment.number,
            generation=run.state.generation,
            sealed_at=last.recorded_at,
            pruned_at=self._clock.now_ms(),
            reason=REASON,
            state=plain(run.state),
        )
        return replace(gone, signature=self._key.say(KIND_OF_STATEMENT, gone.said(), gone.pruned_at))

    async def _sealed_at(self, row: Execution) -> int:
        return (await self._last(row)).recorded_at

    async def _last(self, row: Execution) -> Record:
        found = await self._ledger.store.read(row.run_uid, row.head.offset, 1)
        if not found:
            raise JournalCorrupted(row.head.offset, None, "the record that the head names is missing")
        return found[0]
