"""P3 over every store: past a threshold a journal goes on in a new segment, from the state that it carries over."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.contract.test_gateway_snapshots import Gateway, worked

from moorage.core.journal.canonical import canonical_hash
from moorage.core.journal.chain import Intact
from moorage.core.journal.plain import plain, restored
from moorage.core.journal.record import Record, RecordType
from moorage.core.journal.segments import CARRIED, lineage_of
from moorage.core.run.reducer import replay
from moorage.core.run.state import REDUCER_VERSION, RunState
from moorage.gateway.facts import Segment
from moorage.store.errors import OffsetConflict, StoreUnavailable
from moorage.store.port import DurableExecutionStore
from moorage.store.reading import verify_stored

LONG = 10


def begins(records: list[Record]) -> list[Record]:
    return [record for record in records if record.type == RecordType.SEGMENT_STARTED]


@pytest.mark.rule("P3", "J4")
async def test_each_segment_says_what_it_follows_and_carries_the_state_over(store: DurableExecutionStore) -> None:
    made = await worked(store, turns=20, segment_records=LONG)
    records = await store.read("u1")
    found = begins(records)
    assert len(found) == 4
    first = 0
    for number, record in enumerate(found, start=2):
        follows = lineage_of(record)
        assert follows is not None
        assert (follows.segment, follows.first, follows.last) == (number, first, record.seq - 1)
        assert follows.hash == records[record.seq - 1].hash == record.prev_hash
        before = replay(records[: record.seq])
        assert (follows.state_hash, follows.reducer_version) == (canonical_hash(plain(before)), REDUCER_VERSION)
        assert record.attachments is not None
        carried = orjson.loads(await made.blobs.get("team-a", record.attachments[CARRIED]))
        assert restored(RunState, carried["state"]) == before
        first = record.seq
        assert record.seq - follows.first == LONG
    assert isinstance(await verify_stored(store, "u1"), Intact)
    again = Gateway(store)
    run = await again.ledger.open("u1")
    assert run.facts.segment == Segment(5, first)
    assert run.state == replay(records)


@pytest.mark.rule("P3")
async def test_recovery_begins_at_the_segment(store: DurableExecutionStore) -> None:
    await worked(store, turns=4, segment_records=LONG, snapshot_records=1_000)
    (begun,) = begins(await store.read("u1"))
    taken = await store.snapshot("u1", REDUCER_VERSION)
    assert taken is not None
    assert taken.source_offset == begun.seq


@pytest.mark.rule("P3")
async def test_nothing_is_appended_to_a_segment_that_is_over(store: DurableExecutionStore) -> None:
    made = await worked(store, turns=6, segment_records=LONG)
    (begun,) = begins(await store.read("u1"))
    with pytest.raises(OffsetConflict):
        await store.append("u1", 1, [made.ledger.observed(RecordType.TOOL_RESPONSE, {}, "late")], begun.seq - 1)


@pytest.mark.rule("P3")
async def test_two_gateways_begin_a_segment_once(store: DurableExecutionStore) -> None:
    one = await worked(store, turns=3, segment_records=LONG)
    two = Gateway(store, segment_records=LONG)
    runs = [await made.ledger.open("u1") for made in (one, two)]
    drafts = [
        made.ledger.observed(RecordType.TOOL_RESPONSE, {"tool": "x"}, f"both-{at}")
        for at, made in enumerate((one, two))
    ]
    for _ in range(3):
        await asyncio.gather(
            *(made.ledger.append(run, 1, [draft]) for made, run, draft in zip((one, two), runs, drafts, strict=True))
        )
    assert [record.payload["segment"] for record in begins(await store.read("u1")) if record.payload] == [2]
    truth = replay(await store.read("u1"))
    assert truth.usage.tool_calls == 3 + 2
    assert (await Gateway(store).ledger.open("u1")).state == truth


async def test_a_run_that_has_ended_begins_no_other_segment(store: DurableExecutionStore) -> None:
    made = await worked(store, turns=3, segment_records=1_000)
    run = await made.ledger.open("u1")
    await made.ledger.append(run, 1, [made.ledger.observed(RecordType.RUN_FAILED, {"reason": "x"}, 1)])
    small = Gateway(store, segment_records=2)
    run = await small.ledger.open("u1")
    placed = {"pod_uid": "p", "epoch": 1, "role": "runner", "environment": "e"}
    await small.ledger.append(run, None, [small.ledger.observed(RecordType.SANDBOX_PLACED, placed, 1)])
    assert begins(await store.read("u1")) == []


@pytest.mark.rule("P3", "J3")
@pytest.mark.parametrize("written", [False, True])
async def test_a_segment_that_could_not_be_begun_is_begun_with_the_next_try(
    store: DurableExecutionStore, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await worked(store, turns=3, segment_records=LONG)
    run = await made.ledger.open("u1")
    original, failed = store.append, []

    async def fails_once(run_uid: str, epoch: int | None, drafts: Any, *args: Any, **kwargs: Any) -> Any:
        if drafts[0].type == RecordType.SEGMENT_STARTED and not failed:
            failed.append(1)
            if written:
                await original(run_uid, epoch, drafts, *args, **kwargs)
            raise StoreUnavailable("the answer got lost")
        return await original(run_uid, epoch, drafts, *args, **kwargs)

    monkeypatch.setattr(store, "append", fails_once)
    draft = made.ledger.observed(RecordType.TOOL_RESPONSE, {"tool": "x"}, "next")
    more = made.ledger.observed(RecordType.TOOL_RESPONSE, {"tool": "x"}, "more")
    await made.ledger.append(run, 1, [draft])  # the last one that fits
    with pytest.raises(StoreUnavailable):
        await made.ledger.append(run, 1, [more])
    for each in (draft, more):
        await made.ledger.append(run, 1, [each])
    records = await store.read("u1")
    assert len(begins(records)) == len(failed) == 1
    assert run.state == replay(records)
    assert run.facts.segment == Segment(2, begins(records)[0].seq)
