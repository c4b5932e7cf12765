"""I1, I4: whatever is broken, and however often: offsets only rise, none is used twice, nothing spent comes back."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.test_gateway_snapshots import SPEC, Gateway

from moorage.api.wire import FenceRequest
from moorage.core.journal.chain import Broken, Intact
from moorage.core.journal.record import RecordType, Stored
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import replay
from moorage.gateway.ledger import Run
from moorage.store.memory import MemoryStore
from moorage.store.reading import verify_stored

DAMAGES: list[Any] = [
    lambda body: body[:0],
    lambda body: bytes(len(body)),
    lambda body: body[: len(body) // 2],
    lambda body: body + body,
    lambda body: body.replace(b"gateway", b"gatewax"),
]
steps = st.lists(
    st.tuples(st.sampled_from(["work", "break"]), st.integers(0, 40), st.sampled_from(DAMAGES)), max_size=12
)


@pytest.mark.rule("I1", "I4")
@given(steps)
@settings(max_examples=60, deadline=None)
async def test_whatever_is_broken_a_repair_uses_no_offset_twice_and_gives_nothing_back(
    history: list[tuple[str, int, Any]],
) -> None:
    store, told, turn, damaged = MemoryStore(), {}, 0, 0
    made = Gateway(store, snapshot_records=4, segment_records=9)
    run = await owned(made, await made.ledger.admit(SPEC))
    for what, number, damage in history:
        if what == "work":
            for _ in range(3):
                turn += 1
                await worked(made, run, turn)
        else:
            damaged += 1
            first, made = await broken(store, number, damage)
            before = (await store.get("u1")).head.offset
            done = await made.ledger.repair("u1", "x", "ann")
            assert (done.first, done.last) == (first, before)
            assert done.offset == before + 1
            run = await owned(made, await made.ledger.open("u1"))
        for record in await store.read("u1", 0, 10_000):
            assert told.setdefault(record.seq, record.hash) == record.hash, "an offset was used twice"
        assert turn - damaged <= run.state.usage.input_tokens <= turn  # a record that can't be read brought one at most
        assert isinstance(await verify_stored(store, "u1"), Intact)
        assert run.state == replay(await store.read("u1", 0, 10_000))
        assert run.facts.turn >= turn


async def owned(made: Gateway, run: Run) -> Run:
    epoch = run.state.epoch + 1
    await made.ledger.raise_fence(run, FenceRequest(epoch=epoch, attempt=epoch, holder="h"))
    await made.ledger.append(run, epoch, [made.ledger.observed(RecordType.AGENT_STARTED, {}, epoch)])
    assert run.state.phase is RunPhase.RUNNING
    return run


async def worked(made: Gateway, run: Run, turn: int) -> None:
    drafts = [
        made.ledger.observed(RecordType.MODEL_RESPONSE, {"usage": {"input_tokens": 1}}, turn, turn=turn),
        made.ledger.observed(RecordType.ITERATION_COMPLETE, {"iteration": turn}, turn, turn=turn),
    ]
    for draft in drafts:
        await made.ledger.append(run, run.state.epoch, [draft])


async def broken(store: MemoryStore, number: int, damage: Any) -> tuple[int, Gateway]:
    """Break one live record; return the offset after the last good one, and a gateway that knows nothing yet."""
    live = [record.seq for record in await store.read("u1", 0, 10_000)]
    number %= len(live)
    at, follows = live[number], live[number - 1] + 1 if number else 0
    entry = store._runs["u1"].events[at]
    store._runs["u1"].events[at] = Stored(entry.hash, damage(entry.body))
    verdict = await verify_stored(store, "u1")
    assert isinstance(verdict, Broken)
    return follows, Gateway(store, snapshot_records=4, segment_records=9)
