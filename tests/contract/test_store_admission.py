"""A run and the first records of its journal in one step, in every store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from moorage.core.journal.errors import InvalidDraft, JournalError
from moorage.core.journal.record import Assurance, Draft, Record, RecordType, RunIdentity, Source
from moorage.store.errors import Fenced, SpecConflict, UnknownRun
from moorage.store.port import DurableExecutionStore, NewExecution
from moorage.store.reading import verify_stored

IDENTITY = RunIdentity(tenant="team-a", run_uid="run-1", session_id="s", workspace="web")
NEW = NewExecution(identity=IDENTITY, name="fix", spec_hash="s1", spec={"goal": "ü"}, created_at=1000)


def fact(kind: RecordType, **payload: Any) -> Draft:
    return Draft(
        record_id=kind.value,
        type=kind,
        recorded_at=2000,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload=payload,
    )


FIRST = [fact(RecordType.RUN_ADMITTED, spec_hash="s1"), fact(RecordType.EPOCH_RAISED, epoch=1)]


async def gone(store: DurableExecutionStore) -> bool:
    try:
        await store.get("run-1")
    except UnknownRun:
        return not await store.changes()
    return False


@pytest.mark.rule("O6", "F2")
async def test_a_run_its_first_records_and_its_fence_are_one_step(store: DurableExecutionStore) -> None:
    result = await store.admit(NEW, 1, FIRST)
    assert [(r.seq, r.epoch, r.type) for r in result.appended] == [(0, 1, "RUN_ADMITTED"), (1, 1, "EPOCH_RAISED")]
    assert await store.get("run-1") == result.execution
    assert (result.execution.fence_epoch, result.execution.created_at) == (1, 1000)
    assert await store.spec("run-1") == {"goal": "ü"}
    await store.append("run-1", 1, [fact(RecordType.AGENT_OUTPUT)], 1)
    assert (await verify_stored(store, "run-1")).offset == 2
    assert [c.run_uid for c in await store.changes()] == ["run-1"]


async def test_one_without_a_fence_belongs_to_no_attempt(store: DurableExecutionStore) -> None:
    result = await store.admit(NEW, None, FIRST[:1])
    assert (result.records[0].epoch, result.execution.fence_epoch) == (0, 0)


@pytest.mark.rule("O6")
async def test_admitting_again_changes_nothing_and_another_spec_is_refused(store: DurableExecutionStore) -> None:
    first = await store.admit(NEW, 1, FIRST)
    await store.raise_fence("run-1", 2)
    cursor = await store.changes()
    again = await store.admit(NEW, 1, [*FIRST, fact(RecordType.AGENT_OUTPUT)])
    assert (again.records, again.execution.fence_epoch, again.execution.head) == ((), 2, first.execution.head)
    with pytest.raises(SpecConflict):
        await store.admit(replace(NEW, spec_hash="s2"), 3, FIRST)
    assert (await store.changes(), await store.get("run-1")) == (cursor, again.execution)


async def test_a_row_without_records_gets_them(store: DurableExecutionStore) -> None:
    """As one was left that died between the two, when they were two."""
    await store.persist(NEW)
    result = await store.admit(NEW, 1, FIRST)
    assert [r.type for r in result.appended] == ["RUN_ADMITTED", "EPOCH_RAISED"]
    assert await store.read("run-1") == list(result.records)


async def test_a_row_that_is_further_on_refuses_an_older_fence(store: DurableExecutionStore) -> None:
    await store.persist(NEW)
    await store.raise_fence("run-1", 3)
    with pytest.raises(Fenced):
        await store.admit(NEW, 1, FIRST)


async def test_what_is_refused_leaves_no_run(store: DurableExecutionStore) -> None:
    def refuse(records: Sequence[Record]) -> None:
        raise JournalError("illegal move")

    with pytest.raises(JournalError, match="illegal move"):
        await store.admit(NEW, 1, FIRST, guard=refuse)
    assert await gone(store)
    with pytest.raises(InvalidDraft):
        await store.admit(NEW, 1, [replace(FIRST[0], record_id="")])
    assert await gone(store)
