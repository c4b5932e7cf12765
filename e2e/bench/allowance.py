"""Part `allowance`: what a request to a model costs more where its namespace has an allowance (C5, ADR 180): its worst
case taken before it, and what it didn't need given back after it, each durable.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from psycopg import AsyncConnection

from e2e.bench.figures import Figure, Report
from e2e.cluster.console import Console
from e2e.cluster.errors import HarnessError
from e2e.cluster.paths import cache_root
from e2e.cluster.postgres import ensure_postgres
from moorage.store.allowances import Allowance, Ask
from moorage.store.port import DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore
from moorage.store.sqlite_connection import connect
from moorage.testing.postgres import PostgresServer

TIMES, TOGETHER, ROUNDS = 200, 16, 5
DAY = 20_000
ASK = Ask("team-a", "request", DAY, "gateway", 5_000, 100)
ROW = "CREATE TABLE bare (n BIGINT)"
BARE = "two rows inserted, each committed"
INSERT = "INSERT INTO bare VALUES (1)"


def measure(console: Console) -> Report:
    """On SQLite in a file, and on a PostgreSQL of its own."""
    ensure_postgres(console, cache_root())
    with TemporaryDirectory() as folder:
        lite = [asyncio.run(_sqlite(Path(folder), turn)) for turn in range(ROUNDS)]
    with PostgresServer({"shared_buffers": "128MB"}) as server:
        full = [asyncio.run(_postgres(server.create_database())) for _ in range(ROUNDS)]
    passed = asyncio.run(_crowd())
    return Report(
        "allowance",
        [
            Figure("taken and given back, in SQLite (mean)", "ms", *_columns(lite), BARE),
            Figure("taken and given back, in PostgreSQL (mean)", "ms", *_columns(full), BARE),
        ],
        [
            "16 at once at two stores of one PostgreSQL, 40 requests each, of a day with room for 500 of them:"
            f" {passed} looks at the rows found a limit passed"
        ],
        ["A namespace without such a line takes nothing: its requests ask nothing more of the store."],
    )


def _columns(rounds: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [ours for ours, _ in rounds], [bare for _, bare in rounds]


async def _sqlite(folder: Path, turn: int) -> tuple[float, float]:
    bare = connect(folder / f"bare-{turn}.db")
    bare.execute(ROW)

    async def insert() -> None:
        bare.execute(INSERT)

    async with SqliteStore(folder / f"journal-{turn}.db") as store:
        return await _mean(lambda: _both(store)), await _mean(lambda: _twice(insert))


async def _postgres(dsn: str) -> tuple[float, float]:
    async with await PostgresStore.open(dsn) as store, await AsyncConnection.connect(dsn, autocommit=True) as bare:
        await bare.execute(ROW)

        async def insert() -> None:
            await bare.execute(INSERT)

        return await _mean(lambda: _both(store)), await _mean(lambda: _twice(insert))


async def _both(store: DurableExecutionStore) -> None:
    if await store.take(ASK) is not None:
        raise HarnessError("there is room for all of them")
    await store.settle(ASK, 1_000, 20)


async def _twice(insert: Callable[[], Awaitable[None]]) -> None:
    await insert()
    await insert()


async def _mean(work: Callable[[], Awaitable[None]]) -> float:
    await work()
    began = time.perf_counter()
    for _ in range(TIMES):
        await work()
    return (time.perf_counter() - began) * 1000 / TIMES


async def _crowd() -> int:
    """How often a limit was found passed: 0."""
    with PostgresServer() as server:
        dsn = server.create_database()
        stores = [await PostgresStore.open(dsn) for _ in range(2)]
        try:
            await stores[0].set_allowance("team-a", Allowance(tokens=500 * 5_000, models=8))
            found = await asyncio.gather(*(_asks(stores[at % 2], at) for at in range(TOGETHER)))
        finally:
            for store in stores:
                await store.close()
    return sum(found)


async def _asks(store: PostgresStore, at: int) -> int:
    passed = 0
    for turn in range(40):
        ask = Ask("team-a", f"{at}-{turn}", DAY, f"gateway-{at % 2}", 5_000, 100)
        if await store.take(ask) is not None:
            continue
        now = await store.taken("team-a", DAY)
        passed += now.tokens + now.open_tokens > 500 * 5_000 or now.open_requests > 8
        await store.settle(ask, 4_000 + turn, 20)
    return passed
