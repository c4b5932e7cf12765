"""One request to the gateway on one connection, by the standard library alone.

An HTTP library costs a sandbox more time at its start than all else that the runner imports. What is spoken here is
HTTP/1.0: no chunks, no connection kept, an answer that ends where its length says or the connection does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

CONNECT_S = 5.0
MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024


class NoAnswer(RuntimeError):
    """The gateway was not reached, or broke off; the request may have been carried out."""


@dataclass(frozen=True)
class Answer:
    """Status and body."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """2xx."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES


async def connect(gateway: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to `http://host:port` or `unix:/path`. Raises OSError."""
    if gateway.startswith("unix:"):
        return await asyncio.open_unix_connection(gateway.removeprefix("unix:"), limit=MAX_HEAD)
    where = urlsplit(gateway)
    return await asyncio.open_connection(where.hostname, where.port or 80, limit=MAX_HEAD)


async def request(gateway: str, line: str, headers: Mapping[str, str], body: bytes = b"", *, within_s: float) -> Answer:
    """Send `METHOD /path` and hear the whole answer. Raises NoAnswer, also when it takes longer than `within_s`."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await connect(gateway)
        try:
            async with asyncio.timeout(within_s):
                writer.write(_head(line, {**headers, "content-length": str(len(body))}) + body)
                return await _answer(reader)
        finally:
            writer.close()
    except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError) as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from None


def _head(line: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{line} HTTP/1.0", "host: gateway", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{first[:80]!r} is no HTTP")
    fields = (line.partition(":") for line in lines)
    length = next((int(value) for name, _, value in fields if name.lower() == "content-length"), None)
    if length is not None and length > MAX_BODY:
        raise ValueError(f"an answer of {length} bytes")
    body = await reader.read(-1) if length is None else await reader.readexactly(length)
    return Answer(int(rest[:3]), body)
