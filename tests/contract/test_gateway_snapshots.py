"""P1 over every store: a snapshot saves a recovery the journal before it, and never changes what a run comes to."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from moorage.api.wire import FenceRequest, ResolvedAgent, ResolvedRun, ResolvedWorkspace
from moorage.core.journal.canonical import canonical_hash
from moorage.core.journal.errors import JournalCorrupted
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.record import RecordType
from moorage.core.journal.snapshots import Snapshot, statement
from moorage.core.run.reducer import replay
from moorage.core.run.state import REDUCER_VERSION
from moorage.gateway.ledger import Ledger, Run
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.snapshots import SAID, Snapshots
from moorage.store.blobs import MemoryBlobs
from moorage.store.errors import StoreUnavailable
from moorage.store.peers import Alone
from moorage.store.port import DurableExecutionStore
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.clock import StepClock

KEY = SigningKey.new()
EVERY = 8
SPEC = ResolvedRun(
    uid="u1",
    tenant="team-a",
    name="u1",
    session_id="u1",
    placement="cluster",
    goal="x",
    workspace=ResolvedWorkspace(key="w", kind="ephemeral"),
    agent=ResolvedAgent(driver="command"),
)


class Gateway:
    """A gateway's memory of one run; made anew, it has to read the journal."""

    def __init__(self, store: DurableExecutionStore, key: SigningKey = KEY, **changes: int) -> None:
        clock, self.metrics = StepClock(), GatewayMetrics(CollectorRegistry())
        settings = GatewaySettings(**{"snapshot_records": EVERY} | changes)
        self.blobs = MemoryBlobs(clock.now_ms)
        snapshots = Snapshots(store, key, self.metrics, structlog.get_logger(), settings)
        self.ledger = Ledger(store, self.blobs, clock, self.metrics, settings, snapshots=snapshots, peers=Alone())

    async def work(self, run: Run, turns: range) -> None:
        for turn in turns:
            for kind, payload in (("TOOL_RESPONSE", {"tool": "x"}), ("ITERATION_COMPLETE", {"iteration": turn})):
                draft = self.ledger.observed(RecordType(kind), payload, turn, turn=turn)
                await self.ledger.append(run, 1, [draft])

    def told(self, outcome: str) -> int:
        return int(self.metrics.snapshots.labels(outcome)._value.get())


async def worked(store: DurableExecutionStore, turns: int = 10, **changes: int) -> Gateway:
    made = Gateway(store, **changes)
    run = await made.ledger.admit(SPEC)
    await made.ledger.raise_fence(run, FenceRequest(epoch=1, attempt=1, holder="h"))
    await made.ledger.append(run, 1, [made.ledger.observed(RecordType.AGENT_STARTED, {}, 1)])
    await made.work(run, range(1, turns + 1))
    return made


async def latest(store: DurableExecutionStore) -> Snapshot:
    found = await store.snapshot("u1", REDUCER_VERSION)
    assert found is not None
    return found


