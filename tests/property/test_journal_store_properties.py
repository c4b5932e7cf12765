"""Random lives of runs: every adapter does the same, and the invariants hold whatever comes (I1, I2)."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moorage.core.journal.chain import Intact
from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.store.errors import StoreError
from moorage.store.memory import MemoryStore
from moorage.store.port import DurableExecutionStore, ExecutionStatus, NewExecution, Pod
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore
from moorage.testing.postgres import PostgresServer

pytestmark = pytest.mark.timeout(240)  # each life is lived in three stores

RUNS = ("run-1", "run-2")
runs = st.sampled_from(RUNS)
epochs = st.integers(0, 5)


@st.composite
def batches(draw: st.DrawFn) -> list[Draft]:
    """Few ids and few contents, so that retries and clashes are common; some content that is refused."""
    contents = st.sampled_from([{"n": 1}, {"n": 2}, {"n": "é"}, {"n": float("nan")}])
    return [
        Draft(
            record_id=f"r{draw(st.integers(0, 12))}",
            type=RecordType.AGENT_OUTPUT,
            recorded_at=draw(st.integers(0, 3)),
            source=Source.RUNNER,
            assurance=Assurance.REPORTED,
            payload=draw(contents),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]


class Lives(RuleBasedStateMachine):
    """Does everything to all adapters; the store in memory says what should come out."""

    server: ClassVar[PostgresServer]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.memory = MemoryStore()
        self.sqlite = SqliteStore(self.folder / "journal.db")
        self.schema = self.server.schema()
        self.dsn = self.schema.__enter__()
        self.postgres = self.loop.run_until_complete(PostgresStore.open(self.dsn))
        self.seen: dict[str, list[str]] = {run_uid: [] for run_uid in RUNS}
        self.fences = dict.fromkeys(RUNS, 0)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.sqlite.close())
        self.loop.run_until_complete(self.postgres.close())
        self.schema.__exit__(None, None, None)
        self.loop.close()
        shutil.rmtree(self.folder)

    def all(self, call: Callable[[DurableExecutionStore], Awaitable[Any]]) -> Any:
        outcomes = [self.outcome(call(store)) for store in (self.memory, self.sqlite, self.postgres)]
        assert outcomes == [outcomes[0]] * 3
        return outcomes[0]

    def outcome(self, call: Awaitable[Any]) -> Any:
        async def attempt() -> Any:
            try:
                return await call
            except (StoreError, JournalError) as e:
                return type(e), str(e)

        return self.loop.run_until_complete(attempt())

    @initialize()
    def first(self) -> None:
        self.persist("run-1", "h1")

    @rule(run_uid=runs, spec_hash=st.sampled_from(["h1", "h2"]))
    def persist(self, run_uid: str, spec_hash: str) -> None:
        identity = RunIdentity(tenant="t", run_uid=run_uid, session_id="s")
        new = NewExecution(identity=identity, name="n", spec_hash=spec_hash, spec={}, created_at=1)
        self.all(lambda store: store.persist(new))

    @rule(run_uid=runs, epoch=st.none() | epochs, drafts=batches(), offset=st.none() | st.integers(-1, 12))
    def append(self, run_uid: str, epoch: int | None, drafts: list[Draft], offset: int | None) -> None:
        self.all(lambda store: store.append(run_uid, epoch, drafts, offset))

    @rule(run_uid=runs, drafts=batches())
    def append_as_owner(self, run_uid: str, drafts: list[Draft]) -> None:
        self.all(lambda store: store.append(run_uid, self.fences[run_uid], drafts))

    @rule(run_uid=runs, epoch=epochs, drafts=batches())
    def fence(self, run_uid: str, epoch: int, drafts: list[Draft]) -> None:
        self.all(lambda store: store.raise_fence(run_uid, epoch, drafts))

    @rule(run_uid=runs, status=st.sampled_from(ExecutionStatus), version=st.integers(1, 6))
    def status(self, run_uid: str, status: ExecutionStatus, version: int) -> None:
        self.all(lambda store: store.update_status(run_uid, status, version))

    @rule(
        run_uid=runs, epoch=epochs, pod_uid=st.sampled_from(["p1", "p2"]), role=st.sampled_from(["runner", "verifier"])
    )
    def pod(self, run_uid: str, epoch: int, pod_uid: str, role: str) -> None:
        pod = Pod(pod_uid=pod_uid, run_uid=run_uid, epoch=epoch, role=role, pod_name="n")
        self.all(lambda store: store.register_pod(pod))
        self.all(lambda store: store.find_pod(pod_uid))

    @rule(run_uid=st.just("run-2"))
    def delete(self, run_uid: str) -> None:
        self.all(lambda store: store.delete(run_uid, at=1, reason="gone"))

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.sqlite.close())
        self.loop.run_until_complete(self.postgres.close())
        self.sqlite = SqliteStore(self.folder / "journal.db")
        self.postgres = self.loop.run_until_complete(PostgresStore.open(self.dsn))

    @rule(after=st.integers(0, 30), limit=st.integers(1, 5))
    def changes(self, after: int, limit: int) -> None:
        self.all(lambda store: store.changes(after, limit))
        self.all(lambda store: store.list_pending())

    @invariant()
    def history_only_grows(self) -> None:
        for run_uid in RUNS:
            records = self.all(lambda store, uid=run_uid: store.read(uid))
            if isinstance(records, tuple):
                continue
            hashes = [r.hash for r in records]
            assert hashes[: len(self.seen[run_uid])] == self.seen[run_uid], "a confirmed record changed or went"
            self.seen[run_uid] = hashes
            assert [r.seq for r in records] == list(range(len(records)))
            assert len({r.record_id for r in records}) == len(records)

    @invariant()
    def one_owner_commits(self) -> None:
        for run_uid in RUNS:
            row = self.all(lambda store, uid=run_uid: store.get(uid))
            if isinstance(row, tuple):
                continue
            assert row.fence_epoch >= self.fences[run_uid], "the fence fell"
            self.fences[run_uid] = row.fence_epoch
            epochs_used = [r.epoch for r in self.loop.run_until_complete(self.memory.read(run_uid))]
            assert epochs_used == sorted(epochs_used), "an older epoch committed after a newer one"

    @precondition(lambda self: any(self.seen.values()))
    @rule()
    def the_chain_holds(self) -> None:
        for run_uid, hashes in self.seen.items():
            if hashes:
                verdict = self.all(lambda store, uid=run_uid: verify_stored(store, uid))
                assert verdict == Intact(len(hashes) - 1, hashes[-1])
                row = self.all(lambda store, uid=run_uid: store.recover(uid))
                assert asdict(row)["head"]["hash"] == hashes[-1]


@pytest.mark.rule("I1", "I2", "J2", "J11")
def test_every_adapter_lives_the_same_lives(postgres_server: PostgresServer) -> None:
    Lives.server = postgres_server
    run_state_machine_as_test(Lives, settings=settings(max_examples=40, stateful_step_count=30, deadline=None))
