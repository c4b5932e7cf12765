"""What every store tells of its runs beside their records: status, lists, chain, pods, snapshots, sessions (J11)."""

from __future__ import annotations

import asyncio

import pytest
from tests.store_script import admitted, draft, new, refused

from moorage.core.journal.chain import Intact, verify
from moorage.core.journal.record import (
    RecordType,
    Stored,
)
from moorage.core.journal.snapshots import Snapshot
from moorage.store.errors import (
    Fenced,
    OffsetConflict,
    PodConflict,
    RunSealed,
    SnapshotRefused,
    UnknownSession,
    VersionConflict,
)
from moorage.store.port import (
    DurableExecutionStore,
    Execution,
    ExecutionStatus,
    Pod,
    Session,
)
from moorage.store.reading import verify_stored


@pytest.mark.rule("S4")
async def test_a_status_needs_the_version_that_was_read(store: DurableExecutionStore) -> None:
    row = await admitted(store)
    paused = await store.update_status("run-1", ExecutionStatus.PAUSED, row.version)
    assert (paused.status, paused.version) == ("PAUSED", row.version + 1)
    error = await refused(VersionConflict, store.update_status("run-1", ExecutionStatus.COMPLETED, row.version), store)
    assert isinstance(error, VersionConflict)
    assert (error.expected, error.current) == (row.version, paused.version)
    await refused(VersionConflict, store.update_status("run-1", ExecutionStatus.PAUSED, paused.version + 1), store)
    assert (await store.update_status("run-1", ExecutionStatus.PAUSED, paused.version)) == paused


@pytest.mark.rule("S4")
async def test_of_many_that_read_the_same_version_one_writes(store: DurableExecutionStore) -> None:
    row = await admitted(store)
    statuses = [ExecutionStatus.PAUSED, ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED]
    calls = [store.update_status("run-1", status, row.version) for status in statuses]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(r, Execution) for r in results) == 1
    assert sum(isinstance(r, VersionConflict) for r in results) == 3


async def test_a_status_can_come_with_its_record(store: DurableExecutionStore) -> None:
    row = await admitted(store)
    ended = draft("end", type=RecordType.RUN_SUCCEEDED)
    result = await store.append("run-1", 1, [ended], status=ExecutionStatus.COMPLETED)
    assert (result.execution.status, result.execution.version) == ("COMPLETED", row.version + 1)
    assert await store.list_pending() == []


@pytest.mark.rule("R7")
async def test_pending_runs_are_found(store: DurableExecutionStore) -> None:
    for n, status in enumerate(ExecutionStatus):
        row = await admitted(store, f"run-{n}", tenant="team-a" if n % 2 else "team-b", created_at=100 - n)
        await store.update_status(f"run-{n}", status, row.version)
    pending = await store.list_pending()
    assert [row.status for row in pending] == ["RECOVERING", "PAUSED", "RUNNING"]
    assert [row.run_uid for row in await store.list_pending("team-a")] == ["run-1"]
    assert await store.list_pending("team-c") == []
    await store.delete("run-1", at=1, reason="gone")
    assert await store.list_pending("team-a") == []


@pytest.mark.rule("J7")
async def test_delete_seals_behind_a_tombstone(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=2)
    await store.append("run-1", 2, [draft("a")])
    row = await store.delete("run-1", at=5000, reason="AgentRun deleted", actor="alice")
    assert row.sealed
    records = await store.read("run-1")
    assert [r.type for r in records] == ["AGENT_OUTPUT", "TOMBSTONE"]
    assert (records[1].payload, records[1].actor, records[1].epoch) == ({"reason": "AgentRun deleted"}, "alice", 2)
    assert await store.delete("run-1", at=6000, reason="again") == row
    for call in [
        store.append("run-1", 2, [draft("b")]),
        store.append("run-1", None, [draft("a")]),
        store.raise_fence("run-1", 3),
        store.register_pod(Pod(pod_uid="p", run_uid="run-1", epoch=2, role="runner", pod_name="p")),
    ]:
        await refused(RunSealed, call, store)
    assert (await store.recover("run-1")) == row


