"""An ASGI application on a free port of loopback, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from moorage.serving import configured


class _Embedded(uvicorn.Server):
    """A server that leaves this process's signals alone: whoever started us handles them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


@contextlib.asynccontextmanager
async def listening(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve `app`; gives its URL. The port is taken before this returns, so that nobody has to wait for it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(1_024)
        config = configured(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = _Embedded(config)
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
