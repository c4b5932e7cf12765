"""A gateway frozen (SIGSTOP) in the middle of an append to PostgreSQL, while another one takes the run over."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.points import Point
from moorage.store.errors import StoreBusy
from moorage.store.port import NewExecution
from moorage.store.postgres import PostgresStore
from moorage.testing.killpoints import Fault, Shot, environment, fired

SOURCES = Path(__file__).resolve().parents[2] / "operator"
UID = "u1"
WRITER = """
import asyncio, os, sys
from moorage import points
from moorage.core.journal.record import Assurance, Draft, RecordType, Source
from moorage.store.errors import StoreError
from moorage.store.postgres import PostgresStore

def draft(number):
    return Draft(record_id=f"old-{number}", type=RecordType.AGENT_OUTPUT, recorded_at=0, source=Source.RUNNER,
                 assurance=Assurance.REPORTED)

async def main(dsn):
    async with await PostgresStore.open(dsn) as store:
        for number in range(4):
            try:
                await store.append("u1", 1, [draft(number)])
                print(number, "durable", flush=True)
            except StoreError as error:
                print(number, type(error).__name__, flush=True)

points.arm(os.environ)
asyncio.run(main(sys.argv[1]))
"""
PATIENCE_S = 60


async def begun(store: PostgresStore) -> None:
    identity = RunIdentity(tenant="local", run_uid=UID, session_id="s")
    await store.persist(NewExecution(identity=identity, name="n", spec_hash="f" * 64, spec={}, created_at=0))
    await store.raise_fence(UID, 1)


@contextlib.asynccontextmanager
async def frozen_writer(dsn: str, trace: Path, shot: Shot) -> AsyncIterator[asyncio.subprocess.Process]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCES), **environment(trace, shot)}
    writer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, dsn), env=env, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while fired(trace, shot) is None:  # noqa: ASYNC110  another process's doing
                await asyncio.sleep(0.02)
        yield writer
    finally:
        if writer.returncode is None:
            writer.kill()
            await writer.communicate()


async def fenced(store: PostgresStore, epoch: int) -> None:
    """As soon as the database lets go of what a frozen connection holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await store.raise_fence(UID, epoch)
            except StoreBusy:
                await asyncio.sleep(0.05)
            else:
                return


def new() -> Draft:
    return Draft(
        record_id="new",
        type=RecordType.AGENT_OUTPUT,
        recorded_at=0,
        source=Source.RUNNER,
        assurance=Assurance.REPORTED,
    )


@pytest.mark.rule("I2", "F3", "K1")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("point", "told", "kept"),
    [
        (Point.APPEND_BEFORE, "1 StoreUnavailable", ["old-0", "new"]),
        (Point.APPEND_WITHIN, "1 StoreUnavailable", ["old-0", "new"]),
        (Point.APPEND_AFTER, "1 durable", ["old-0", "old-1", "new"]),
    ],
)
async def test_a_gateway_that_wakes_after_a_takeover_commits_nothing(
    postgres: str, tmp_path: Path, point: Point, told: str, kept: list[str]
) -> None:
    async with await PostgresStore.open(postgres) as store:
        await begun(store)
        async with frozen_writer(postgres, tmp_path / "trace", Shot(point, 2, Fault.STOP)) as writer:
            await fenced(store, 2)
            await store.append(UID, 2, [new()])
            os.kill(writer.pid, signal.SIGCONT)
            said, _ = await asyncio.wait_for(writer.communicate(), PATIENCE_S)
        assert said.decode().splitlines() == ["0 durable", told, "2 Fenced", "3 Fenced"]
        assert [record.record_id for record in await store.read(UID)] == kept
