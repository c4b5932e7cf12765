"""HTTP at our doors: what a caller can make a server hold is bounded, and bad requests are told so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from moorage.testing.serving import listening

PIECE = b"x" * 8_192
ENOUGH = 8_192  # pieces: 64 MiB, many times what is taken, and what the sockets hold


class Door:
    """Answers with the size of a body, with the headers that it sees, or not before it is let go."""

    def __init__(self) -> None:
        self.asked, self.go, self.read, self.gone = 0, asyncio.Event(), 0, 0

    async def size(self, request: Request) -> Response:
        async for chunk in request.stream():
            self.read += len(chunk)
        return PlainTextResponse(str(self.read))

    async def headers(self, request: Request) -> Response:
        await request.body()
        return PlainTextResponse("\n".join(f"{name}: {value}" for name, value in request.headers.items()))

    async def wait(self, request: Request) -> Response:
        """Asks again and again whether the client is there."""
        self.asked += 1
        while not self.go.is_set():
            if await request.is_disconnected():
                self.gone += 1
                break
            await asyncio.sleep(0.002)
        return PlainTextResponse("done")

    async def stream(self, _: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await self.go.wait()
            yield b"second"

        return StreamingResponse(pieces())

    async def until(self, there: Callable[[], bool]) -> None:
        async with asyncio.timeout(40):
            while not there():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
def door() -> Door:
    return Door()


@contextlib.asynccontextmanager
async def connection(door: Door) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    routes = [
        Route("/size", door.size, methods=["POST"]),
        Route("/headers", door.headers, methods=["POST"]),
        Route("/wait", door.wait),
        Route("/stream", door.stream),
    ]
    async with listening(Starlette(routes=routes)) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            door.go.set()
            writer.close()


async def flood(writer: asyncio.StreamWriter, piece: bytes, pieces: int = ENOUGH) -> int:
    """How many bytes were taken before the other end closed."""
    taken = 0
    with contextlib.suppress(ConnectionError):
        for _ in range(pieces):
            writer.write(piece)
            await writer.drain()
            taken += len(piece)
    return taken


async def said(reader: asyncio.StreamReader) -> bytes:
    """All until the end; what was lost with a reset is no matter."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65_536):
            heard += piece
    return heard


