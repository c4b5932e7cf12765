"""A gateway as a process of its own, for a test to kill: `python -m tests.gateway_process FOLDER PORT PASSWORD`."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn

from moorage.app.keys import head_key
from moorage.app.peers import open_peers
from moorage.clock import SystemClock
from moorage.gateway.app import create_app
from moorage.gateway.settings import GatewaySettings
from moorage.points import arm
from moorage.serving import configured
from moorage.store.blobs import FileBlobs
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import LocalGateway

SNAPSHOTS = "MOORAGE_TEST_SNAPSHOT_RECORDS"  # after how many records one is taken
DSN = "MOORAGE_TEST_DSN"  # of the PostgreSQL that several share; none: SQLite


async def serve(root: Path, port: int, password: str) -> None:
    dsn, clock, key = os.environ.get(DSN), SystemClock(), head_key(root / "head.key")
    store = await PostgresStore.open(dsn) if dsn else SqliteStore(root / "journal.db")
    async with open_peers(dsn, clock, key) as peers:
        own = root / f"gateway-{port}" if dsn else root  # of several, each has a mirror of its own
        gateway = made(root, own, password, store=store, peers=peers, clock=clock, head_key=key)
        config = configured(create_app(gateway.deps), port=port, log_level="critical")
        await uvicorn.Server(config).serve()


def made(root: Path, own: Path, password: str, **deps: Any) -> LocalGateway:
    blobs = FileBlobs(root / "blobs", lambda: 1_800_000_000_000)
    often = int(os.environ.get(SNAPSHOTS, GatewaySettings.snapshot_records))
    settings = GatewaySettings(
        egress_private=("127.0.0.0/8",), snapshot_records=often, mirrors_shared=own != root, answer_patience_ms=60_000
    )
    hosts = {"api.example.com": "127.0.0.1"}
    gateway = LocalGateway(own, blobs=blobs, settings=settings, hosts=hosts, **deps)
    gateway.secrets.give("team-a", "git", username="ada", password=password)
    for pod in ("p1", "p2", "v1"):
        gateway.token_for_pod(pod, "team-a")
    return gateway


if __name__ == "__main__":
    arm(os.environ)
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
