"""A way to the gateway's pod through the API server: a port-forward behind a Unix socket that only its user can open.

The protocol is Kubernetes' own (`v4.channel.k8s.io`, one websocket for each connection): a frame's first byte names the
channel, 0 for data and 1 for errors, and the first two bytes that arrive on either repeat the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import aiohttp

from moorage.cli.exits import CliError, Unreachable

DATA, ERROR = 0, 1
PORT_BYTES = 2
CHUNK = 64 * 1024

Dial = Callable[[], Awaitable[aiohttp.ClientWebSocketResponse]]


class Channel(Protocol):
    """The part of a websocket that the pumps use."""

    async def send_bytes(self, data: bytes) -> None:
        """Send one frame."""

    async def receive(self) -> aiohttp.WSMessage:
        """Wait for one frame."""


async def upstream(reader: asyncio.StreamReader, ws: Channel) -> None:
    """Carry bytes from the local connection into the websocket until it ends."""
    while data := await reader.read(CHUNK):
        await ws.send_bytes(bytes([DATA]) + data)


async def downstream(ws: Channel, writer: asyncio.StreamWriter) -> None:
    """Carry bytes from the websocket to the local connection. Raises Unreachable with what the error channel says."""
    greeting = {DATA: PORT_BYTES, ERROR: PORT_BYTES}
    while True:
        message = await ws.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return
        channel, data = message.data[0], message.data[1:]
        skipped = min(greeting.get(channel, 0), len(data))
        greeting[channel] = greeting.get(channel, 0) - skipped
        data = data[skipped:]
        if channel == ERROR and data:
            raise Unreachable(f"the gateway's pod refused the connection: {data.decode(errors='replace').strip()}")
        if channel == DATA and data:
            writer.write(data)
            await writer.drain()


class Forward:
    """Serves the socket. `failure` is why the last connection ended badly: HTTP alone would only say that it ended."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._open: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a local connection."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """End what is still open."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One local connection, one websocket."""
        try:
            ws = await self._dial()
            self.failure = None
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(ws.close)
                await _until_one_ends(upstream(reader, ws), downstream(ws, writer))
        except (aiohttp.ClientError, OSError, CliError) as error:
            self.failure = error
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _until_one_ends(*pumps: Awaitable[None]) -> None:
    """Run the pumps; the first to end ends all. Raises what it raised."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


@contextlib.asynccontextmanager
async def forwarded(dial: Dial) -> AsyncIterator[tuple[Path, Forward]]:
    """Yield the path of the Unix socket behind which the pod's port is."""
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:  # mode 0700: the socket is its user's alone
        path = Path(folder) / "gateway.sock"
        forward = Forward(dial)
        server = await asyncio.start_unix_server(forward.accept, path)
        try:
            yield path, forward
        finally:
            server.close()
            await forward.close()
            await server.wait_closed()
