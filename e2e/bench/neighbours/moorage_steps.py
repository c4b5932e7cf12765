"""Moorage's durable step: one record appended to a run's journal. FOLDER is where SQLite lies, DSN another store.

python moorage_steps.py FOLDER [DSN]
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from psycopg import AsyncConnection
from turns import RESULT, ROW, Turn, bare_row, serve

import moorage
from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.store.port import DurableExecutionStore, NewExecution
from moorage.store.postgres import PostgresStore
from moorage.store.reading import verify_stored
from moorage.store.sqlite import SqliteStore

RUN = "run-0"
Bare = Callable[[], Awaitable[object]]


def draft(n: int) -> Draft:
    return Draft(record_id=f"r{n}", type=RecordType.TOOL_RESPONSE, recorded_at=n, source=Source.GATEWAY,
                 assurance=Assurance.OBSERVED, payload={"text": RESULT}, attempt=1, turn=1, step=n)  # fmt: skip


async def admit(store: DurableExecutionStore) -> None:
    identity = RunIdentity(tenant="team-a", run_uid=RUN, session_id="s")
    await store.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec={}, created_at=1))
    await store.raise_fence(RUN, 1)


async def take(store: DurableExecutionStore, reader: DurableExecutionStore, bare: Bare, steps: int) -> Turn:
    turn = Turn()
    before = (await store.get(RUN)).head.offset + 1
    for n in range(before, before + steps):
        began = time.perf_counter()
        await store.append(RUN, 1, [draft(n)])
        turn.step(began)
        began = time.perf_counter()
        await bare()
        turn.bare.append((time.perf_counter() - began) * 1e3)
    turn.kept = (await verify_stored(reader, RUN)).offset + 1 - before
    return turn


async def on_sqlite(folder: Path) -> tuple[DurableExecutionStore, DurableExecutionStore, Bare]:
    path = folder / "moorage.db"
    row = bare_row(folder / "bare.db")

    async def bare() -> object:
        return row()

    return SqliteStore(path), SqliteStore(path), bare


async def on_postgres(dsn: str) -> tuple[DurableExecutionStore, DurableExecutionStore, Bare]:
    db = await AsyncConnection.connect(dsn, autocommit=True)
    await db.execute("CREATE TABLE bare (k BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, b BYTEA)")

    async def bare() -> object:
        return await db.execute("INSERT INTO bare (b) VALUES (%b)", (ROW,), prepare=True)

    return await PostgresStore.open(dsn), await PostgresStore.open(dsn), bare


def main(folder: Path, *dsn: str) -> None:
    with asyncio.Runner() as runner:
        store, reader, bare = runner.run(on_postgres(*dsn) if dsn else on_sqlite(folder))
        runner.run(admit(store))
        serve({"moorage": moorage.__version__}, lambda steps: runner.run(take(store, reader, bare, steps)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
