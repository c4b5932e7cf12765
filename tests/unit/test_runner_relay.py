"""The relay on loopback: what reaches the gateway, with whose token, and what doesn't."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.runner.relay import MAX_HEAD, Relay, rewrite, well_formed

ANSWER = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello"


class Gateway:
    """Keeps the bytes that come, answers, and closes."""

    def __init__(self) -> None:
        self.seen = b""
        self.chunks = [ANSWER]
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen += head
        for chunk in self.chunks:
            writer.write(chunk)
            await writer.drain()
            await self.gate.wait()
        writer.close()


@pytest.fixture(params=["tcp", "unix"])
async def relayed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Gateway, Relay, Path]]:
    gateway, token = Gateway(), tmp_path / "token"
    token.write_text("current\n")
    if request.param == "unix":
        server = await asyncio.start_unix_server(gateway.serve, tmp_path / "s")
        address = f"unix:{tmp_path / 's'}"
    else:
        server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    relay = Relay(address, token)
    await relay.start()
    yield gateway, relay, token
    await relay.stop()
    server.close()
    await server.wait_closed()


async def send(relay: Relay, data: bytes, within_s: float = 40) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(relay.url.rpartition(":")[2]))
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), within_s)
    writer.close()
    return answer


@pytest.mark.rule("L4")
async def test_the_token_is_put_in_and_the_clients_own_credentials_are_left_out(relayed) -> None:
    gateway, relay, _ = relayed
    head = (
        b"POST /model/v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer stolen\r\nX-Api-Key: sk\r\nA: b\r\n\r\n"
    )
    assert await send(relay, head) == ANSWER
    assert b"Bearer current" in gateway.seen
    assert b"stolen" not in gateway.seen
    assert b"sk" not in gateway.seen
    assert b"\r\nA: b\r\n" in gateway.seen
    assert gateway.seen.lower().count(b"authorization:") == gateway.seen.lower().count(b"host:") == 1


@pytest.mark.rule("L4")
async def test_a_rotated_token_is_used_at_once(relayed) -> None:
    gateway, relay, token = relayed
    await send(relay, b"GET /git/run.git/info/refs HTTP/1.1\r\nhost: x\r\n\r\n")
    token.write_text("rotated")
    await send(relay, b"GET /git/run.git/info/refs HTTP/1.1\r\nhost: x\r\n\r\n")
    assert gateway.seen.index(b"Bearer current") < gateway.seen.index(b"Bearer rotated")


@pytest.mark.parametrize(
    "target",
    [b"/v1/self", b"/", b"*", b"/modelx", b"/git/../v1/self", b"https://gateway/model/x", b"//model/v1/messages"],
)
async def test_no_other_door_is_reached(relayed, target) -> None:
    gateway, relay, _ = relayed
    answer = await send(relay, b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert gateway.seen == b""


@pytest.mark.rule("E8", "L4")
async def test_what_is_asked_of_a_proxy_goes_to_the_egress_door_which_decides(relayed) -> None:
    gateway, relay, _ = relayed
    head = b"POST http://api.example.com:80/v1/x?y=1 HTTP/1.1\r\nHost: api.example.com\r\nProxy-Connection: k\r\n\r\n"
    assert await send(relay, head) == ANSWER
    assert gateway.seen.startswith(b"POST /egress/http/api.example.com:80/v1/x?y=1 HTTP/1.1\r\n")
    assert b"Bearer current" in gateway.seen
    assert b"proxy-connection" not in gateway.seen.lower()
    assert (await send(relay, b"GET http://api.example.com/../x HTTP/1.1\r\nhost: x\r\n\r\n"))[9:12] == b"404"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /model/x HTTP/1.1\nhost: a\n\nGET /v1/self HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nhost: a\nauthorization: Bearer stolen\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nhost: a\rauthorization: Bearer stolen\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nauthorization : Bearer stolen\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\n authorization: Bearer stolen\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /model/x HTTP/2\r\nhost: a\r\n\r\n",
        b"GET  /model/x HTTP/1.1\r\nhost: a\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\0\0\0\r\n\r\n",
    ],
)
async def test_a_head_that_could_be_read_in_two_ways_goes_nowhere(relayed, head) -> None:
    gateway, relay, _ = relayed
    assert (await send(relay, head)).startswith(b"HTTP/1.1 400 ")
    assert gateway.seen == b""


async def test_a_head_without_an_end_is_refused(relayed) -> None:
    _, relay, _ = relayed
    head = b"GET /model/x HTTP/1.1\r\nx: " + b"y" * (2 * MAX_HEAD)
    assert (await send(relay, head)).startswith(b"HTTP/1.1 431 ")


async def test_an_answer_passes_chunk_by_chunk(relayed) -> None:
    gateway, relay, _ = relayed
    gateway.chunks = [b"HTTP/1.1 200 OK\r\n\r\n", b"first", b"second"]
    gateway.gate.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(relay.url.rpartition(":")[2]))
    writer.write(b"POST /model/v1/messages HTTP/1.1\r\nhost: x\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 40) == b"HTTP/1.1 200 OK\r\n\r\n"
    gateway.gate.set()
    assert await asyncio.wait_for(reader.read(), 40) == b"firstsecond"
    writer.close()


async def test_a_gateway_that_is_not_there_is_told(tmp_path) -> None:
    (tmp_path / "token").write_text("t")
    relay = Relay("http://127.0.0.1:9", tmp_path / "token")
    await relay.start()
    answer = await send(relay, b"GET /model/x HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")
    await relay.stop()


@given(st.binary(max_size=200))
def test_whatever_passes_carries_our_token_once_and_nobody_elses(rest) -> None:
    head = b"GET /model/x HTTP/1.1\r\nhost: a\r\n" + rest + b"\r\n\r\n"
    if head.index(b"\r\n\r\n") + 4 != len(head) or not well_formed(head):
        return
    lines = rewrite(head, "/model/x", b"ours").split(b"\r\n")
    assert [line for line in lines if line.lower().startswith(b"authorization")] == [b"authorization: Bearer ours"]
    assert not [line for line in lines if b"\n" in line or b"\r" in line]


async def test_stopping_ends_what_is_open_in_silence(relayed) -> None:
    gateway, relay, _ = relayed
    gateway.gate.clear()
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    open_ones = [asyncio.create_task(send(relay, b"GET /model/x HTTP/1.1\r\n\r\n")) for _ in range(3)]
    half = asyncio.create_task(send(relay, b"GET /model/x HTT"))
    async with asyncio.timeout(40):
        while gateway.seen.count(b"\r\n\r\n") < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # the half one is mostly there by then, too
    await asyncio.wait_for(relay.stop(), 40)
    gateway.gate.set()
    assert [await each for each in (*open_ones, half)] == [ANSWER] * 3 + [b""]
    await asyncio.sleep(0.1)
    assert complaints == []


class Dying:
    """A gateway that breaks a few connections, at its gate, before it answers; keeps every request."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers, self.seen = list(answers), []
        self.came, self.gate = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(re.search(rb"content-length: (\d+)", head.lower()).group(1))
        self.seen.append(head + await reader.readexactly(size))
        self.came.set()
        await self.gate.wait()
        if answer := self.answers.pop(0):
            writer.write(answer)
            await writer.drain()
        writer.close()