HEADERS = b"x: y\r\n" * 1_024
ENDLESS = {
    "a path": (b"GET /", PIECE),
    "a header's name": (b"GET /wait HTTP/1.1\r\n", PIECE),
    "a header's value": (b"GET /wait HTTP/1.1\r\nx: ", PIECE),
    "headers": (b"GET /wait HTTP/1.1\r\n", HEADERS),
    "an extension of a chunk": (b"POST /size HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;", PIECE),
    "trailers": (b"POST /size HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", HEADERS),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_what_has_no_end_and_is_no_body_ends_the_connection(door: Door, what: str) -> None:
    begun, more = ENDLESS[what]
    async with connection(door) as (reader, writer):
        writer.write(begun)
        taken = await flood(writer, more)
        assert taken < ENOUGH * len(more) // 2
        heard = await said(reader)
        assert heard == b"" or heard.startswith(b"HTTP/1.1 431 ")


WITH_AN_END = {
    "a path": b" HTTP/1.1\r\n\r\n",
    "a header's name": b": y\r\n\r\n",
    "a header's value": b"\r\n\r\n",
    "headers": b"\r\n",
    "an extension of a chunk": b"\r\nx\r\n0\r\n\r\n",
    "trailers": b"\r\n",
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_the_same_with_an_end_is_understood(door: Door, what: str) -> None:
    begun, more = ENDLESS[what]
    door.go.set()
    async with connection(door) as (reader, writer):
        writer.write(begun + more + WITH_AN_END[what])
        status = await reader.readline()
        assert status.split()[1] == (b"404" if what == "a path" else b"200")


async def test_a_body_may_be_long(door: Door) -> None:
    async with connection(door) as (reader, writer):
        writer.write(b"POST /size HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (ENOUGH * len(PIECE)))
        await flood(writer, PIECE)
        assert (await said(reader)).endswith(b"%d" % (ENOUGH * len(PIECE)))


async def test_a_body_in_small_pieces_is_no_head(door: Door) -> None:
    async with connection(door) as (reader, writer):
        writer.write(b"POST /size HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(40):
            writer.write(b"1\r\nx\r\n" * 1_000)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        assert (await said(reader)).partition(b"\r\n\r\n")[2] == b"40000"


async def answered(reader: asyncio.StreamReader) -> list[bytes]:
    """The headers that the door has seen."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return (await reader.readexactly(size)).split(b"\n")


async def test_one_request_follows_another(door: Door) -> None:
    async with connection(door) as (reader, writer):
        for number in range(3):
            writer.write(b"POST /headers HTTP/1.1\r\nnumber: %d\r\ncontent-length: 3\r\n\r\nabc" % number)
            assert b"number: %d" % number in await answered(reader)


async def test_trailers_are_no_headers(door: Door) -> None:
    asked = b"POST /headers HTTP/1.1\r\nauthorization: Bearer ours\r\ntransfer-encoding: chunked\r\n\r\n"
    trailers = b"1\r\nx\r\n0\r\nx-moorage-call: theirs\r\nauthorization: Bearer theirs\r\n\r\n"
    async with connection(door) as (reader, writer):
        writer.write(asked + trailers)
        seen = await answered(reader)
        assert b"authorization: Bearer ours" in seen
        assert not [each for each in seen if b"theirs" in each]
        writer.write(b"POST /headers HTTP/1.1\r\nafter: trailers\r\ncontent-length: 0\r\n\r\n")
        assert b"after: trailers" in await answered(reader)


async def test_a_request_before_the_answer_to_the_last_ends_the_connection(door: Door) -> None:
    async with connection(door) as (reader, writer):
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
        await door.until(lambda: door.asked == 1)
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
        assert await said(reader) == b""
        await door.until(lambda: door.gone == 1)
        assert door.asked == 1


async def test_a_body_that_is_sent_ahead_is_kept_by_nobody(door: Door) -> None:
    """However often it is asked meanwhile whether the client is still there."""
    async with connection(door) as (reader, writer):
        writer.write(b"GET /wait HTTP/1.1\r\n\r\nPOST /size HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n")
        assert await flood(writer, PIECE) < ENOUGH * len(PIECE) // 2
        assert await said(reader) == b""


@pytest.mark.parametrize("behind", [b"GET /wait HTTP/1.1\r\n\r\n", b"no HTTP\r\n\r\n", PIECE * 12])
async def test_nothing_of_ours_is_put_into_an_answer(door: Door, behind: bytes) -> None:
    async with connection(door) as (reader, writer):
        writer.write(b"GET /stream HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"first\r\n")
        writer.write(behind)
        assert await said(reader) == b""


BAD = {
    "no HTTP": b"hello\r\n\r\n",
    "two lengths": b"POST /size HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    "a length and chunks": b"POST /size HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length below zero": b"POST /size HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "a space in a header's name": b"GET /wait HTTP/1.1\r\nx y: z\r\n\r\n",
    "a line of its own": b"GET /wait HTTP/1.1\r\nx: y\r\n folded\r\nz\0: \r\n\r\n",
}


@pytest.mark.parametrize("what", BAD)
async def test_a_request_of_two_meanings_is_none(door: Door, what: str) -> None:
    async with connection(door) as (reader, writer):
        writer.write(BAD[what])
        assert (await said(reader)).startswith(b"HTTP/1.1 400 ")
        assert door.asked == 0


async def test_a_client_that_goes_away_is_seen(door: Door) -> None:
    async with connection(door) as (_, writer):
        writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
        await door.until(lambda: door.asked == 1)
        writer.close()
        await door.until(lambda: door.gone == 1)
