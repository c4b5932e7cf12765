"""The ledger against its store: what memory holds is what the journal says, whoever else writes and whatever fails."""

import asyncio
import gc
import random
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from moorage.api.wire import FenceRequest, ResolvedAgent, ResolvedRun, ResolvedWorkspace
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.record import Draft, RecordType
from moorage.core.run.reducer import replay
from moorage.gateway.errors import Fenced, Illegal
from moorage.gateway.ledger import Ledger, Run
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.snapshots import Snapshots
from moorage.store.blobs import MemoryBlobs
from moorage.store.errors import StoreUnavailable
from moorage.store.memory import MemoryStore
from moorage.store.peers import Alone
from moorage.store.port import ExecutionStatus
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.clock import StepClock


def spec(uid: str = "u1") -> ResolvedRun:
    return ResolvedRun(
        uid=uid,
        tenant="team-a",
        name=uid,
        session_id=uid,
        placement="cluster",
        goal="x",
        workspace=ResolvedWorkspace(key="w", kind="ephemeral"),
        agent=ResolvedAgent(driver="command"),
    )


def ledger(store: Any, cached: int = 16) -> Ledger:
    clock = StepClock()
    metrics = GatewayMetrics(CollectorRegistry())
    settings = GatewaySettings(cached_runs=cached)
    snapshots = Snapshots(store, SigningKey.new(), metrics, structlog.get_logger(), settings)
    return Ledger(store, MemoryBlobs(clock.now_ms), clock, metrics, settings, snapshots=snapshots, peers=Alone())


def fact(made: Ledger, kind: RecordType, key: object, **payload: Any) -> Draft:
    return made.observed(kind, payload, key)


async def fenced(made: Ledger, run: Run, epoch: int) -> None:
    await made.raise_fence(run, FenceRequest(epoch=epoch, attempt=epoch, holder="h"))


async def replayed(store: MemoryStore, uid: str = "u1") -> Any:
    return replay(await store.read(uid))


@pytest.mark.rule("S1", "J3")
@settings(max_examples=40, deadline=None)
@given(st.integers())
async def test_two_gateways_on_one_store_agree_with_the_journal(seed: int) -> None:
    store, chance = MemoryStore(), random.Random(seed)
    gateways = [ledger(store), ledger(store)]
    for made in gateways:
        await fenced(made, await made.admit(spec()), 1)

    async def one(at: int) -> None:
        made = chance.choice(gateways)
        run = await made.open("u1")
        await made.append(run, 1, [fact(made, RecordType.TOOL_RESPONSE, at, tool="x")])

    await asyncio.gather(*(one(at) for at in range(20)))
    truth = await replayed(store)
    assert truth.usage.tool_calls == 20
    for made in gateways:
        run = await made.open("u1")
        await made.append(run, 1, [fact(made, RecordType.TOOL_RESPONSE, 0, tool="x")])
        assert run.state == truth


@pytest.mark.rule("O6", "R8")
async def test_a_run_that_goes_on_with_no_other_one_has_the_spec_hash_that_earlier_versions_gave_it() -> None:
    """Its admission is repeated across an upgrade, and its spec is read by those that know no such field."""
    store = MemoryStore()
    await ledger(store).admit(spec())
    assert (await store.get("u1")).spec_hash == "4a85e0d53291e4d180e1e6efceb97d2efa2992616c767bc52cdf555baa6d0540"
    assert "origin" not in spec().model_dump_json()


@pytest.mark.rule("F3", "J3", "I2")
async def test_a_fence_follows_what_another_gateway_wrote_in_between() -> None:
    """It is raised by a gateway that holds an older state of the run, which its memory must not go on from."""
    store = MemoryStore()
    one, other = ledger(store), ledger(store)
    await fenced(one, await one.admit(spec()), 1)
    held = await other.open("u1")
    run = await one.open("u1")
    await one.append(run, 1, [fact(one, RecordType.TOOL_RESPONSE, 1, tool="x")])
    await fenced(other, held, 2)
    assert held.state == await replayed(store)
    assert held.state.usage.tool_calls == 1
    await one.refresh(run)
    assert run.state == held.state


