"""P1 at work: where a replay may begin, and when a run's state is worth a snapshot.

Nothing here fails a run. A snapshot that doesn't fit is named in the log and ignored; one that can't be written is
counted, and the next one is tried when the journal has grown again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from moorage.core.journal.canonical import canonical_hash
from moorage.core.journal.chain import EMPTY, Head
from moorage.core.journal.errors import JournalPruned
from moorage.core.journal.heads import HeadRefused, SigningKey
from moorage.core.journal.plain import NotPlain, plain, restored
from moorage.core.journal.pruning import KIND_OF_STATEMENT, Pruned
from moorage.core.journal.record import SCHEMA_VERSION, Stored
from moorage.core.journal.snapshots import Grown, Limits, Misfit, Snapshot, due, stands_at, statement
from moorage.core.run.state import REDUCER_VERSION, RunState
from moorage.gateway.facts import FACTS_VERSION, Facts
from moorage.gateway.settings import GatewaySettings
from moorage.points import Point, reached
from moorage.store.errors import StoreError
from moorage.store.port import DurableExecutionStore, Execution
from moorage.telemetry.metrics import GatewayMetrics, Violation

SAID = "snapshot"


@dataclass(frozen=True)
class Start:
    """Where a replay begins: a state, the facts beside it, and the head that they are of."""

    head: Head = EMPTY
    state: RunState = field(default_factory=RunState)
    facts: Facts = field(default_factory=Facts)


def document(state: RunState, facts: Facts) -> dict[str, Any]:
    """What is kept of a run at an offset, as plain JSON."""
    return {"facts_version": FACTS_VERSION, "state": plain(state), "facts": plain(facts)}


class Snapshots:
    """The snapshots of one gateway."""

    def __init__(
        self,
        store: DurableExecutionStore,
        key: SigningKey,
        metrics: GatewayMetrics,
        log: Any,
        settings: GatewaySettings,
    ) -> None:
        self._store, self._key, self._metrics, self._log = store, key, metrics, log
        self._limits = Limits(settings.snapshot_records, settings.snapshot_bytes)

    async def latest(self, row: Execution) -> Start:
        """The latest state that fits the chain; the beginning where none does. Raise as the store does."""
        found = await self._store.snapshot(row.run_uid, REDUCER_VERSION)
        if found is None:
            return Start()
        fits = self._misfit(found, row) or await self._checked(found)
        if isinstance(fits, Misfit):
            self._metrics.snapshots.labels("ignored").inc()
            self._log.warning("snapshot_ignored", run_uid=row.run_uid, offset=found.source_offset, why=fits.value)
            return Start()
        self._metrics.snapshots.labels("used").inc()
        return fits

    def remembered(self, gone: Pruned) -> RunState:
        """What a run had come to whose journal was pruned.

        Raise JournalPruned where this version can't read that, or another key than this gateway's signed it: whoever
        may write the database can put a tombstone there, and must not make a run out of it.
        """
        try:
            self._key.verifying.check_said(KIND_OF_STATEMENT, gone.said(), gone.signature, of="the tombstone")
            return restored(RunState, gone.state)
        except (HeadRefused, NotPlain):
            raise JournalPruned(gone.run_uid, gone.last) from None

    async def after(self, row: Execution, state: RunState, facts: Facts, grown: Grown, kinds: Iterable[str]) -> Grown:
        """Take one where it is due after records of these kinds; return what the journal has grown by since."""
        if not due(grown, frozenset(kinds), self._limits):
            return grown
        await self.take(row, state, facts)
        return Grown()

    async def take(self, row: Execution, state: RunState, facts: Facts) -> None:
        """Keep this state, unless the store can't."""
        try:
            reached(Point.SNAPSHOT_BEFORE)
            await self._store.put_snapshot(self._of(row, state, facts))
            reached(Point.SNAPSHOT_AFTER)
        except StoreError as error:
            self._metrics.snapshots.labels("failed").inc()
            self._log.warning("snapshot_failed", run_uid=row.run_uid, reason=type(error).__name__)
        else:
            self._metrics.snapshots.labels("taken").inc()

    def _of(self, row: Execution, state: RunState, facts: Facts) -> Snapshot:
        content = document(state, facts)
        taken = Snapshot(
            run_uid=row.run_uid,
            source_offset=state.offset,
            source_hash=state.head,
            schema_version=SCHEMA_VERSION,
            reducer_version=REDUCER_VERSION,
            epoch=state.epoch,
            state=content,
            state_hash=canonical_hash(content),
        )
        return replace(taken, signature=self._key.say(SAID, statement(taken), row.created_at))

    def _misfit(self, found: Snapshot, row: Execution) -> Misfit | None:
        """What can be told without the journal."""
        if found.reducer_version != REDUCER_VERSION or found.state.get("facts_version") != FACTS_VERSION:
            return Misfit.REDUCER_VERSION
        if found.schema_version != SCHEMA_VERSION:
            return Misfit.SCHEMA_VERSION
        if canonical_hash(found.state) != found.state_hash:
            return Misfit.STATE_HASH
        try:
            self._key.verifying.check_said(SAID, statement(found), found.signature, of="the snapshot")
        except HeadRefused:
            return Misfit.SIGNATURE
        if found.source_offset > row.head.offset:  # H3: by our own word there were more records
            self._metrics.violations.labels(Violation.LOST_RECORD).inc(found.source_offset - row.head.offset)
            return Misfit.BEYOND_HEAD
        return None

    async def _checked(self, found: Snapshot) -> Start | Misfit:
        """The state, once the chain stands where it was taken."""
        anchor = await self._anchor(found)
        if not stands_at(found, anchor):
            return Misfit.CHAIN
        try:
            state, facts = restored(RunState, found.state.get("state")), restored(Facts, found.state.get("facts"))
        except NotPlain:
            return Misfit.UNREADABLE
        return Start(Head(found.source_offset, found.source_hash), state, facts)

    async def _anchor(self, found: Snapshot) -> Stored | None:
        async with aclosing(self._store.stored(found.run_uid, found.source_offset)) as entries:
            async for entry in entries:
                return entry
        return None