@pytest.mark.rule("J4", "J5")
async def test_the_stored_chain_is_whole_over_attempts(store: DurableExecutionStore) -> None:
    await admitted(store)
    for epoch in range(1, 4):
        await store.raise_fence("run-1", epoch, [draft(f"epoch-{epoch}")])
        for n in range(120):
            await store.append("run-1", epoch, [draft(f"{epoch}.{n}.{k}") for k in range(2)])
    head = (await store.get("run-1")).head
    entries: list[Stored] = [entry async for entry in store.stored("run-1")]
    assert len(entries) == 723
    assert verify(entries, expected=head) == Intact(722, head.hash)
    assert await verify_stored(store, "run-1") == Intact(722, head.hash)
    assert (await store.recover("run-1")).head == head
    assert [entry async for entry in store.stored("run-1", 700)] == entries[700:]
    assert [entry async for entry in store.stored("run-1", 723)] == []


async def test_an_empty_journal_is_intact(store: DurableExecutionStore) -> None:
    await store.persist(new())
    assert await verify_stored(store, "run-1") == Intact(-1, None)
    assert await store.recover("run-1") == await store.get("run-1")
    assert (await store.append("run-1", None, [])).hash == ""


async def test_reading_is_by_offset_and_limit(store: DurableExecutionStore) -> None:
    await admitted(store)
    await store.append("run-1", 1, [draft(f"r{n}") for n in range(10)])
    assert [r.seq for r in await store.read("run-1", 3, 4)] == [3, 4, 5, 6]
    assert [r.seq for r in await store.read("run-1", 8)] == [8, 9]
    assert await store.read("run-1", 10) == []


async def test_verifying_isnt_disturbed_by_appends_meanwhile(store: DurableExecutionStore) -> None:
    await admitted(store)
    await store.append("run-1", 1, [draft(f"r{n}") for n in range(600)])

    async def write() -> None:
        for n in range(600, 620):
            await store.append("run-1", 1, [draft(f"r{n}")])
            await asyncio.sleep(0)

    verdict, _ = await asyncio.gather(verify_stored(store, "run-1"), write())
    assert isinstance(verdict, Intact)


@pytest.mark.rule("I3")
async def test_runs_and_tenants_are_apart(store: DurableExecutionStore) -> None:
    await admitted(store, "run-1", tenant="team-a")
    await admitted(store, "run-2", tenant="team-b", epoch=7)
    await store.append("run-1", 1, [draft("same-id", {"of": 1})])
    await store.append("run-2", 7, [draft("same-id", {"of": 2})])
    assert [r.payload for r in await store.read("run-1")] == [{"of": 1}]
    assert [r.payload for r in await store.read("run-2")] == [{"of": 2}]
    assert (await store.read("run-1"))[0].hash != (await store.read("run-2"))[0].hash


async def test_changes_wake_readers_once_per_run_and_in_order(store: DurableExecutionStore) -> None:
    await admitted(store, "run-1")
    await admitted(store, "run-2")
    first = await store.changes()
    assert await store.newest_cursor() == first[-1].cursor
    assert [c.run_uid for c in first] == ["run-1", "run-2"]
    assert (first[0].tenant, first[0].name) == ("team-a", "name-run-1")
    cursor = first[-1].cursor
    assert await store.changes(cursor) == []
    for n in range(3):
        await store.append("run-1", 1, [draft(f"r{n}")])
    after = await store.changes(cursor)
    assert await store.newest_cursor() == after[-1].cursor > cursor
    assert [c.run_uid for c in after] == ["run-1"]
    assert after[0].cursor > cursor
    assert [c.run_uid for c in await store.changes(0)] == ["run-2", "run-1"]
    assert [c.run_uid for c in await store.changes(0, limit=1)] == ["run-2"]
    row = await store.get("run-2")
    await store.append("run-1", 1, [draft("r0")])
    assert await store.changes(after[0].cursor) == []
    await store.update_status("run-2", ExecutionStatus.PAUSED, row.version)
    await store.delete("run-1", at=1, reason="gone")
    assert [c.run_uid for c in await store.changes(after[0].cursor)] == ["run-2", "run-1"]


@pytest.mark.rule("F2")
async def test_a_pod_stands_for_one_run_epoch_and_role(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=2)
    pod = Pod(pod_uid="uid-1", run_uid="run-1", epoch=2, role="verifier", pod_name="fix-abc", commit="c" * 40)
    assert await store.find_pod("uid-1") is None
    assert await store.register_pod(pod) == pod
    assert await store.register_pod(pod) == pod
    assert await store.find_pod("uid-1") == pod
    other = Pod(pod_uid="uid-1", run_uid="run-1", epoch=2, role="runner", pod_name="fix-abc")
    await refused(PodConflict, store.register_pod(other), store)
    await store.raise_fence("run-1", 3)
    assert await store.register_pod(pod) == pod
    late = Pod(pod_uid="uid-2", run_uid="run-1", epoch=2, role="runner", pod_name="fix-def")
    await refused(Fenced, store.register_pod(late), store)


