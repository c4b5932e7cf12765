"""A gateway as a process of its own, for a test to kill: `python -m tests.gateway_process FOLDER PORT PASSWORD`."""

import asyncio
import os
import sys
from pathlib import Path

import uvicorn

from moorage.gateway.app import create_app
from moorage.gateway.settings import GatewaySettings
from moorage.points import arm
from moorage.store.blobs import FileBlobs
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import LocalGateway

SNAPSHOTS = "MOORAGE_TEST_SNAPSHOT_RECORDS"  # after how many records one is taken


async def serve(root: Path, port: int, password: str) -> None:
    store = SqliteStore(root / "journal.db")
    blobs = FileBlobs(root / "blobs", lambda: 1_800_000_000_000)
    often = int(os.environ.get(SNAPSHOTS, GatewaySettings.snapshot_records))
    settings = GatewaySettings(egress_private=("127.0.0.0/8",), snapshot_records=often)
    hosts = {"api.example.com": "127.0.0.1"}
    gateway = LocalGateway(root, store=store, blobs=blobs, settings=settings, hosts=hosts)
    gateway.secrets.give("team-a", "git", username="ada", password=password)
    for pod in ("p1", "p2", "v1"):
        gateway.token_for_pod(pod, "team-a")
    config = uvicorn.Config(create_app(gateway.deps), port=port, log_level="critical", ws="none")
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    arm(os.environ)
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
