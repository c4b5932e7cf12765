"""What the part `proxy` measures, as processes: `python -m e2e.bench.proxy_servers model|bare|ours FD [PLACE]`.

`model` answers as a provider does, at once or as events, so many a second, each with the time of its sending. `bare` is
the least that a reverse proxy can be: aiohttp that passes on what it is asked and each chunk of the answer (PLACE is
the model's URL). `ours` is the real gateway over SQLite, with blobs in files and answers encrypted (PLACE is a folder).
FD is the inherited socket that each serves at.
"""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path

import aiohttp
import uvicorn
from aiohttp import web

from e2e.bench.loopback import inherited
from moorage.clock import SystemClock
from moorage.core.journal.ciphers import ContentKeys
from moorage.gateway.app import create_app
from moorage.serving import configured
from moorage.store.blobs import FileBlobs
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import LocalGateway

RUNS, TENANT = 10, "bench"
USAGE = {"input_tokens": 5_000, "output_tokens": 120, "cache_read_input_tokens": 4_000}
WORDS = "word " * 12


def pod(number: int) -> str:
    """The UID of a run's pod."""
    return f"p{number}"


async def messages(request: web.Request) -> web.StreamResponse:
    """Anthropic's Messages. `metadata` of the request says how many chunks there are, and how many in a second."""
    asked = await request.json()
    if not asked.get("stream"):
        content = [{"type": "text", "text": WORDS * 10}]
        said = {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn", "usage": USAGE}
        return web.json_response(said)
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    pace = asked["metadata"]
    await answer.write(event("message_start", message={"usage": USAGE | {"output_tokens": 1}}))
    began = time.perf_counter()
    for number in range(pace["chunks"]):
        await asyncio.sleep(max(0.0, began + (number + pace["phase"]) / pace["per_second"] - time.perf_counter()))
        text = f"{number} {time.perf_counter()} {WORDS}"
        await answer.write(event("content_block_delta", index=0, delta={"type": "text_delta", "text": text}))
    await answer.write(event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 120}))
    await answer.write(event("message_stop"))
    return answer


def event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


class Bare:
    """Nobody is asked who he is, nothing is noted, and a slow reader is waited for."""

    def __init__(self, model: str, http: aiohttp.ClientSession) -> None:
        self._model, self._http = model, http

    async def messages(self, request: web.Request) -> web.StreamResponse:
        headers = {"content-type": "application/json", "x-api-key": "k"}
        body = await request.read()
        async with self._http.post(f"{self._model}/v1/messages", data=body, headers=headers) as theirs:
            answer = web.StreamResponse(status=theirs.status, headers={"content-type": theirs.headers["content-type"]})
            await answer.prepare(request)
            async for chunk in theirs.content.iter_any():
                await answer.write(chunk)
            return answer


async def listen(path: str, door: object, at: socket.socket) -> None:
    """Until SIGTERM."""
    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post(path, door)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, at).start()
    await asyncio.Event().wait()


async def bare(at: socket.socket, model: str) -> None:
    """Until SIGTERM."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await listen("/model/v1/messages", Bare(model, http).messages, at)


async def ours(at: socket.socket, folder: Path) -> None:
    """Until SIGTERM."""
    async with SqliteStore(folder / "moorage.db") as store:
        blobs = FileBlobs(folder / "blobs", SystemClock().now_ms)
        gateway = LocalGateway(folder, store=store, blobs=blobs, content_keys=ContentKeys.of([b"k" * 32]))
        gateway.secrets.give(TENANT, "model", key="k")
        for number in range(RUNS):
            gateway.token_for_pod(pod(number), TENANT)
        config = configured(create_app(gateway.deps), log_level="critical")
        async with gateway:
            await uvicorn.Server(config).serve(sockets=[at])


def main(kind: str, at: socket.socket, place: str) -> None:
    match kind:
        case "model":
            asyncio.run(listen("/v1/messages", messages, at))
        case "bare":
            asyncio.run(bare(at, place))
        case _:
            asyncio.run(ours(at, Path(place)))


if __name__ == "__main__":
    main(sys.argv[1], inherited(int(sys.argv[2])), sys.argv[3] if len(sys.argv) > 3 else "")
