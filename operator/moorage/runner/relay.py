"""L4: what the agent sees of the outside: a loopback port that leads to the gateway's model, git and egress doors.

It is an HTTP proxy too: a request for `http://HOST/…` goes to the egress door, `CONNECT HOST:PORT` to that of tunnels;
they decide about the host.

Each connection carries one request: its head is read, checked and rewritten (the current token in, whatever key the
client sent out), and from then on bytes are passed both ways as they come, so that nothing is buffered. The gateway is
asked to close after its answer, which frames it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from moorage.runner.egress import BROKEN, ask, kept_body
from moorage.runner.exchange import connect
from moorage.runner.hold import MAX_BODY, Hold
from moorage.runner.tunnel import carry

EGRESS = "/egress/"
MODEL = "/model/"
MCP = b"/mcp"
Tools = Callable[[bytes], Coroutine[Any, Any, bytes | None]]
"""Takes a JSON-RPC message and answers it; None where it asks for nothing."""
PREFIXES = (MODEL, "/git/", EGRESS)
PROXIED = "http://"
PASSING = (OSError, asyncio.IncompleteReadError)  # a peer went away: the other one hears it by the closed connection
MAX_HEAD = 64 * 1024
CHUNK = 64 * 1024
LINGER_S = 2.0
REQUEST_LINE = re.compile(rb"[A-Z]{1,16} [!-~\x80-\xff]+ HTTP/1\.[01]")
HEADER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*")
DROPPED = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"host",
        b"connection",
        b"proxy-authorization",
        b"proxy-connection",
        b"keep-alive",
        b"x-moorage-call",
    }
)
NO_GATEWAY = (b"502 Bad Gateway", b"the gateway can't be reached; try again")
NO_RETRY = b"x-should-retry: false\r\n"
ANSWERED = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
REFUSED = b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n%s"


class Relay:
    """Listens on 127.0.0.1; `url` is where. `hold`: model requests wait there, where somebody listens to it (P6).
    `tools`: who answers what is posted to /mcp; None: nobody does.
    """

    def __init__(self, gateway: str, token_file: Path, hold: Hold | None = None) -> None:
        self._gateway, self._token_file = gateway, token_file
        self.hold = hold or Hold()
        self.tools: Tools | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        """Bind a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        """Accept no more, and end the connections that are open."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._open.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._open.discard(task)
            writer.close()
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, PASSING):
            raise error

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return await _refuse(
                reader, writer, b"431 Request Header Fields Too Large", b"the request's head is too long"
            )
        if not well_formed(head):
            return await _refuse(reader, writer, b"400 Bad Request", b"the request's head is not well-formed HTTP/1.1")
        if head.startswith(b"CONNECT "):
            return await self._tunnel(head, reader, writer)
        return await self._at_door(head, reader, writer)

    async def _at_door(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = head.split(b" ", 2)[1]
        if self.tools is not None and target == MCP:
            return await _called(self.tools, head, reader, writer)
        path = door_of(target.decode("latin-1"))
        if path is None:
            return await _refuse(reader, writer, b"404 Not Found", b"only /model/, /git/ and http://HOST/ lead out")
        if path.startswith(EGRESS) and (body := await kept_body(head, reader, writer)) is not None:
            return await self._ask(partial(rewrite, head, path, call=uuid4().hex), body, reader, writer)
        held = path.startswith(MODEL) and head.startswith(b"POST ") and self.hold.listened
        return await (self._held if held else self._passed_on)(head, path, reader, writer)

    async def _held(self, head: bytes, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Wait for the driver's word, and then for nobody who is gone: that were a decision which nobody hears."""
        body = await kept_body(head, reader, writer, MAX_BODY)
        if refused := await self.hold.ask(path, body):
            await _refuse(reader, writer, b"403 Forbidden", refused, NO_RETRY)
        elif not reader.at_eof():
            await self._passed_on(head, path, reader, writer, body or b"")

    async def _passed_on(
        self, head: bytes, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes = b""
    ) -> None:
        """To the gateway, with what was read of the body, and whatever follows both ways."""
        token = await self._token()
        try:
            up_reader, up_writer = await connect(self._gateway)
        except OSError:
            return await _refuse(reader, writer, *NO_GATEWAY)
        try:
            up_writer.write(rewrite(head, path, token) + body)
            await _both_ways(reader, up_writer, up_reader, writer)
        finally:
            up_writer.close()

    async def _ask(
        self,
        rewritten: Callable[[bytes], bytes],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """A request to an allowed host, asked for until the gateway has an answer; each time with the current token."""

        async def request() -> bytes:
            return rewritten(await self._token()) + body

        try:
            answer = await ask(lambda: connect(self._gateway), request, reader.at_eof)
        except BROKEN:
            await _refuse(reader, writer, *NO_GATEWAY)
            return
        writer.write(answer.data)
        if answer.rest is not None:
            try:
                await _pump(answer.rest[0], writer)
            finally:
                answer.rest[1].close()

    async def _token(self) -> bytes:
        """The current one: it rotates."""
        return (await asyncio.to_thread(self._token_file.read_bytes)).strip()

    async def _tunnel(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        token = await self._token()
        try:
            gateway = await connect(self._gateway)
        except OSError:
            return await _refuse(reader, writer, *NO_GATEWAY)
        try:
            await carry(head.split(b" ")[1], token, (reader, writer), gateway)
        finally:
            gateway[1].close()


async def _called(tools: Tools, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One message of a client of ours; there is no stream that it could listen to."""
    body = await kept_body(head, reader, writer, MAX_BODY) if head.startswith(b"POST ") else None
    if body is None:
        await _refuse(reader, writer, b"405 Method Not Allowed", b"POST one JSON-RPC message, with its length")
        return
    answering = asyncio.create_task(tools(body))
    if not await _outlived(answering, reader):
        return
    answer = answering.result()
    status = b"202 Accepted" if answer is None else b"200 OK"
    writer.write(ANSWERED % (status, len(answer or b""), answer or b""))
    await writer.drain()


async def _outlived(answering: asyncio.Task[bytes | None], reader: asyncio.StreamReader) -> bool:
    """Whether its client waits for the answer to its end; for nobody, nothing goes on."""
    left = asyncio.create_task(reader.read())
    try:
        await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
        return answering.done()
    finally:
        for each in (answering, left):
            each.cancel()
        await asyncio.gather(answering, left, return_exceptions=True)


def well_formed(head: bytes) -> bool:
    """Every line is what it looks like to whoever reads it next.

    A bare CR or LF, a folded line or a name with a space in it could end a line, or the head, for the gateway and not
    for us: then a key of the client's would pass, or a second request with our token in it.
    """
    first, *lines = head[:-4].split(b"\r\n")
    return bool(REQUEST_LINE.fullmatch(first)) and all(HEADER_LINE.fullmatch(line) for line in lines)


def door_of(target: str) -> str | None:
    """The gateway's door for a request's target; None where none of them is meant."""
    if target.lower().startswith(PROXIED):
        target = f"/egress/http/{target[len(PROXIED) :]}"
    return target if target.startswith(PREFIXES) and "/../" not in target else None


def rewrite(head: bytes, path: str, token: bytes, call: str | None = None) -> bytes:
    """The request's head, for that door, with our token and without the client's own credentials; `call` names it."""
    first, *lines = head[:-4].split(b"\r\n")
    method, _, version = first.split(b" ")
    first = b" ".join([method, path.encode("latin-1"), version])
    kept = [line for line in lines if line.partition(b":")[0].lower() not in DROPPED]
    ours = [b"authorization: Bearer " + token, b"host: gateway", b"connection: close"]
    named = [b"x-moorage-call: " + call.encode()] if call else []
    return b"\r\n".join([first, *ours, *named, *kept]) + b"\r\n\r\n"


async def _refuse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: bytes, message: bytes, more: bytes = b""
) -> None:
    """Answer, `more` among its headers, and hear the client out for a moment: bytes left unread reset the connection,
    and the answer with it.
    """
    writer.write(REFUSED % (status, more, len(message), message))
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while await reader.read(CHUNK):
                pass


async def _both_ways(
    client: asyncio.StreamReader,
    to_gateway: asyncio.StreamWriter,
    gateway: asyncio.StreamReader,
    to_client: asyncio.StreamWriter,
) -> None:
    """Pass the request's body up until the answer has come down whole."""
    up = asyncio.create_task(_pump(client, to_gateway))
    try:
        await _pump(gateway, to_client)
    finally:
        up.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await up


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK):
        sink.write(data)
        await sink.drain()
