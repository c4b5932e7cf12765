"""Mirrors served to worktrees over HTTP on loopback, as the gateway serves them, with the caller's identity given.

For tests of the two ends of git's way without a gateway, its store and its tokens in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from moorage.serving import configured
from moorage.workspace.doors import ReceivePolicy
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.mirror import MirrorKey, Mirrors
from moorage.workspace.smart_http import GitRequest, GitResponse, respond

_Message = MutableMapping[str, Any]
_PREFIX = "/git/run.git/"


@dataclass
class GitDoor:
    """Who is calling can be changed between requests: `run`, `policy` (None: may not push)."""

    mirrors: Mirrors
    key: MirrorKey
    run: str | None = None
    policy: ReceivePolicy | None = None
    url: str = ""
    responses: list[GitResponse] = field(default_factory=list)
    faults: list[tuple[str, int]] = field(default_factory=list)
    """What goes wrong with the next POSTs: `before` or `after` the work is done, and the status told instead."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[GitDoor]:
        """Listen on a free port; `url` is then the repository's address."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}{_PREFIX.rstrip('/')}"
            server = uvicorn.Server(configured(self, log_level="critical", lifespan="off"))
            task = asyncio.create_task(server.serve([listener]))
            try:
                yield self
            finally:
                server.should_exit = True
                await task

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        """The ASGI application."""
        query = parse_qs(scope["query_string"].decode())
        request = GitRequest(
            scope["method"],
            scope["path"].removeprefix(_PREFIX),
            query.get("service", [""])[0],
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            _body(receive),
        )
        response = await self._answer(request)
        self.responses.append(response)
        await _send(response, send)

    async def _answer(self, request: GitRequest) -> GitResponse:
        when, status = self.faults.pop(0) if self.faults and request.method == "POST" else ("", 0)
        if when == "before":
            return GitResponse(status, "text/plain", b"a fault\n")
        try:
            response = await respond(self.mirrors, self.key, self.run, self.policy, request)
        except WorkspaceError as error:
            return GitResponse(400, "text/plain", str(error).encode())
        return GitResponse(status, "text/plain", b"a lost receipt\n") if when == "after" else response


async def _body(receive: Callable[[], Awaitable[_Message]]) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


async def _send(response: GitResponse, send: Callable[[_Message], Awaitable[None]]) -> None:
    headers = {"content-type": response.content_type, **response.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    if isinstance(response.body, bytes):
        await send({"type": "http.response.body", "body": response.body})
        return
    async for chunk in response.body:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