@pytest.mark.rule("J3")
async def test_waiters_see_a_state_only_after_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    made = ledger(store)
    run = await made.admit(spec())
    await fenced(made, run, 1)
    original, entered, go = store.append, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        await go.wait()
        return await original(*args, **kwargs)

    monkeypatch.setattr(store, "append", slow)
    bell = run.bell.arm()
    task = asyncio.create_task(made.append(run, 1, [fact(made, RecordType.AGENT_STARTED, 1)]))
    await entered.wait()
    assert run.state.phase == "Provisioning"
    assert not bell.is_set()
    go.set()
    await task
    assert run.state.phase == "Running"
    assert bell.is_set()


async def test_runs_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    made = ledger(store)
    slow_run, quick_run = await made.admit(spec("u1")), await made.admit(spec("u2"))
    for run in (slow_run, quick_run):
        await fenced(made, run, 1)
    original, go = store.append, asyncio.Event()

    async def slow(uid: str, *args: Any, **kwargs: Any) -> Any:
        if uid == "u1":
            await go.wait()
        return await original(uid, *args, **kwargs)

    monkeypatch.setattr(store, "append", slow)
    held = asyncio.create_task(made.append(slow_run, 1, [fact(made, RecordType.AGENT_STARTED, 1)]))
    await made.append(quick_run, 1, [fact(made, RecordType.AGENT_STARTED, 1)])
    assert not held.done()
    go.set()
    await held


async def test_a_failed_append_is_read_anew_and_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    made = ledger(store)
    run = await made.admit(spec())
    await fenced(made, run, 1)
    original = store.append

    async def acknowledged_too_late(*args: Any, **kwargs: Any) -> Any:
        await original(*args, **kwargs)
        raise StoreUnavailable("the answer got lost")

    monkeypatch.setattr(store, "append", acknowledged_too_late)
    draft = fact(made, RecordType.AGENT_STARTED, 1)
    with pytest.raises(StoreUnavailable):
        await made.append(run, 1, [draft])
    assert run.at is None
    monkeypatch.setattr(store, "append", original)
    again = await made.append(run, 1, [draft])
    assert again.duplicates == {draft.record_id}
    assert run.state == await replayed(store)


@pytest.mark.rule("S4")
async def test_the_status_follows_the_phase_also_after_a_crash_between_the_two() -> None:
    store = MemoryStore()
    made = ledger(store)
    run = await made.admit(spec())
    await fenced(made, run, 1)
    lost = {"epoch": 1, "role": "runner", "reason": "Lost"}
    await made.append(run, 1, [fact(made, RecordType.ATTEMPT_ENDED, 1, **lost)])
    assert (await store.get("u1")).status is ExecutionStatus.RECOVERING
    await fenced(made, run, 2)
    assert (await store.get("u1")).status is ExecutionStatus.RUNNING
    row = await store.get("u1")
    await store.update_status("u1", ExecutionStatus.RECOVERING, row.version)
    assert (await ledger(store).open("u1")).now.row.status is ExecutionStatus.RUNNING
    made = ledger(store)
    run = await made.open("u1")
    await made.append(run, 2, [fact(made, RecordType.RUN_FAILED, 1, reason="x")])
    assert (await store.get("u1")).status is ExecutionStatus.FAILED


@pytest.mark.rule("F3", "I2")
async def test_the_fence_never_falls_and_only_the_owner_commits() -> None:
    store = MemoryStore()
    made = ledger(store)
    run = await made.admit(spec())
    await fenced(made, run, 3)
    with pytest.raises(Fenced):
        await fenced(made, run, 2)
    with pytest.raises(Fenced):
        await made.append(run, 2, [fact(made, RecordType.AGENT_STARTED, 1)])
    await made.append(run, 3, [fact(made, RecordType.AGENT_STARTED, 1)])
    with pytest.raises(Illegal):
        await fenced(made, run, 4)  # while an attempt is at work: the table leads by way of Recovering
    assert (await store.get("u1")).fence_epoch == 3


async def test_a_run_that_left_memory_still_wakes_who_waits_for_it() -> None:
    store = MemoryStore()
    made = ledger(store, cached=1)
    waiting = await made.admit(spec("u1"))
    bell = waiting.bell.arm()
    await made.admit(spec("u2"))
    gc.collect()
    run = await made.open("u1")
    assert run is waiting
    await fenced(made, run, 1)
    assert bell.is_set()


async def test_memory_is_bounded_by_the_cache() -> None:
    made = ledger(MemoryStore(), cached=2)
    for at in range(6):
        await made.admit(spec(f"u{at}"))
    gc.collect()
    assert len(made._alive) == 2
    assert (await made.open("u0")).state.phase == "Queued"
