"""One suite for every adapter of DurableExecutionStore (J11). The adapters are those of conftest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from moorage.core.journal.chain import Head, Intact, verify
from moorage.core.journal.errors import InvalidDraft, JournalError, NotCanonical, PayloadTooLarge
from moorage.core.journal.record import (
    Assurance,
    BlobRef,
    Draft,
    Record,
    RecordType,
    Retention,
    RunIdentity,
    Source,
    Stored,
)
from moorage.core.journal.snapshots import Snapshot
from moorage.store.errors import (
    DuplicateMismatch,
    Fenced,
    OffsetConflict,
    PodConflict,
    RunSealed,
    SnapshotRefused,
    SpecConflict,
    UnknownRun,
    UnknownSession,
    VersionConflict,
)
from moorage.store.port import (
    DurableExecutionStore,
    Execution,
    ExecutionStatus,
    NewExecution,
    Pod,
    Session,
)
from moorage.store.reading import verify_stored


def new(run_uid: str = "run-1", tenant: str = "team-a", spec_hash: str = "s1", created_at: int = 1000) -> NewExecution:
    identity = RunIdentity(tenant=tenant, run_uid=run_uid, session_id=f"session-{run_uid}", workspace="web")
    return NewExecution(
        identity=identity, name=f"name-{run_uid}", spec_hash=spec_hash, spec={"goal": "ü"}, created_at=created_at
    )


def draft(record_id: str, payload: dict[str, Any] | None = None, **more: Any) -> Draft:
    facts = {"type": RecordType.AGENT_OUTPUT, "recorded_at": 2000, "source": Source.RUNNER} | more
    return Draft(record_id=record_id, assurance=Assurance.REPORTED, payload=payload or {"n": record_id}, **facts)


async def admitted(store: DurableExecutionStore, run_uid: str = "run-1", epoch: int = 1, **more: Any) -> Execution:
    await store.persist(new(run_uid, **more))
    return (await store.raise_fence(run_uid, epoch)).execution


async def refused(error: type[Exception], call: Awaitable[object], store: DurableExecutionStore) -> Exception:
    """The call raises, and the store is as it was."""
    before = await everything(store)
    with pytest.raises(error) as caught:
        await call
    assert await everything(store) == before
    return caught.value


async def everything(store: DurableExecutionStore) -> list[object]:
    rows = []
    for change in await store.changes():
        rows += [change, await store.get(change.run_uid), await store.read(change.run_uid)]
    return rows


async def test_a_persisted_run_is_there_with_its_spec(store: DurableExecutionStore) -> None:
    row = await store.persist(new())
    assert (row.status, row.version, row.fence_epoch, row.head, row.sealed) == ("RUNNING", 1, 0, Head(), False)
    assert await store.get("run-1") == row
    assert await store.spec("run-1") == {"goal": "ü"}
    assert row.identity == new().identity


async def test_persisting_again_is_one_run_and_another_spec_is_refused(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=3)
    assert (await store.persist(new())).fence_epoch == 3
    await refused(SpecConflict, store.persist(new(spec_hash="s2")), store)


async def test_nothing_is_known_of_an_unknown_run(store: DurableExecutionStore) -> None:
    snapshot = Snapshot(run_uid="x", source_offset=0, source_hash="h", schema_version=1, reducer_version=1, epoch=1,
                        state={}, state_hash="s")  # fmt: skip
    pod = Pod(pod_uid="p", run_uid="x", epoch=1, role="runner", pod_name="p")
    calls = [
        store.get("x"),
        store.spec("x"),
        store.recover("x"),
        store.append("x", 1, [draft("a")]),
        store.raise_fence("x", 1),
        store.update_status("x", ExecutionStatus.PAUSED, 1),
        store.read("x"),
        store.put_snapshot(snapshot),
        store.snapshot("x", 1),
        store.delete("x", at=1, reason="gone"),
        store.register_pod(pod),
    ]
    for call in calls:
        await refused(UnknownRun, call, store)
    with pytest.raises(UnknownRun):
        _ = [entry async for entry in store.stored("x")]
    assert await store.find_pod("p") is None


@pytest.mark.rule("J1", "J2", "O3")
async def test_a_record_has_its_envelope_and_a_gapless_place(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=4)
    facts = {
        "attempt": 2, "turn": 3, "step": 4, "request_id": "rq", "tool_call_id": "tc", "effect_id": "ef",
        "command_id": "co",
        "causation_id": "ca", "correlation_id": "cr", "trace_id": "tr", "surface_id": "su", "actor": "ac",
        "workspace_revision": "wr", "privacy": "content", "retention": "journal",
        "payload_ref": BlobRef("ab" * 32, 7, "content", "erasable"), "attachments": {"request": BlobRef("cd" * 32, 9)},
    }  # fmt: skip
    result = await store.append("run-1", 4, [draft("a", **facts), draft("b")])
    record = result.records[0]
    assert {name: getattr(record, name) for name in facts} == facts
    assert (record.tenant, record.run_uid, record.session_id, record.workspace) == (
        "team-a", "run-1", "session-run-1", "web")  # fmt: skip
    assert (record.source, record.assurance, record.type) == ("runner", "reported", "AGENT_OUTPUT")
    assert (record.epoch, record.schema_version, record.recorded_at) == (4, 1, 2000)
    await refused(OffsetConflict, store.append("run-1", 4, [draft("c")], 0), store)
    await store.append("run-1", 4, [draft("c")])
    records = await store.read("run-1")
    assert [r.seq for r in records] == [0, 1, 2]
    assert records[0] == record


@pytest.mark.rule("J2")
async def test_logical_time_follows_causes_in_other_journals(store: DurableExecutionStore) -> None:
    await admitted(store)
    result = await store.append("run-1", 1, [draft("a"), draft("b", caused_at=41), draft("c", caused_at=7)])
    assert [r.logical_time for r in result.records] == [1, 42, 43]
    assert (await store.get("run-1")).head.logical_time == 43


@pytest.mark.rule("J3")
async def test_an_append_is_all_or_nothing(store: DurableExecutionStore) -> None:
    await admitted(store)
    bad = draft("bad", {"x": float("nan")})
    await refused(NotCanonical, store.append("run-1", 1, [draft("a"), bad, draft("b")]), store)
    result = await store.append("run-1", 1, [draft("a"), draft("b")], -1)
    assert (result.offset, result.hash) == (1, result.records[1].hash)
    await refused(DuplicateMismatch, store.append("run-1", 1, [draft("c"), draft("a", {"n": "other"})]), store)


@pytest.mark.rule("J3")
@pytest.mark.parametrize("expected", [-1, 0, 2, 99])
async def test_a_wrong_offset_is_refused_with_the_right_one(store: DurableExecutionStore, expected: int) -> None:
    await admitted(store)
    await store.append("run-1", 1, [draft("a"), draft("b")])
    error = await refused(OffsetConflict, store.append("run-1", 1, [draft("c")], expected), store)
    assert isinstance(error, OffsetConflict)
    assert (error.expected, error.current) == (expected, 1)
    assert (await store.append("run-1", 1, [draft("c")], error.current)).offset == 2


@pytest.mark.rule("J3", "I2", "F3")
async def test_only_the_owners_epoch_commits(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=2)
    await store.append("run-1", 2, [draft("a")])
    await store.raise_fence("run-1", 3)
    error = await refused(Fenced, store.append("run-1", 2, [draft("b")]), store)
    assert isinstance(error, Fenced)
    assert (error.given, error.current) == (2, 3)
    await refused(Fenced, store.append("run-1", 2, [draft("a")]), store)
    await refused(Fenced, store.append("run-1", 4, [draft("b")]), store)
    assert (await store.append("run-1", 3, [draft("b")])).records[0].epoch == 3


@pytest.mark.rule("I2", "F2")
async def test_a_fence_rises_with_its_record_and_never_falls(store: DurableExecutionStore) -> None:
    await store.persist(new())
    raised = draft("epoch-2", {"epoch": 2}, type=RecordType.EPOCH_RAISED)
    result = await store.raise_fence("run-1", 2, [raised])
    assert (result.execution.fence_epoch, result.records[0].epoch, result.offset) == (2, 2, 0)
    again = await store.raise_fence("run-1", 2, [raised])
    assert (again.execution, again.appended) == (result.execution, ())
    await refused(Fenced, store.raise_fence("run-1", 1), store)
    await refused(NotCanonical, store.raise_fence("run-1", 3, [draft("x", {"x": 2**60})]), store)


async def test_a_fact_of_no_attempt_takes_the_current_epoch(store: DurableExecutionStore) -> None:
    await admitted(store, epoch=5)
    result = await store.append("run-1", None, [draft("a", type=RecordType.CANCEL_REQUESTED, source=Source.OPERATOR)])
    assert result.records[0].epoch == 5


async def test_the_same_record_is_appended_once(store: DurableExecutionStore) -> None:
    await admitted(store)
    first = await store.append("run-1", 1, [draft("a"), draft("b")], -1)
    again = await store.append("run-1", 1, [draft("a", recorded_at=9999, trace_id="retry"), draft("b")], -1)
    assert again.records == first.records
    assert (again.duplicates, again.appended, again.execution) == ({"a", "b"}, (), first.execution)
    mixed = await store.append("run-1", 1, [draft("b"), draft("c"), draft("c")], 1)
    assert [r.seq for r in mixed.records] == [1, 2, 2]
    assert [r.record_id for r in mixed.appended] == ["c", "c"]
    assert len(await store.read("run-1")) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"payload": {"n": "a", "more": None}},
        {"type": RecordType.CHECKPOINT},
        {"source": Source.OPERATOR},
        {"attempt": 1},
        {"actor": "somebody"},
        {"payload_ref": BlobRef("ab" * 32, 7)},
        {"attachments": {"x": BlobRef("ab" * 32, 7)}},
    ],
)
async def test_a_record_id_means_one_thing(store: DurableExecutionStore, other: dict[str, Any]) -> None:
    await admitted(store)
    await store.append("run-1", 1, [draft("a")])
    await refused(DuplicateMismatch, store.append("run-1", 1, [draft("a", **other)]), store)
    await refused(DuplicateMismatch, store.append("run-1", 1, [draft("z"), draft("z", **{"step": 1} | other)]), store)


async def test_a_retry_survives_a_new_owner_under_the_new_epoch(store: DurableExecutionStore) -> None:
    await admitted(store)
    await store.append("run-1", 1, [draft("a")])
    await store.raise_fence("run-1", 2)
    again = await store.append("run-1", 2, [draft("a")])
    assert (again.records[0].epoch, again.appended) == (1, ())


@pytest.mark.parametrize("record_id", ["", "x" * 129, "a\0b", "\ud800"])
async def test_an_impossible_record_id_is_refused(store: DurableExecutionStore, record_id: str) -> None:
    await admitted(store)
    await refused(InvalidDraft, store.append("run-1", 1, [draft(record_id)]), store)


@pytest.mark.rule("J8")
async def test_big_and_erasable_payloads_are_never_inline(store: DurableExecutionStore) -> None:
    await admitted(store)
    fits = {"x": "y" * (64 * 1024 - 8)}
    await store.append("run-1", 1, [draft("a", fits)])
    await refused(PayloadTooLarge, store.append("run-1", 1, [draft("b", {"x": fits["x"] + "y"})]), store)
    await refused(PayloadTooLarge, store.append("run-1", 1, [draft("c", retention=Retention.ERASABLE)]), store)
    await refused(PayloadTooLarge, store.append("run-1", 1, [draft("d", actor="x" * 70_000)]), store)


@pytest.mark.rule("J8")
async def test_the_store_knows_which_blobs_its_records_need(store: DurableExecutionStore) -> None:
    await admitted(store)
    await admitted(store, "run-2", tenant="team-b")
    refs = {name: BlobRef(name * 32, 1) for name in ("aa", "bb", "cc")}
    await store.append("run-1", 1, [draft("a", payload_ref=refs["aa"], attachments={"x": refs["bb"], "y": refs["bb"]})])
    await store.append("run-1", 1, [draft("b", payload_ref=refs["aa"])])
    await store.append("run-2", 1, [draft("a", payload_ref=refs["cc"])])
    assert await store.referenced_blobs("team-a") == {"aa" * 32, "bb" * 32}
    assert await store.referenced_blobs("team-b") == {"cc" * 32}
    assert await store.referenced_blobs("team-c") == set()


async def test_what_is_read_is_plain_data_of_its_own(store: DurableExecutionStore) -> None:
    await admitted(store)
    payload: dict[str, Any] = {"list": (1, 2), "enum": Source.RUNNER, "float": 1.0, "deep": {"x": [None, True]}}
    result = await store.append("run-1", 1, [draft("a", payload)])
    payload["deep"]["x"].append("later")
    expected = {"list": [1, 2], "enum": "runner", "float": 1, "deep": {"x": [None, True]}}
    assert result.records[0].payload == expected
    assert (await store.read("run-1"))[0].payload == expected
    assert type((await store.read("run-1"))[0].payload["enum"]) is str  # type: ignore[index]


@pytest.mark.rule("S2")
async def test_a_guard_sees_new_records_and_may_refuse_them(store: DurableExecutionStore) -> None:
    await admitted(store)
    await store.append("run-1", 1, [draft("a")])
    seen: list[str] = []

    def look(records: Sequence[Record]) -> None:
        seen.extend(r.record_id for r in records)

    def refuse(records: Sequence[Record]) -> None:
        raise JournalError("illegal move")

    await store.append("run-1", 1, [draft("a"), draft("b")], guard=look)
    await store.append("run-1", 1, [draft("a")], guard=refuse)
    assert seen == ["b"]
    await refused(JournalError, store.append("run-1", 1, [draft("c")], guard=refuse), store)
    await refused(JournalError, store.raise_fence("run-1", 2, [draft("c")], guard=refuse), store)


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
    assert [c.run_uid for c in first] == ["run-1", "run-2"]
    assert (first[0].tenant, first[0].name) == ("team-a", "name-run-1")
    cursor = first[-1].cursor
    assert await store.changes(cursor) == []
    for n in range(3):
        await store.append("run-1", 1, [draft(f"r{n}")])
    after = await store.changes(cursor)
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