@pytest.mark.rule("P1")
async def test_a_snapshot_belongs_to_a_place_in_the_journal(store: DurableExecutionStore) -> None:
    await admitted(store)
    result = await store.append("run-1", 1, [draft("a"), draft("b")])

    def at(offset: int, digest: str, reducer: int = 1) -> Snapshot:
        return Snapshot(
            run_uid="run-1",
            source_offset=offset,
            source_hash=digest,
            schema_version=1,
            reducer_version=reducer,
            epoch=1,
            state={"phase": "Running", "at": offset},
            state_hash="h",
        )

    assert await store.snapshot("run-1", 1) is None
    first, second = (at(r.seq, r.hash) for r in result.records)
    await store.put_snapshot(first)
    await store.put_snapshot(second)
    assert await store.snapshot("run-1", 1) == second
    assert await store.snapshot("run-1", 2) is None
    await refused(SnapshotRefused, store.put_snapshot(at(1, first.source_hash)), store)
    await refused(SnapshotRefused, store.put_snapshot(at(2, second.source_hash)), store)


@pytest.mark.rule("O7")
async def test_a_session_outlives_its_runs(store: DurableExecutionStore) -> None:
    session = Session(tenant="team-a", session_id="s-1", created_at=10, active_at=10, budget={"tokens": 5},
                      idle_ttl_ms=60_000, lineage=("run-1",))  # fmt: skip
    assert await store.open_session(session) == session
    assert await store.open_session(Session(tenant="team-a", session_id="s-1", created_at=99, active_at=99)) == session
    assert await store.get_session("team-a", "s-1") == session
    with pytest.raises(UnknownSession):
        await store.get_session("team-b", "s-1")
    with pytest.raises(UnknownSession):
        await store.update_session(Session(tenant="team-b", session_id="s-1", created_at=1, active_at=1), 1)
    later = Session(tenant="team-a", session_id="s-1", created_at=0, active_at=20, lineage=("run-1", "run-2"))
    updated = await store.update_session(later, 1)
    assert (updated.version, updated.created_at, updated.lineage) == (2, 10, ("run-1", "run-2"))
    with pytest.raises(VersionConflict):
        await store.update_session(later, 1)
    assert await store.get_session("team-a", "s-1") == updated


@pytest.mark.rule("O7", "R7")
async def test_sessions_without_an_end_are_found(store: DurableExecutionStore) -> None:
    for n, tenant in enumerate(["a", "b", "a"]):
        await store.open_session(Session(tenant=tenant, session_id=f"s-{n}", created_at=n, active_at=100 + n))
    ended = Session(tenant="a", session_id="s-0", created_at=0, active_at=100, state="ended", end={"reason": "Done"})
    await store.update_session(ended, 1)
    assert [s.session_id for s in await store.list_open_sessions()] == ["s-1", "s-2"]
    assert [s.session_id for s in await store.list_open_sessions("a")] == ["s-2"]
    assert [s.session_id for s in await store.list_open_sessions(active_since=102)] == ["s-2"]
    assert (await store.get_session("a", "s-0")).end == {"reason": "Done"}


@pytest.mark.rule("J2", "J3")
async def test_many_writers_of_one_run_leave_no_gap(store: DurableExecutionStore) -> None:
    await admitted(store)
    calls = [store.append("run-1", 1, [draft(f"w{n % 25}")]) for n in range(50)]
    results = await asyncio.gather(*calls)
    records = await store.read("run-1")
    assert [r.seq for r in records] == list(range(25))
    assert sum(len(r.appended) for r in results) == 25
    assert isinstance(await verify_stored(store, "run-1"), Intact)


@pytest.mark.rule("J3")
async def test_of_many_writers_at_one_offset_one_wins(store: DurableExecutionStore) -> None:
    await admitted(store)
    calls = [store.append("run-1", 1, [draft(f"w{n}")], -1) for n in range(8)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(r, OffsetConflict) for r in results) == 7
    assert len(await store.read("run-1")) == 1
