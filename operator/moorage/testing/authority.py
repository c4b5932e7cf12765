"""An HTTP service that has effects, keeps a log of every request, and breaks connections when it is told to.

    async with Authority().listening() as authority:
        authority.port, authority.log, authority.committed

As a program, `python -m moorage.testing.authority --port 8000`, it prints a line of JSON per request.

It keeps the contract of an idempotency key: a second request of the same key gets the answer of the first, and has no
effect. What has no key has an effect each time. `cuts` says, for the requests to come, where the connection breaks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

READS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_HEAD = 64 * 1024


class Cut(StrEnum):
    """Where a connection breaks, or what else becomes of an answer."""

    BEFORE = "before"  # nothing has happened
    AFTER = "after"  # it has happened, and nobody hears of it
    WITHIN = "within"  # it has happened, the head was sent and the body wasn't
    FAILS = "fails"  # it has happened, and the host answers 503


@dataclass(frozen=True)
class Seen:
    """One request as it came; header names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Authority:
    """`log`: every request; `committed`: every effect, by its body; `cuts`: taken from the front, one per request.

    `status`: what is answered instead of 201, without any effect, while it is set. `waits`: while it is clear, requests
    are read and nothing else happens. `gzips`: answers are compressed. `tell` hears of each request.
    """

    key_header: str = "idempotency-key"
    log: list[Seen] = field(default_factory=list)
    committed: list[bytes] = field(default_factory=list)
    cuts: list[Cut | None] = field(default_factory=list)
    status: int | None = None
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    gzips: bool = False
    port: int = 0
    tell: Callable[[Seen], None] | None = None
    _answers: dict[str, bytes] = field(default_factory=dict)

    @property
    def duplicates(self) -> int:
        """How many effects happened more than once."""
        return sum(times - 1 for times in Counter(self.committed).values())

    @contextlib.asynccontextmanager
    async def listening(
        self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Authority]:
        """Serve; without a port on a free one, with `tls` as https."""
        self.waits.set()
        server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEAD, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(await _read(reader), writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever asked went away
        finally:
            writer.close()

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        self.log.append(seen)
        self.came.set()
        if self.tell is not None:
            self.tell(seen)
        await self.waits.wait()
        cut = self.cuts.pop(0) if self.cuts else None
        if cut is Cut.BEFORE:
            return reset(writer)
        status, body = self._outcome(seen)
        if cut is Cut.AFTER:
            return reset(writer)
        if cut is Cut.FAILS:
            status, body = 503, b"{}"
        body = gzip.compress(body) if self.gzips else body
        head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        writer.write((head + ("content-encoding: gzip\r\n\r\n" if self.gzips else "\r\n")).encode())
        await writer.drain()
        if cut is Cut.WITHIN:
            return reset(writer)
        writer.write(b"" if seen.method == "HEAD" else body)
        await writer.drain()
        return None

    def _outcome(self, seen: Seen) -> tuple[int, bytes]:
        if self.status is not None:
            return self.status, b"" if self.status == 204 else b"{}"
        if seen.method in READS:
            return 200, json.dumps({"path": seen.target, "effects": len(self.committed)}).encode()
        key = seen.headers.get(self.key_header)
        if key is None or key not in self._answers:
            self.committed.append(seen.body)
            answer = json.dumps({"number": len(self.committed)}).encode()
            if key is None:
                return 201, answer
            self._answers[key] = answer
        return 201, self._answers[key]


async def _read(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Seen(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection as a machine that dies does: with a reset."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def _print(seen: Seen) -> None:
    told = {
        "method": seen.method,
        "target": seen.target,
        "headers": dict(seen.headers),
        "body": seen.body.decode("latin-1"),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


async def _forever(host: str, port: int) -> None:
    async with Authority(tell=_print).listening(host, port):
        await asyncio.Event().wait()


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m moorage.testing.authority", description="A service with effects.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    args = parser.parse_args(argv)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_forever(args.host, args.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
