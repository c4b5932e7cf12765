"""An HTTP client's transport that ends in an app of this process, and hands on an answer while it is being made.

httpx's own waits for the end of every answer, so that one could never follow a run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
from starlette.applications import Starlette

Messages = asyncio.Queue[MutableMapping[str, Any] | None]  # None: the app has returned


class InProcess(httpx.AsyncBaseTransport):
    """What the app raises is raised to whoever reads its answer."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        body, sent = await request.aread(), Messages(1)
        work = asyncio.create_task(self._answer(request, body, sent))
        try:
            start = await sent.get()
        except BaseException:
            await _stopped(work)
            raise
        if start is None:
            await work
            raise AssertionError("the app returned without an answer")
        return httpx.Response(start["status"], headers=start["headers"], stream=_Answer(work, sent))

    async def _answer(self, request: httpx.Request, body: bytes, sent: Messages) -> None:
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            await asyncio.Event().wait()  # a reader that goes cancels this
            raise AssertionError("unreachable")

        async def send(message: MutableMapping[str, Any]) -> None:
            await sent.put(message)

        try:
            await self._app(_scope(request), receive, send)
        finally:
            if not _given_up():
                await sent.put(None)


class _Answer(httpx.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(self, work: asyncio.Task[None], sent: Messages) -> None:
        self._work, self._sent = work, sent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            if message.get("body"):
                yield message["body"]
        await self._work

    async def aclose(self) -> None:
        """Nobody reads on."""
        await _stopped(self._work)


def _given_up() -> bool:
    """Nobody takes what this task still has to say."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _stopped(work: asyncio.Task[None]) -> None:
    if not work.done():
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(key.lower(), value) for key, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
