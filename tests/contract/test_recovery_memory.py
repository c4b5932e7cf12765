"""J5, J12: a journal several times larger than the memory that a process has is recovered by it.

Scaled down from 2 GiB in 512 MiB (`tests/perf/large_journal.py`, docs/benchmarks.md).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract import recovering_child
from tests.contract.test_gateway_snapshots import SPEC

from moorage.core.journal.record import Assurance, Draft, RecordType, RunIdentity, Source
from moorage.store.port import DurableExecutionStore, NewExecution
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore

pytestmark = pytest.mark.timeout(240)  # it writes some ten times what most tests do
MEMORY_MIB = 14
RECORDS, SIZE = 768, 64_000  # 47 MiB
BATCH = 64


@pytest.fixture(params=["sqlite", "postgres"])
async def large(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Adapter and place of a store with a long journal that no snapshot shortens."""
    if request.param == "sqlite":
        where = str(tmp_path / "journal.db")
        store: DurableExecutionStore = SqliteStore(tmp_path / "journal.db")
    else:
        where = request.getfixturevalue("postgres")
        store = await PostgresStore.open(where)
    await written(store)
    await store.close()
    return request.param, where


async def written(store: DurableExecutionStore) -> None:
    identity = RunIdentity(tenant="team-a", run_uid="run-1", session_id="s")
    spec = SPEC.model_copy(update={"uid": "run-1"}).model_dump(mode="json")
    await store.persist(NewExecution(identity=identity, name="n", spec_hash="h", spec=spec, created_at=1))
    await store.raise_fence("run-1", 1, [draft("RUN_ADMITTED", 0, {"spec_hash": "h"})])
    for start in range(1, RECORDS, BATCH):
        text = {"text": "x" * SIZE}
        await store.append("run-1", 1, [draft("AGENT_OUTPUT", n, text) for n in range(start, start + BATCH)])


def draft(kind: str, n: int, payload: dict[str, str]) -> Draft:
    return Draft(
        record_id=f"r{n}",
        type=RecordType(kind),
        recorded_at=n,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload=payload,
    )


def child(large: tuple[str, str], how: str) -> str:
    command = [sys.executable, recovering_child.__file__, *large, str(MEMORY_MIB), how]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.rule("J5", "J12")
def test_a_journal_larger_than_memory_is_recovered(large: tuple[str, str]) -> None:
    assert RECORDS * SIZE > 3 * MEMORY_MIB * recovering_child.MIB
    assert child(large, "whole") == "out of memory"  # the limit is one
    assert child(large, "stream") == f"{RECORDS} Queued"
