"""How a model's provider is asked: once, with what the agent wrote, and each failure under a name of its own."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from moorage.gateway.providers import SILENT, Coming, HttpProviders, Outgoing, Unheard
from moorage.testing.serving import listening

Say = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@pytest.fixture
async def providers() -> AsyncIterator[HttpProviders]:
    async with HttpProviders() as made:
        yield made


@contextlib.asynccontextmanager
async def provider(say: Say) -> AsyncIterator[Outgoing]:
    """A server that reads one request and says what it is to say; what to send there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await say(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Outgoing(f"http://127.0.0.1:{port}/v1/messages", "", {"x-a": "b"}, b"{}", connect_s=40, read_s=40)
    finally:
        server.close()


def saying(*pieces: bytes) -> tuple[Say, list[bytes]]:
    """Whoever says this to each, and what it was asked."""
    heard: list[bytes] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return say, heard


@contextlib.asynccontextmanager
async def asked(providers: HttpProviders, outgoing: Outgoing) -> AsyncIterator[Coming]:
    answer = await providers.post(outgoing)
    try:
        yield answer
    finally:
        await answer.close()


async def whole(providers: HttpProviders, outgoing: Outgoing) -> bytes:
    async with asked(providers, outgoing) as answer:
        return b"".join([piece async for piece in answer.pieces()])


async def problem(providers: HttpProviders, outgoing: Outgoing) -> tuple[str, bool]:
    """How it failed, and whether it may have left."""
    with pytest.raises(Unheard) as caught:
        await whole(providers, outgoing)
    return caught.value.problem, caught.value.left


async def test_no_request_is_lost_on_a_connection_that_its_server_is_about_to_close(providers: HttpProviders) -> None:
    """uvicorn closes an idle one after 5 s. A loop that was busy until then finds that and the next request at once."""

    async def app(_: object, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with listening(app) as url:
        outgoing = Outgoing(f"{url}/v1/messages", "", {}, b"{}", connect_s=40, read_s=40)
        assert await whole(providers, outgoing) == b"ok"
        time.sleep(5.2)  # noqa: ASYNC251  the loop is to be busy
        assert await whole(providers, outgoing) == b"ok"


async def test_what_is_asked_leaves_as_it_came(providers: HttpProviders) -> None:
    say, heard = saying(HEAD + b"content-length: 2\r\n\r\nok")
    async with provider(say) as outgoing:
        headers = {"x-a": "sch\u00c3\u00b6n", "accept-encoding": "identity"}  # UTF-8, as ASGI tells bytes
        async with asked(providers, replace(outgoing, headers=headers, query="beta=true&q=a%2Fb")) as answer:
            assert [piece async for piece in answer.pieces()] == [b"ok"]
            assert (answer.status, dict(answer.headers)[b"content-type"]) == (200, b"text/event-stream")
    first, *rest = heard[0].removesuffix(b"\r\n\r\n{}").split(b"\r\n")
    assert first == b"POST /v1/messages?beta=true&q=a%2Fb HTTP/1.1"
    assert {line.partition(b":")[0].lower() for line in rest} == {
        b"host",
        b"x-a",
        b"accept-encoding",
        b"content-length",
    }
    assert "x-a: schön".encode() in rest


async def test_no_redirect_is_followed_and_no_cookie_kept(providers: HttpProviders) -> None:
    moved = b"HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\nset-cookie: a=b\r\nconnection: close\r\n\r\n"
    say, heard = saying(moved)
    async with provider(say) as outgoing:
        for _ in range(2):
            async with asked(providers, outgoing) as answer:
                assert answer.status == 307
    assert len(heard) == 2
    assert b"cookie" not in heard[1].lower()


@pytest.mark.rule("B2")
async def test_only_what_cant_have_left_is_told_as_such(providers: HttpProviders) -> None:
    async with provider(saying()[0]) as gone:
        assert await problem(providers, gone) == ("RemoteProtocolError", True)
    assert await problem(providers, gone) == ("ConnectError", False), "nobody listens any more"
    assert await problem(providers, replace(gone, url="http://[::1")) == ("InvalidURL", False)
    assert await problem(providers, replace(gone, url="ftp://127.0.0.1/x")) == ("UnsupportedProtocol", False)


@pytest.mark.parametrize(
    "said",
    [
        b"no HTTP\r\n\r\n",
        HEAD + b"content-length: 9\r\n\r\ncut",
        HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\ncut\r\n",
    ],
)
async def test_half_an_answer_is_none(providers: HttpProviders, said: bytes) -> None:
    async with provider(saying(said)[0]) as outgoing:
        assert await problem(providers, outgoing) == ("RemoteProtocolError", True)


@pytest.mark.parametrize("said", [b"", HEAD + b"content-length: 9\r\n\r\ncut"])
async def test_who_says_nothing_any_more_is_silent(providers: HttpProviders, said: bytes) -> None:
    over = asyncio.Event()

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await over.wait()

    async with provider(say) as outgoing:
        assert await problem(providers, replace(outgoing, read_s=0.05)) == (SILENT, True)
        over.set()


async def test_a_piece_passes_before_the_next_one_is_there(providers: HttpProviders) -> None:
    heard = asyncio.Event()

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await heard.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        await writer.drain()

    async with provider(say) as outgoing, asked(providers, outgoing) as answer:
        pieces = answer.pieces()
        assert await anext(pieces) == b"one"
        heard.set()
        assert [piece async for piece in pieces] == [b"two"]
