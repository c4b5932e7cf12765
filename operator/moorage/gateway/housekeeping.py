"""What no door asks for: journals go whose retention is over, content that no record needs, and mirrors are packed.

Both are safe at any time. A blob is put before the record that names it, so only one older than any append can take is
an orphan; git forgets only what no ref has held for the retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from moorage.core.journal.chain import Broken
from moorage.core.journal.errors import JournalError
from moorage.core.run.sessions import OWN_WORDS
from moorage.gateway.assignment import continues, teller_of
from moorage.gateway.contents import replayable, told_last
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Run
from moorage.gateway.retention import Retention
from moorage.gateway.roll import all_rows
from moorage.store.blobs import dangling
from moorage.store.errors import StoreError
from moorage.store.peers import claimed
from moorage.store.port import Execution
from moorage.store.reading import verify_stored
from moorage.workspace.errors import NotFound, WorkspaceError
from moorage.workspace.mirror import MirrorKey


class Housekeeping:
    """One round now and then, in the background."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._settings = gate.deps.settings
        deps = gate.deps
        self._retention = Retention(gate.ledger, deps.head_key, deps.clock, deps.log, deps.settings)

    async def forever(self) -> None:
        """Until cancelled. What fails is told, and the next round comes."""
        while True:
            await asyncio.sleep(self._settings.housekeeping_ms / 1000)
            with self._told(None):
                await self.once()

    async def once(self) -> None:
        """One round over all tenants and mirrors. One that fails is told, and keeps no other waiting.

        Of several gateways one is at it at a time: what one removes is not missing to another. Mirrors are each one's
        own.
        """
        async with claimed(self._gate.deps.peers, "housekeeping"):
            rows = await self._store()
        with self._told(None):
            await self._forget()
        for key in sorted({_mirror(row) for row in rows}, key=lambda key: (key.tenant, key.workspace)):
            with self._told(key.tenant):
                await self._mirror(key, {row.run_uid for row in rows if row.sealed and _mirror(row) == key})

    async def _store(self) -> list[Execution]:
        """What all gateways share; gives every run."""
        for row in await self._retention.sealed():
            with self._told(row.tenant):
                if await self._retention.due(row):
                    await self._retention.prune(row)
        rows = await all_rows(self._gate.deps.store)
        await self._journals([row for row in rows if not row.sealed])
        for tenant in sorted({row.tenant for row in rows}):
            with self._told(tenant):
                await self._blobs(tenant, [row.run_uid for row in rows if row.tenant == tenant and not row.sealed])
        return rows

    async def _journals(self, rows: Sequence[Execution]) -> None:
        """J5: whole chains, also what lies before a snapshot, which no recovery reads again."""
        broken = 0
        for row in rows:
            with self._told(row.tenant):
                verdict = await verify_stored(self._gate.deps.store, row.run_uid)
                if isinstance(verdict, Broken):
                    broken += 1
                    where = {"run_uid": row.run_uid, "tenant": row.tenant, "offset": verdict.offset}
                    self._gate.deps.log.error("journal_corrupted", **where, why=verdict.why)
        self._gate.deps.metrics.journals_corrupted.set(broken)

    @contextmanager
    def _told(self, tenant: str | None) -> Iterator[None]:
        try:
            yield
        except (StoreError, JournalError, WorkspaceError, OSError) as error:
            self._gate.deps.log.warning("housekeeping_failed", tenant=tenant, reason=type(error).__name__)

    async def _blobs(self, tenant: str, live: Sequence[str]) -> None:
        """Orphans go, and what no recovery can ask for any more; references that lead nowhere are reported: nothing can
        bring them back.
        """
        blobs, log = self._gate.deps.blobs, self._gate.deps.log
        before = self._gate.deps.clock.now_ms() - self._settings.orphan_age_ms
        needed = await self._gate.deps.store.referenced_blobs(tenant)
        asked_for = [await self._replayable(await self._gate.ledger.open(uid)) for uid in live]
        collected = await blobs.collect_orphans(tenant, needed.union(*asked_for), before)
        missing = await dangling(blobs, tenant, needed)
        if collected or missing:
            log.info("blobs_kept_house", tenant=tenant, collected=len(collected), dangling=len(missing))

    async def _replayable(self, run: Run) -> set[str]:
        """With what it began at: that is its own until it has a checkpoint, whatever becomes of who said it."""
        mine = replayable(run.facts, recalled=run.spec.agent.driver == OWN_WORDS)
        teller = await teller_of(self._gate.ledger, run) if continues(run) else None
        told = teller is not None and teller.spec.agent.driver == OWN_WORDS
        return mine | told_last(teller.facts) if teller is not None and told else mine

    async def _forget(self) -> None:
        """A run needs its mirror until it is released. Runs came while all journals were read: rows are read anew."""
        needed = {_mirror(row) for row in await all_rows(self._gate.deps.store) if not row.sealed}
        if removed := await self._gate.refs.forget(needed):
            self._gate.deps.log.info("mirrors_removed", count=removed)

    async def _mirror(self, key: MirrorKey, over: Set[str]) -> None:
        try:
            await self._gate.refs.tidy(key, over)
            await self._gate.deps.mirrors.gc(
                key, self._settings.git_retention_ms // 1000, borrowed=self._settings.mirrors_borrowed
            )
        except NotFound:
            return  # no sandbox of that workspace has ever come


def _mirror(row: Execution) -> MirrorKey:
    return MirrorKey(row.tenant, row.identity.workspace or "")
