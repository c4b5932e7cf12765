"""The soaked gateway as a process: `python -m e2e.soak.gateway FOLDER FD`, the inherited socket that it is to serve at.

It is the real one over SQLite, with blobs in files and answers encrypted. Each second it prints the worst lag of its
loop in milliseconds, and nothing else: its log goes to stderr. It keeps few runs in memory, so that this cache is full
long before memory is looked at.
"""

import asyncio
import socket
import sys
from dataclasses import replace
from pathlib import Path

import uvicorn

from e2e.bench.gateway_process import NamedTokens
from e2e.bench.loopback import inherited
from e2e.soak.lag import tell_lag
from e2e.soak.world import SECRET, TENANT
from moorage.clock import SystemClock
from moorage.core.journal.ciphers import ContentKeys
from moorage.gateway.app import create_app
from moorage.gateway.settings import GatewaySettings
from moorage.serving import configured
from moorage.store.blobs import FileBlobs
from moorage.store.sqlite import SqliteStore
from moorage.telemetry.logs import start_logging
from moorage.testing.gateway import LocalGateway

CACHED_RUNS = 16


async def serve(folder: Path, at: socket.socket) -> None:
    """Until SIGTERM."""
    async with SqliteStore(folder / "moorage.db") as store:
        gateway = LocalGateway(
            folder,
            store=store,
            blobs=FileBlobs(folder / "blobs", SystemClock().now_ms),
            settings=GatewaySettings(cached_runs=CACHED_RUNS),
            content_keys=ContentKeys.of([b"k" * 32]),
            log=start_logging("gateway", "warning", sys.stderr),
        )
        gateway.secrets.give(TENANT, SECRET, key="k")
        app = create_app(replace(gateway.deps, authenticator=NamedTokens()))
        server = uvicorn.Server(configured(app, log_level="critical"))
        async with gateway, asyncio.TaskGroup() as group:
            lagging = group.create_task(tell_lag())
            await server.serve(sockets=[at])
            lagging.cancel()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), inherited(int(sys.argv[2]))))
