"""The first fetch of a new repository: one request for a pack, straight into `git index-pack`.

`git fetch` asks twice and starts four processes, each of them dear under gVisor. An empty repository has nothing to
negotiate: what is wanted is known by its id, and all of it comes. Whatever else there is to fetch is git's, and so is
telling why the gateway gave none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from urllib.parse import SplitResult, urlsplit

from moorage.workspace import wire
from moorage.workspace.errors import Corrupt, GitFailed, NetworkUnreachable, Refused
from moorage.workspace.git import Git

_CAPABILITIES = "side-band-64k ofs-delta no-progress agent=moorage"
_PACK_BAND = 1
_CHUNK = 1 << 16


async def fetch_whole(git: Git, url: str, wants: Sequence[str]) -> bool:
    """Everything that `wants` reach, as one pack that is checked to be whole. False: nothing came, ask git why."""
    where = urlsplit(url)
    if where.scheme != "http" or not where.hostname:
        return False
    try:
        async with contextlib.aclosing(_pack(where, wants)) as pack:
            await git.run("index-pack", "--stdin", "--check-self-contained-and-connected", stdin=pack)
    except (OSError, EOFError, Refused, NetworkUnreachable, Corrupt, GitFailed):
        return False
    return True


async def _pack(where: SplitResult, wants: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """The pack's bytes. Raises NetworkUnreachable or Refused where there are none, EOFError where they break off."""
    reader, writer = await asyncio.open_connection(where.hostname, where.port or 80)
    try:
        writer.write(_request(where, wants))
        await _head(reader)
        if await _line(reader) != b"NAK\n":
            raise Refused("no pack for this request")
        while line := await _line(reader):
            if line[0] == _PACK_BAND:
                yield line[1:]
            elif line[0] > _PACK_BAND + 1:
                raise Refused(line[1:].decode("utf-8", "replace"))
    finally:
        writer.close()


def _request(where: SplitResult, wants: Sequence[str]) -> bytes:
    """HTTP/1.0, so that the answer ends where the connection does, without chunks."""
    first, *more = dict.fromkeys(wants)
    lines = [f"want {first} {_CAPABILITIES}\n", *(f"want {want}\n" for want in more)]
    body = b"".join([*(wire.packet(line.encode()) for line in lines), wire.FLUSH, wire.packet(b"done\n")])
    head = (
        f"POST {where.path}/git-upload-pack HTTP/1.0",
        f"host: {where.netloc}",
        "content-type: application/x-git-upload-pack-request",
        f"content-length: {len(body)}",
    )
    return "\r\n".join([*head, "", ""]).encode() + body


async def _head(reader: asyncio.StreamReader) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused("the answer's head is too long") from None
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise NetworkUnreachable(head.partition(b"\r\n")[0].decode("latin-1"))


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next pkt-line's payload; empty for a flush."""
    size = wire.size_of(await reader.readexactly(4))
    return await reader.readexactly(size - 4) if size else b""