WHOLE = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok"
HALF = b"HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\nok"
BUSY = b'HTTP/1.1 409 Conflict\r\ncontent-length: 23\r\n\r\n{"reason":"EffectBusy"}'


@pytest.mark.rule("L4", "E2")
async def test_a_request_whose_gateway_dies_is_asked_for_again_under_its_name_and_the_current_token(tmp_path) -> None:
    gateway, token = Dying(None, HALF, BUSY, WHOLE), tmp_path / "token"
    token.write_text("first")
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    relay = Relay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token)
    await relay.start()
    head = b"POST http://a.example.com/{token} HTTP/1.1\r\nx-moorage-call: mine\r\ncontent-length: 4\r\n\r\nbody"
    asked = asyncio.create_task(send(relay, head, within_s=50))
    await gateway.came.wait()
    token.write_text("second")
    gateway.gate.set()
    assert await asked == WHOLE
    await relay.stop()
    server.close()
    assert [b"Bearer first" in seen for seen in gateway.seen] == [True, False, False, False]
    assert b"Bearer second" in gateway.seen[-1]
    calls = {re.search(rb"x-moorage-call: (\S+)\r\n", seen).group(1) for seen in gateway.seen}
    assert len(calls) == 1
    assert calls != {b"mine"}
    assert all(b"/{token} HTTP/1.1\r\n" in seen and seen.endswith(b"\r\n\r\nbody") for seen in gateway.seen)


AWAY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}"
THEIRS = b"HTTP/1.1 503 Service Unavailable\r\nx-moorage-effect: http-1\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.rule("L4", "E2")
async def test_what_the_gateway_could_not_say_is_asked_for_again_under_its_name(tmp_path) -> None:
    """Its store was away when it had an answer: an agent that asked anew would have its order twice. What the target
    itself says of that kind is the agent's to hear.
    """
    gateway = Dying(AWAY, FAILED, THEIRS)
    gateway.gate.set()
    (tmp_path / "token").write_text("token")
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    relay = Relay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", tmp_path / "token")
    await relay.start()
    head = b"POST http://a.example.com/ HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody"
    assert await send(relay, head) == THEIRS
    await relay.stop()
    server.close()
    assert len({re.search(rb"x-moorage-call: (\S+)\r\n", seen).group(1) for seen in gateway.seen}) == 1
    assert len(gateway.seen) == 3


@pytest.mark.parametrize("head", [b"content-length: 2000000\r\n", b"transfer-encoding: chunked\r\n"])
async def test_what_is_long_or_of_unknown_length_passes_once_as_a_stream(relayed, head) -> None:
    gateway, relay, _ = relayed
    assert await send(relay, b"POST http://a.example.com/ HTTP/1.1\r\n" + head + b"\r\n") == ANSWER
    assert b"x-moorage-call" not in gateway.seen
