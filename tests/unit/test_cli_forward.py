"""The port-forward against a server that speaks the kubelet's protocol, and HTTP through it."""

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import httpx
import pytest
from aiohttp import web

from moorage.cli.evidence import Evidence
from moorage.cli.exits import Unreachable
from moorage.cli.forward import Forward, forwarded

PORT = (8080).to_bytes(2, "little")
BODY = b"x" * 300_000


async def pod(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The gateway in its pod: one answer per connection."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        request = await reader.readuntil(b"\r\n\r\n")
        assert request.startswith(b"GET /v1/runs/u/diff")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY))
        writer.write(BODY)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


class Kubelet:
    """Websocket frames to TCP and back, as `v4.channel.k8s.io` has it."""

    def __init__(self, refusal: bytes = b"", status: int = 101) -> None:
        self.refusal, self.status, self.connections, self.pod = refusal, status, 0, 0

    async def portforward(self, request: web.Request) -> web.StreamResponse:
        self.connections += 1
        if self.status != 101:
            return web.Response(status=self.status)
        ws = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await ws.prepare(request)
        await ws.send_bytes(b"\x00" + PORT)
        await ws.send_bytes(b"\x01" + PORT)
        if self.refusal:
            await ws.send_bytes(b"\x01" + self.refusal)
            await ws.close()
            return ws
        await self._splice(ws)
        return ws

    async def _splice(self, ws: web.WebSocketResponse) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.pod)

        async def back() -> None:
            while data := await reader.read(30_000):
                await ws.send_bytes(b"\x00" + data)
            await ws.close()

        task = asyncio.create_task(back())
        try:
            async for message in ws:
                assert message.data[0] == 0
                writer.write(message.data[1:])
        finally:
            writer.close()
            await asyncio.gather(task, writer.wait_closed(), return_exceptions=True)


@contextlib.asynccontextmanager
async def link(kubelet: Kubelet) -> AsyncIterator[tuple[Path, Forward]]:
    app = web.Application()
    app.router.add_get("/portforward", kubelet.portforward)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    async with await asyncio.start_server(pod, "127.0.0.1", 0) as listening, aiohttp.ClientSession() as http:
        kubelet.pod = listening.sockets[0].getsockname()[1]
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/portforward"

        async def dial() -> aiohttp.ClientWebSocketResponse:
            return await http.ws_connect(url, protocols=("v4.channel.k8s.io",))

        try:
            async with forwarded(dial) as (path, forward):
                yield path, forward
        finally:
            await runner.cleanup()


def evidence(path: Path, forward: Forward) -> Evidence:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    client = httpx.AsyncClient(transport=transport, base_url="http://gateway")
    return Evidence(client, "u", "tidy", lambda: str(forward.failure or ""))


async def read(found: Evidence) -> bytes:
    async with found.client:
        return b"".join([chunk async for chunk in found.diff()])


async def test_http_goes_through_frames_and_the_port_bytes_are_no_part_of_it() -> None:
    kubelet = Kubelet()
    async with link(kubelet) as (path, forward):
        assert await read(evidence(path, forward)) == BODY
        assert await read(evidence(path, forward)) == BODY
        assert forward.failure is None
    assert kubelet.connections == 2


async def test_the_socket_is_its_users_alone_and_goes_away() -> None:
    async with link(Kubelet()) as (path, _):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.is_socket()
    assert not path.parent.exists()


async def test_what_the_error_channel_says_reaches_the_person() -> None:
    async with link(Kubelet(refusal=b"connection refused by port 8080")) as (path, forward):
        with pytest.raises(Unreachable, match="connection refused by port 8080"):
            await read(evidence(path, forward))


async def test_a_forbidden_port_forward_is_unreachable_and_says_why() -> None:
    async with link(Kubelet(status=403)) as (path, forward):
        with pytest.raises(Unreachable, match="403"):
            await read(evidence(path, forward))


async def test_closing_ends_connections_that_are_still_open() -> None:
    async with link(Kubelet()) as (path, forward):
        reader, writer = await asyncio.open_unix_connection(path)
        async with asyncio.timeout(40):
            while len(forward._open) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert await reader.read() == b""
    assert not forward._open
    writer.close()
