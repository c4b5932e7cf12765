"""Reading journals back the same way from every adapter."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from moorage.core.journal.chain import Broken, ChainVerifier, Head, Intact
from moorage.core.journal.lineage import live_spans
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import Record, Stored, decode, refuse_unknown_critical
from moorage.core.recovery.repair import Survey
from moorage.store.port import Execution


class Readable(Protocol):
    """The part of a store that reading needs."""

    async def get(self, run_uid: str) -> Execution:
        """Return the row of a run."""

    async def read(self, run_uid: str, from_offset: int = 0, limit: int = 1000) -> list[Record]:
        """Return records in order."""

    def stored(self, run_uid: str, from_offset: int = 0, *, dropped: bool = False) -> AsyncGenerator[Stored, None]:
        """Stream the stored bytes."""

    async def pruned(self, run_uid: str) -> Pruned | None:
        """Return what stands for a journal that was pruned."""


async def decoded(store: Readable, run_uid: str, from_offset: int = 0) -> AsyncGenerator[Record, None]:
    """Stream the records of a journal, a page of them in memory at a time. Raise UnknownRun, Malformed."""
    async with aclosing(store.stored(run_uid, from_offset)) as entries:
        async for entry in entries:
            yield decode(entry)


async def backwards(store: Readable, row: Execution, size: int) -> AsyncGenerator[list[Record], None]:
    """Pages of at most `size` records, each in order, from the head of that row back to the journal's beginning.

    What repairs left behind isn't looked for. Where one came after the row was read, what follows a page in the store
    lies beyond it, and was given before. Raise UnknownRun, Malformed.
    """
    for first, last in reversed([*live_spans(row.dropped, 0, row.head.offset)]):
        for end in range(last, first - 1, -size):
            begin = max(first, end - size + 1)
            found = await store.read(row.run_uid, begin, end - begin + 1)
            yield [record for record in found if record.seq <= end]


async def verify_stored(store: Readable, run_uid: str) -> Intact | Broken:
    """Verify a stored journal and its head with bounded memory (J5). Raise UnknownRun."""
    head = (await store.get(run_uid)).head
    return await _follow(store, run_uid, head, ChainVerifier(run_uid=run_uid))


async def survey(store: Readable, row: Execution) -> Survey:
    """Look at a whole stored journal, good or bad, a page of it in memory at a time. Raise UnknownRun."""
    looked = Survey(row.run_uid, row.head)
    async with aclosing(store.stored(row.run_uid)) as entries:
        async for entry in entries:
            if looked.judge(entry):
                break
    if looked.end() is not None:
        async with aclosing(store.stored(row.run_uid, looked.good.offset + 1, dropped=True)) as entries:
            async for entry in entries:
                looked.drop(entry)
    return looked


async def recover(store: Readable, run_uid: str) -> Execution:
    """Return the row of a run whose chain is whole and whose records can be understood."""
    execution = await store.get(run_uid)
    verdict = await _follow(store, run_uid, execution.head, ChainVerifier(run_uid=run_uid), refuse_unknown=True)
    if isinstance(verdict, Broken):
        raise verdict.error()
    return execution


async def _follow(
    store: Readable, run_uid: str, head: Head, verifier: ChainVerifier, *, refuse_unknown: bool = False
) -> Intact | Broken:
    """Feed the verifier up to the head; what others append meanwhile is past it."""
    if head.offset < 0:
        return verifier.result(head)
    gone = await store.pruned(run_uid)
    if gone is not None:
        return ChainVerifier(gone.head, run_uid).result(head)
    async with aclosing(store.stored(run_uid)) as entries:
        async for entry in entries:
            if broken := verifier.feed(entry):
                return broken
            if refuse_unknown and verifier.last:
                refuse_unknown_critical(verifier.last)
            if verifier.last and verifier.last.seq == head.offset:
                break
    return verifier.result(head)
