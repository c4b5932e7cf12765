"""One suite for every adapter of DurableExecutionStore (J11): runs and their records. Adapters are conftest's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.store_script import admitted, draft, new, refused

from moorage.core.journal.chain import Head
from moorage.core.journal.errors import InvalidDraft, JournalError, NotCanonical, PayloadTooLarge
from moorage.core.journal.record import (
    BlobRef,
    Record,
    RecordType,
    Retention,
    Source,
)
from moorage.core.journal.snapshots import Snapshot
from moorage.store.errors import (
    DuplicateMismatch,
    Fenced,
    OffsetConflict,
    SpecConflict,
    UnknownRun,
)
from moorage.store.port import (
    DurableExecutionStore,
    ExecutionStatus,
    Pod,
)


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