def counted(store: DurableExecutionStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which the journal is streamed."""
    asked: list[int] = []
    original = store.stored

    def stored(run_uid: str, from_offset: int = 0) -> Any:
        asked.append(from_offset)
        return original(run_uid, from_offset)

    monkeypatch.setattr(store, "stored", stored)
    return asked


@pytest.mark.rule("P1")
async def test_a_new_memory_reads_the_journal_from_the_snapshot_on_and_knows_the_same(
    store: DurableExecutionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await worked(store)
    assert before.told("taken") >= 2
    asked = counted(store, monkeypatch)
    after = Gateway(store)
    run = await after.ledger.open("u1")
    taken = await latest(store)
    assert asked == [taken.source_offset, taken.source_offset + 1]  # its own record, and the tail
    assert run.state == replay(await store.read("u1"))
    assert run.facts == (await before.ledger.open("u1")).facts
    assert after.told("used") == 1
    await after.work(run, range(11, 15))
    assert run.state == replay(await store.read("u1"))
    assert (await latest(store)).source_offset > taken.source_offset


def with_state(found: Snapshot, **changes: Any) -> Snapshot:
    content = dict(found.state) | {"state": {**found.state["state"], **changes}}
    return replace(found, state=content, state_hash=canonical_hash(content))


def signed(found: Snapshot) -> Snapshot:
    return replace(found, signature=KEY.say(SAID, statement(found), 0))


FORGERIES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "state-hash": lambda s: replace(s, state={**s.state, "state": {**s.state["state"], "iteration": 1}}),
    "signature": lambda s: with_state(s, phase="Succeeded"),
    "schema-version": lambda s: replace(s, schema_version=99),
    "reducer-version": lambda s: replace(s, state={**s.state, "facts_version": 99}),
    "unreadable": lambda s: signed(with_state(s, of_a_newer_version=1)),
}


@pytest.mark.rule("P1")
@pytest.mark.parametrize("why", FORGERIES)
async def test_one_that_does_not_fit_is_ignored_by_name_and_the_journal_is_replayed(
    store: DurableExecutionStore, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worked(store)
    await store.put_snapshot(FORGERIES[why](await latest(store)))
    asked = counted(store, monkeypatch)
    made = Gateway(store)
    with capture_logs() as logs:
        run = await made.ledger.open("u1")
    assert [(each["event"], each["why"]) for each in logs] == [("snapshot_ignored", why)]
    assert asked[-1] == 0
    assert run.state == replay(await store.read("u1"))
    assert (made.told("ignored"), made.told("used")) == (1, 0)
    assert made.told("taken") == 1  # so that the next one needn't


@pytest.mark.rule("P1")
async def test_another_gateways_key_and_another_reducers_version_make_none_of_ours(
    store: DurableExecutionStore,
) -> None:
    await worked(store)
    stranger = Gateway(store, SigningKey.new())
    assert (await stranger.ledger.open("u1")).state == replay(await store.read("u1"))
    assert stranger.told("ignored") == 1
    older = replace(await latest(store), reducer_version=REDUCER_VERSION + 1)
    await store.put_snapshot(older)
    assert (await latest(store)).reducer_version == REDUCER_VERSION


RELEASED = {"REDUCER_VERSION": 2, "FACTS_VERSION": 5}
"""What 0.3 folds journals by: it counts neither effects, nor bytes that leave, nor what each day took."""


@pytest.mark.rule("P1", "R8")
@pytest.mark.parametrize("name", RELEASED)
async def test_what_the_last_release_folded_of_a_running_run_is_folded_again(
    store: DurableExecutionStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as older:
        older.setattr(f"moorage.gateway.snapshots.{name}", RELEASED[name])
        before = await worked(store)
    assert before.told("taken") >= 2
    asked = counted(store, monkeypatch)
    after = Gateway(store)
    run = await after.ledger.open("u1")
    assert (after.told("used"), asked[-1]) == (0, 0)
    assert run.state == replay(await store.read("u1"))


def tampered(
    store: DurableExecutionStore, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes, int], bytes]
) -> None:
    """What is read from an offset on is changed on the way."""
    original = store.stored

    async def changed(run_uid: str, from_offset: int = 0) -> Any:
        async for entry in original(run_uid, from_offset):
            yield entry._replace(body=change(entry.body, from_offset))

    monkeypatch.setattr(store, "stored", changed)


@pytest.mark.rule("P1", "J5")
async def test_a_chain_that_is_broken_after_the_snapshot_refuses_recovery(
    store: DurableExecutionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worked(store)
    taken = await latest(store)
    tampered(store, monkeypatch, lambda body, _: body.replace(b'"tool":"x"', b'"tool":"y"'))
    with pytest.raises(JournalCorrupted) as caught:
        await Gateway(store).ledger.open("u1")
    assert caught.value.offset > taken.source_offset


@pytest.mark.rule("P1")
async def test_one_of_a_record_that_is_another_now_is_ignored(
    store: DurableExecutionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worked(store)
    taken = await latest(store)

    def changed(body: bytes, from_offset: int) -> bytes:
        return body.replace(b"ITERATION", b"ITERATIOM") if from_offset == taken.source_offset else body

    tampered(store, monkeypatch, changed)
    made = Gateway(store)
    with capture_logs() as logs:
        await made.ledger.open("u1")
    assert [each["why"] for each in logs] == ["chain"]
    assert made.told("ignored") == 1


@pytest.mark.rule("P1")
async def test_a_snapshot_that_cannot_be_kept_fails_no_append(
    store: DurableExecutionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(_: Snapshot) -> None:
        raise StoreUnavailable("no space")

    monkeypatch.setattr(store, "put_snapshot", full)
    made = await worked(store)
    assert (made.told("taken"), made.told("failed") > 0) == (0, True)
    assert (await made.ledger.open("u1")).state == replay(await store.read("u1"))
