"""What the part `streams` measures, as processes: `python -m e2e.bench.stream_servers ours|bare FOLDER PORT`.

`ours` is the real gateway over SQLite and blobs in files. `bare` is the least that a server of events can be: aiohttp
that writes each line that it is sent to whoever listens, and keeps them in memory for who comes later.
"""

import asyncio
import json
import sys
from pathlib import Path

import uvicorn
from aiohttp import web

from moorage.clock import SystemClock
from moorage.gateway.app import create_app
from moorage.serving import configured
from moorage.store.blobs import FileBlobs
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import LocalGateway

POD, TENANT = "p1", "bench"


async def ours(folder: Path, port: int) -> None:
    """Until SIGTERM."""
    async with SqliteStore(folder / "moorage.db") as store:
        gateway = LocalGateway(folder, store=store, blobs=FileBlobs(folder / "blobs", SystemClock().now_ms))
        gateway.token_for_pod(POD, TENANT)
        config = configured(create_app(gateway.deps), port=port, log_level="critical")
        async with gateway:
            await uvicorn.Server(config).serve()


class Bare:
    """Nothing is durable, nobody is asked who he is, and a slow reader is waited for."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._readers: set[web.StreamResponse] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.post("/line", self.take), web.get("/stream", self.stream)])
        return app

    async def take(self, request: web.Request) -> web.Response:
        data = json.dumps({"stream": "stdout", "text": await request.text()}).encode()
        event = b"id: %d\nevent: output\ndata: %s\n\n" % (len(self._events), data)
        self._events.append(event)
        for reader in list(self._readers):
            await reader.write(event)
        return web.Response()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for event in list(self._events):
            await answer.write(event)
        self._readers.add(answer)
        try:
            await asyncio.Event().wait()
        finally:
            self._readers.discard(answer)
        return answer


async def bare(port: int) -> None:
    """Until SIGTERM."""
    runner = web.AppRunner(Bare().app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(ours(Path(sys.argv[2]), int(sys.argv[3])) if sys.argv[1] == "ours" else bare(int(sys.argv[3])))
