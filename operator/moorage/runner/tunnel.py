"""E8: a client's CONNECT on its way through the gateway: one request whose body goes out while its answer comes back.

Bodies are framed in chunks in both directions, so that an end is told from a break: an end is passed on as an end, a
break as a reset.
"""

from __future__ import annotations

import asyncio

CHUNK = 64 * 1024
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
REQUEST = (
    b"POST /tunnel/%s HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer %s\r\ntransfer-encoding: chunked\r\n"
    b"connection: close\r\n\r\n"
)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def carry(authority: bytes, token: bytes, client: Stream, gateway: Stream) -> None:
    """Open the tunnel and carry until both ends are done; the gateway's refusal is passed on as it is."""
    gateway[1].write(REQUEST % (authority.replace(b"/", b""), token))
    head = await gateway[0].readuntil(b"\r\n\r\n")
    if head.split(b" ", 2)[1] != b"200":
        client[1].write(head + await gateway[0].read())
        return
    client[1].write(ESTABLISHED)
    out = asyncio.create_task(_out(client[0], gateway[1]))
    try:
        await _back(gateway[0], client[1])
    except (OSError, EOFError, ValueError):
        client[1].transport.abort()
    finally:
        out.cancel()
        await asyncio.gather(out, return_exceptions=True)


async def _out(client: asyncio.StreamReader, gateway: asyncio.StreamWriter) -> None:
    try:
        while data := await client.read(CHUNK):
            gateway.write(b"%x\r\n%s\r\n" % (len(data), data))
            await gateway.drain()
    except OSError:
        gateway.transport.abort()
        raise
    gateway.write(b"0\r\n\r\n")


async def _back(gateway: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    """Raises EOFError where the answer ends before its last chunk."""
    while size := int((await gateway.readuntil(b"\r\n")).partition(b";")[0], 16):
        client.write((await gateway.readexactly(size + 2))[:size])
        await client.drain()
    client.write_eof()
