"""K1 for PostgreSQL: the database is killed amid appends, and what writers were told to be durable is there (J3)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moorage.core.journal.chain import Intact
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.store.errors import StoreBusy, StoreError, StoreUnavailable
from moorage.store.port import NewExecution
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.testing.postgres import PostgresServer

pytestmark = pytest.mark.timeout(180)  # a server is killed and recovers five times

Kill = Callable[[PostgresStore, PostgresServer], Awaitable[None]]


def draft(record_id: str, payload: dict[str, Any]) -> Draft:
    return Draft(record_id=record_id, type=RecordType.AGENT_OUTPUT, recorded_at=1, source=Source.RUNNER,
                 assurance=Assurance.REPORTED, payload=payload)  # fmt: skip


async def admitted(store: PostgresStore, run_uid: str) -> None:
    identity = RunIdentity(tenant="t", run_uid=run_uid, session_id="s")
    await store.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1))
    await store.raise_fence(run_uid, 1)


class Writers:
    """Eight, each on a run of its own, who ask again as a gateway's callers do, and remember what they were told."""

    RUNS = tuple(f"run-{n}" for n in range(8))

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.acknowledged: dict[tuple[str, int], str] = {}
        self.refusals: list[StoreError] = []
        self.told = asyncio.Semaphore(0)
        self.stopped = False

    async def write(self, run_uid: str) -> None:
        n = 0
        while not self.stopped:
            batch = [draft(f"{n}.{k}", {"x": "y" * ((n * 997) % 3000)}) for k in range(1 + n % 3)]
            try:
                result = await self.store.append(run_uid, 1, batch)
            except (StoreUnavailable, StoreBusy) as refused:
                self.refusals.append(refused)
                await asyncio.sleep(0.02)
                continue
            for record in result.records:
                known = self.acknowledged.setdefault((run_uid, record.seq), record.hash)
                assert known == record.hash, "an offset was given twice"
                self.told.release()
            n += 1

    async def more(self) -> None:
        """Wait until some more were acknowledged."""
        for _ in range(40):
            await self.told.acquire()

    async def check(self) -> None:
        """All that was acknowledged is there, once, in whole chains."""
        for run_uid in self.RUNS:
            records = await self.store.read(run_uid, 0, 1_000_000)
            told = {seq: digest for (uid, seq), digest in self.acknowledged.items() if uid == run_uid}
            assert {r.seq: r.hash for r in records}.items() >= told.items()
            assert len({r.record_id for r in records}) == len(records), "what was asked for again is there twice"
            assert isinstance(await verify_stored(self.store, run_uid), Intact)


async def kill_backend(store: PostgresStore, server: PostgresServer) -> None:
    """The process that writes for us: PostgreSQL then ends all its others, and recovers."""
    os.kill((await store._writer._link.get()).info.backend_pid, signal.SIGKILL)


async def kill_server(store: PostgresStore, server: PostgresServer) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


@pytest.mark.rule("J3", "I1")
@pytest.mark.parametrize("kill", [kill_backend, kill_server])
async def test_a_database_killed_amid_appends_loses_nothing_that_was_acknowledged(kill: Kill) -> None:
    with PostgresServer() as server:
        async with await PostgresStore.open(server.dsn()) as store:
            for run_uid in Writers.RUNS:
                await admitted(store, run_uid)
            writers = Writers(store)
            writing = [asyncio.create_task(writers.write(run_uid)) for run_uid in Writers.RUNS]
            for _ in range(5):
                await writers.more()
                await kill(store, server)
            await writers.more()
            writers.stopped = True
            await asyncio.gather(*writing)
            await writers.check()
            assert writers.refusals, "it was never noticed, so nothing was killed amid anything"
