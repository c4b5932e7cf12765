"""A process that recovers a run within a given amount of memory beyond what its imports take.

    python recovering_child.py sqlite|postgres WHERE MIB stream|whole

`stream` opens the run as a gateway does; `whole` holds the journal in memory, as a reader must not. Prints offset and
phase, or `out of memory`.
"""

import asyncio
import resource
import sys
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from moorage.core.journal.heads import SigningKey
from moorage.gateway.ledger import Ledger
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.snapshots import Snapshots
from moorage.store.blobs import MemoryBlobs
from moorage.store.peers import Alone
from moorage.store.port import DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore
from moorage.telemetry.metrics import GatewayMetrics
from moorage.testing.clock import StepClock

MIB = 1024 * 1024


def limit(more: int) -> None:
    """Private memory (heap, stacks, anonymous mappings) may grow by so many bytes and no further."""
    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + more, now + more))


async def opened(adapter: str, where: str) -> DurableExecutionStore:
    return SqliteStore(Path(where)) if adapter == "sqlite" else await PostgresStore.open(where)


async def main(adapter: str, where: str, mib: str, how: str) -> str:
    store = await opened(adapter, where)
    clock, metrics, settings = StepClock(), GatewayMetrics(CollectorRegistry()), GatewaySettings()
    snapshots = Snapshots(store, SigningKey.new(), metrics, structlog.get_logger(), settings)
    ledger = Ledger(store, MemoryBlobs(clock.now_ms), clock, metrics, settings, snapshots=snapshots, peers=Alone())
    limit(int(mib) * MIB)
    if how == "whole":
        return str(len([entry async for entry in store.stored("run-1")]))
    run = await ledger.open("run-1")
    await store.recover("run-1")
    return f"{run.state.offset} {run.state.phase}"


def told() -> str:
    try:
        return asyncio.run(main(*sys.argv[1:]))
    except MemoryError:
        return "out of memory"


if __name__ == "__main__":
    sys.stdout.write(told() + "\n")
