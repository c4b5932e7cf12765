"""L4: a request to an allowed host on its way through the gateway, which may die meanwhile and come back.

The request gets a name here. As long as the agent has heard nothing, it is asked for again under that name, by which
the gateway knows it: what was done is answered from the journal, what nobody can know is told as such, and the agent,
whose connection holds, asks for nothing a second time. What is long passes as a stream, and breaks where the gateway
does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MAX_KEPT = 1024 * 1024
PATIENCE_S = 60.0
PAUSE_S = 0.2
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BUSY = b'"EffectBusy"'
BLANK = b"\r\n\r\n"
EFFECT = b"x-moorage-effect"  # on whatever is the target's
FAILED = (b"HTTP/1.1 500 ", b"HTTP/1.1 503 ")
BROKEN = (OSError, EOFError, TimeoutError)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Answer:
    """The gateway's: all of it or, where `rest` is given, its head, and the connection that the rest comes by."""

    data: bytes
    rest: Stream | None = None


def header(head: bytes, name: bytes) -> bytes | None:
    """The value of a header of a request or an answer."""
    lines = (line.partition(b":") for line in head[:-4].split(b"\r\n")[1:])
    return next((value.strip() for found, _, value in lines if found.lower() == name), None)


def length(head: bytes, most: int = MAX_KEPT) -> int | None:
    """How many bytes follow, where that is told and is few enough to be kept."""
    told = header(head, b"content-length")
    if told is None or not told.isdigit() or len(told) > 9:
        return None
    return size if (size := int(told)) <= most else None


async def kept_body(
    head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int = MAX_KEPT
) -> bytes | None:
    """The request's body; None where it has to pass as a stream, as one of more than `most` bytes has."""
    if header(head, b"transfer-encoding") is not None:
        return None
    size = 0 if header(head, b"content-length") is None else length(head, most)
    if size and header(head, b"expect") is not None:
        writer.write(CONTINUE)
    return None if size is None else await reader.readexactly(size)


async def ask(
    connect: Callable[[], Awaitable[Stream]],
    request: Callable[[], Awaitable[bytes]],
    gone: Callable[[], bool],
    patience_s: float = PATIENCE_S,
) -> Answer:
    """Send the request until there is an answer. `gone`: nobody waits for it any more. Raises what the last try did."""
    deadline, again = time.monotonic() + patience_s, False
    while True:
        try:
            answer = await _once(await connect(), await request())
        except BROKEN:
            if gone() or time.monotonic() > deadline:
                raise
        else:
            if not (_unserved(answer) or (again and _busy(answer))) or gone() or time.monotonic() > deadline:
                return answer
        again = True
        await asyncio.sleep(PAUSE_S)


async def _once(stream: Stream, request: bytes) -> Answer:
    reader, writer = stream
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        size = length(head)
        if size is None:
            return Answer(head, stream)
        answer = Answer(head + await reader.readexactly(0 if request.startswith(b"HEAD ") else size))
    except BaseException:
        writer.transport.abort()
        raise
    writer.close()
    return answer


def _unserved(answer: Answer) -> bool:
    """The gateway's own word, not the target's, that it can't say now: what came of the request it knows by its name,
    and an agent that asked anew would be taken to want it once more.
    """
    theirs = header(answer.data.partition(BLANK)[0] + BLANK, EFFECT) is not None
    return answer.rest is None and answer.data.startswith(FAILED) and not theirs


def _busy(answer: Answer) -> bool:
    """The first time's request is still under way in a gateway that lives."""
    return answer.rest is None and answer.data.startswith(b"HTTP/1.1 409 ") and BUSY in answer.data
