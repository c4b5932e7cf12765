"""A run and the first records of its journal in one step, in every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from moorage.core.journal.errors import InvalidDraft, JournalError
from moorage.core.journal.record import Assurance, Draft, Record, RecordType, RunIdentity, Source
from moorage.store.errors import Fenced, SpecConflict, UnknownRun, UnknownSession, VersionConflict
from moorage.store.port import DurableExecutionStore, NewExecution, Session
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


# --- sessions ---------------------------------------------------------------------------------------------------------

SESSION = Session(tenant="team-a", session_id="s", created_at=1, active_at=1, lineage=("run-0",))


@pytest.mark.rule("O7", "J3")
async def test_a_run_joins_its_session_in_the_step_that_makes_it_durable(store: DurableExecutionStore) -> None:
    session = await store.open_session(SESSION)
    after = replace(session, lineage=("run-0", "run-1"), budget={"tokens": 7}, state="active", active_at=5)
    row = await store.persist(NEW, after)
    assert (row.run_uid, row.head.offset) == ("run-1", -1)
    kept = await store.get_session("team-a", "s")
    assert (kept.lineage, dict(kept.budget or {}), kept.version) == (("run-0", "run-1"), {"tokens": 7}, 2)
    assert await store.persist(NEW, replace(after, lineage=())) == row, "it is there, and its session stays"
    assert await store.get_session("team-a", "s") == kept
    assert (await store.admit(NEW, 1, FIRST)).appended


@pytest.mark.rule("O7", "J3")
async def test_a_run_whose_session_has_changed_meanwhile_isnt_there(store: DurableExecutionStore) -> None:
    session = await store.open_session(SESSION)
    await store.update_session(replace(session, active_at=9), session.version)
    with pytest.raises(VersionConflict):
        await store.persist(NEW, replace(session, lineage=("run-0", "run-1")))
    with pytest.raises(UnknownSession):
        await store.persist(NEW, replace(session, session_id="another"))
    assert await gone(store)


@pytest.mark.rule("O7", "J3")
async def test_of_runs_that_join_at_once_one_does(store: DurableExecutionStore) -> None:
    session = await store.open_session(SESSION)

    async def join(uid: str) -> bool:
        new = replace(NEW, identity=replace(IDENTITY, run_uid=uid))
        try:
            await store.persist(new, replace(session, lineage=("run-0", uid)))
        except VersionConflict:
            return False
        return True

    uids = [f"run-{number}" for number in range(1, 7)]
    joined = await asyncio.gather(*(join(uid) for uid in uids))
    assert sum(joined) == 1
    taken = uids[joined.index(True)]
    assert (await store.get_session("team-a", "s")).lineage == ("run-0", taken)
    assert [row.run_uid for row in await store.list_pending()] == [taken]
