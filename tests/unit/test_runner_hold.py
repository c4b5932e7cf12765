"""P6: requests to the model that wait in the relay, and what becomes of them whoever goes away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.runner.hold import ENDING, Hold
from moorage.runner.relay import Relay

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
BODY = b'{"messages":[]}'


def post(path: str = "/model/v1/messages", body: bytes = BODY) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


class Upstream:
    """Answers every request, and keeps what was asked."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")), 0)
        self.seen.append(head + await reader.readexactly(size))
        writer.write(ANSWER)
        await writer.drain()
        writer.close()


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    made = Upstream()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


@pytest.fixture
async def relay(upstream: tuple[Upstream, str], tmp_path: Path) -> AsyncIterator[Relay]:
    (tmp_path / "token").write_text("current")
    made = Relay(upstream[1], tmp_path / "token")
    await made.start()
    yield made
    await made.stop()


async def asking(relay: Relay, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(relay.url.rpartition(":")[2]))
    writer.write(data)
    return reader, writer


async def answer(relay: Relay, data: bytes) -> bytes:
    reader, writer = await asking(relay, data)
    async with asyncio.timeout(30):
        told = await reader.read()
    writer.close()
    return told


@pytest.mark.rule("P6")
async def test_a_request_leaves_when_its_driver_says_so_and_whole(relay: Relay, upstream) -> None:
    with relay.hold.requests() as requests:
        asked = asyncio.create_task(answer(relay, post()))
        held = await anext(requests)
        assert (held.path, held.body) == ("/model/v1/messages", BODY)
        assert upstream[0].seen == []
        held.pass_on()
        assert await asked == ANSWER
    assert upstream[0].seen[0].endswith(BODY)
    assert b"Bearer current" in upstream[0].seen[0]


@pytest.mark.rule("P6")
async def test_where_nobody_listens_nothing_waits(relay: Relay) -> None:
    assert await answer(relay, post()) == ANSWER
    with relay.hold.requests():
        pass
    assert await answer(relay, post()) == ANSWER


@pytest.mark.parametrize(
    "data", [b"GET /model/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", post("/git/run.git/git-upload-pack")]
)
async def test_what_asks_no_model_never_waits(relay: Relay, data: bytes) -> None:
    with relay.hold.requests():
        assert await answer(relay, data) == ANSWER


async def test_what_is_refused_is_told_and_never_leaves(relay: Relay, upstream) -> None:
    with relay.hold.requests() as requests:
        asked = asyncio.create_task(answer(relay, post()))
        (await anext(requests)).refuse(b"Stopping: no")
        told = await asked
    assert told.startswith(b"HTTP/1.1 403 ")
    assert b"x-should-retry: false" in told
    assert told.endswith(b"Stopping: no")
    assert upstream[0].seen == []


@pytest.mark.rule("P6", "X2")
async def test_whoever_stops_listening_leaves_nothing_waiting(relay: Relay) -> None:
    with relay.hold.requests() as requests:
        asked = [asyncio.create_task(answer(relay, post())) for _ in range(3)]
        held = [await anext(requests) for _ in range(3)]
        assert held[0].refused == b""
    told = await asyncio.gather(*asked)
    assert all(each.endswith(ENDING) for each in told)


@pytest.mark.rule("P6")
async def test_who_has_hung_up_is_not_asked_for(relay: Relay, upstream) -> None:
    with relay.hold.requests() as requests:
        _, writer = await asking(relay, post())
        held = await anext(requests)
        writer.close()
        await writer.wait_closed()
        again = asyncio.create_task(answer(relay, post(body=b"{}")))  # its client tries anew
        second = await anext(requests)
        held.pass_on()
        second.pass_on()
        assert await again == ANSWER
    await relay.stop()
    assert [each[-2:] for each in upstream[0].seen] == [b"{}"]


@pytest.mark.parametrize(
    "head",
    [
        b"POST /model/v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /model/v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n",
    ],
)
async def test_a_body_that_is_not_told_or_too_long_waits_unread(relay: Relay, head: bytes) -> None:
    with relay.hold.requests() as requests:
        _, writer = await asking(relay, head)
        held = await anext(requests)
        assert held.body is None
        held.refuse(b"no")
        writer.close()


async def test_a_relay_that_stops_leaves_no_request_behind(relay: Relay) -> None:
    with relay.hold.requests() as requests:
        asked = asyncio.create_task(answer(relay, post()))
        await anext(requests)
        await relay.stop()
        with contextlib.suppress(ConnectionError):
            await asked


async def test_a_hold_without_a_relay_settles_each_request_once() -> None:
    hold = Hold()
    with hold.requests() as requests:
        asked = asyncio.create_task(hold.ask("/model/v1/messages", BODY))
        held = await anext(requests)
        held.pass_on()
        held.refuse(b"too late")
        assert await asked == b""
