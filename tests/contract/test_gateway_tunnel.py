"""Tunnels through the runner's real relay: allowed hosts only, carried byte by byte, counted, ended with the run."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, resolved, result

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedEgress, ResolvedSandbox
from moorage.gateway import watching
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.tunnel import CHUNK
from moorage.runner.relay import Relay
from moorage.store.errors import StoreBusy
from moorage.store.sqlite import SqliteStore
from moorage.testing.authority import reset
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

pytestmark = pytest.mark.timeout(120)  # a wait within may take 30 s

HOSTS = dict.fromkeys(
    ("opaque.example.com", "keyed.example.com", "none.example.com", "narrow.example.com"), "127.0.0.1"
)


@dataclass
class Echo:
    """A host that gives back what it gets, and ends after the client; `came` counts connections."""

    port: int = 0
    came: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        self.writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@dataclass
class Place:
    """A run at work behind its relay."""

    gateway: LocalGateway
    operator: Operator
    runner: Any
    relay: Relay
    port: int

    async def connect(self, host: str, port: int | None = None) -> tuple[bytes, Any]:
        """The first line of what the proxy says, and the tunnel."""
        stream = await asyncio.open_connection("127.0.0.1", int(self.relay.url.rpartition(":")[2]))
        authority = f"{host}.example.com:{port or self.port}"
        stream[1].write(f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n".encode())
        head = await asyncio.wait_for(stream[0].readuntil(b"\r\n\r\n"), 30)
        return head.partition(b"\r\n")[0], stream

    async def effects(self) -> list[Any]:
        return (await self.operator.state())["effects"]

    async def settled(self) -> Any:
        """The only effect, once it is closed."""
        for _ in range(600):
            (effect,) = await self.effects()
            if effect["status"] not in {"intended", "dispatched"}:
                return effect
            await asyncio.sleep(0.05)
        raise AssertionError("the tunnel is still open")


@pytest.fixture
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, upstream: GitServer, echo: Echo
) -> AsyncIterator[Place]:
    """A test may say which limits its run has."""
    store = SqliteStore(tmp_path / "journal.db")
    gateway = LocalGateway(
        tmp_path, store=store, settings=GatewaySettings(egress_private=("127.0.0.0/8",)), hosts=HOSTS
    )
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    (tmp_path / "token").write_text("token-of-p1")
    common: dict[str, Any] = {"scheme": "http", "port": echo.port}
    hosts = [ResolvedEgress(host=f"{name}.example.com", effects=name, **common) for name in ("opaque", "keyed", "none")]
    narrow = ResolvedEgress(host="narrow.example.com", paths=("/v1",), **common)
    async with gateway.serving():
        limits = getattr(request, "param", ResolvedLimits())
        box = ResolvedSandbox(egress=(*hosts, narrow))
        operator = Operator(gateway, resolved(upstream, sandbox=box, limits=limits))
        runner = await agent_at_work(gateway, operator)
        relay = Relay(gateway.url or "", tmp_path / "token")
        await relay.start()
        yield Place(gateway, operator, runner, relay, echo.port)
        await relay.stop()
    await store.close()


async def exchange(stream: Any, data: bytes) -> bytes:
    """Send while reading, end, and read to the end."""
    reader, writer = stream

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    _, back = await asyncio.gather(send(), asyncio.wait_for(reader.read(), 30))
    writer.close()
    return back


@pytest.mark.rule("E8")
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_a_tunnel_carries_bytes_both_ways_and_is_counted(place: Place, size: int) -> None:
    line, stream = await place.connect("opaque")
    assert line == b"HTTP/1.1 200 Connection established"
    sent = os.urandom(size)
    assert await exchange(stream, sent) == sent
    effect = await place.settled()
    assert (effect["kind"], effect["level"], effect["status"]) == ("tunnel", "opaque", "confirmed")
    assert effect["detail"] == f"{size} bytes out, {size} bytes back"
    types = [r.type for r in await place.operator.records() if r.effect_id]
    assert types == ["EFFECT_INTENT", "EFFECT_DISPATCHED", "EFFECT_RECEIPT"]


async def used(place: Place) -> dict[str, int]:
    return (await place.operator.state())["usage"]


@pytest.mark.rule("B3", "B2")
@pytest.mark.parametrize("place", [ResolvedLimits(egress_hard_bytes=200_000)], indirect=True)
@pytest.mark.parametrize(("host", "effects", "end"), [("opaque", 1, "unknown"), ("none", 0, "not_dispatched")])
async def test_a_tunnel_is_cut_where_the_runs_bytes_are_used_up(
    place: Place, host: str, effects: int, end: str
) -> None:
    _, stream = await place.connect(host)
    with contextlib.suppress(OSError):
        await exchange(stream, os.urandom(3_000_000))
    effect = await place.settled()
    assert effect["status"] == end
    assert "the run's egress limit of 200000 bytes is used up" in effect["detail"]
    spent = await used(place)
    assert (spent["effects"], 200_000 - 2 * CHUNK < spent["egress_bytes"] < 200_000 + 2 * CHUNK) == (effects, True)
    line, again = await place.connect("none")
    assert line.startswith(b"HTTP/1.1 403 ")
    assert b"BudgetExhausted" in await asyncio.wait_for(again[0].read(), 30)
    again[1].close()
    assert (await place.operator.state())["pause"]["limit"] == "egress_hard_bytes"


@pytest.mark.rule("B2", "B3")
@pytest.mark.parametrize("place", [ResolvedLimits(effects_hard=1)], indirect=True)
async def test_a_tunnel_with_effects_is_one_and_one_without_is_none(place: Place, echo: Echo) -> None:
    assert await exchange((await place.connect("none"))[1], b"read") == b"read"
    assert await exchange((await place.connect("opaque"))[1], b"write") == b"write"
    line, again = await place.connect("opaque")
    assert line.startswith(b"HTTP/1.1 403 ")
    again[1].close()
    assert ((await used(place))["effects"], echo.came) == (1, 2)


@pytest.mark.rule("T3", "E8")
@pytest.mark.parametrize(("host", "port"), [("other", None), ("opaque", 1), ("narrow", None)])
async def test_no_tunnel_leads_anywhere_else(place: Place, echo: Echo, host: str, port: int | None) -> None:
    line, stream = await place.connect(host, port)
    assert line.startswith(b"HTTP/1.1 403 ")
    assert b"EgressForbidden" in await asyncio.wait_for(stream[0].read(), 30)
    stream[1].close()
    assert (echo.came, await place.effects()) == (0, [])


async def cancelled(place: Place, _stream: Any, _echo: Echo) -> None:
    await ok(await place.operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))


async def agent_done(place: Place, _stream: Any, _echo: Echo) -> None:
    await ok(await place.runner.post("/v1/self/result", json=result(None, outcome="failed", reason="Exited")))


async def taken_over(place: Place, _stream: Any, _echo: Echo) -> None:
    await ok(await place.operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "reason": "PodLost", "message": ""}))


async def sandbox_dies(place: Place, _stream: Any, _echo: Echo) -> None:
    await place.relay.stop()


async def host_resets(_place: Place, _stream: Any, echo: Echo) -> None:
    reset(echo.writers[0])


CUTS: list[Callable[..., Any]] = [cancelled, agent_done, taken_over, sandbox_dies, host_resets]


@pytest.mark.rule("E8", "I8", "X2")
@pytest.mark.parametrize("end", CUTS)
@pytest.mark.parametrize(("host", "status"), [("opaque", "unknown"), ("keyed", "unknown"), ("none", "not_dispatched")])
async def test_a_tunnel_ends_with_its_run_and_is_unknown_where_it_may_have_had_effects(
    place: Place, echo: Echo, end: Callable[..., Any], host: str, status: str
) -> None:
    line, (reader, writer) = await place.connect(host)
    assert b" 200 " in line
    writer.write(b"half")
    assert await asyncio.wait_for(reader.readexactly(4), 30) == b"half"
    await end(place, (reader, writer), echo)
    effect = await place.settled()
    assert effect["status"] == status
    assert "4 bytes out, 4 bytes back; cut: " in effect["detail"]
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


@dataclass
class Spoken:
    """A tunnel that a test holds as its server would: `task` answers, `said` is what it has said."""

    place: Place
    said: list[Any] = field(default_factory=list)
    heard: int = 0

    def start(self) -> asyncio.Task[None]:
        path = f"/tunnel/opaque.example.com:{self.place.port}"
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer token-of-p1")],
        }
        return asyncio.create_task(self.place.gateway(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        self.heard += 1
        if self.heard > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"half", "more_body": True}

    async def _send(self, message: Any) -> None:
        self.said.append(message)

    async def carried(self) -> None:
        for _ in range(600):
            if b"".join(m.get("body", b"") for m in self.said) == b"half":
                return
            await asyncio.sleep(0.05)
        raise AssertionError("nothing came back")

    @property
    def ended(self) -> bool:
        return any(not m.get("more_body", True) for m in self.said)


@pytest.mark.rule("E4", "E8", "I8")
async def test_a_tunnel_of_a_gateway_that_stops_is_unknown_and_has_no_end(place: Place) -> None:
    spoken = Spoken(place)
    task = spoken.start()
    await spoken.carried()
    task.cancel()
    await asyncio.wait([task])
    effect = await place.settled()
    assert (task.cancelled(), spoken.ended, effect["status"]) == (True, False, "unknown")
    assert effect["detail"] == "4 bytes out, 4 bytes back; cut: the gateway ended it"


@pytest.mark.rule("E4", "E8", "I8")
async def test_a_tunnel_whose_run_can_not_be_read_is_unknown_and_has_no_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_MS", 20)
    spoken = Spoken(place)
    task = spoken.start()
    await spoken.carried()

    async def broken(uid: str) -> Any:
        raise StoreBusy(f"{uid} can't be read now")

    with monkeypatch.context() as while_it_is_broken:
        while_it_is_broken.setattr(place.gateway.deps.store, "get", broken)
        await asyncio.wait([task])
    effect = await place.settled()
    assert (spoken.ended, effect["status"]) == (False, "unknown")
    assert "cut: nobody can tell whether the run goes on (StoreBusy)" in effect["detail"]


@pytest.mark.rule("E8", "F3")
async def test_a_tunnel_ends_where_another_gateway_raised_the_fence(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_MS", 20)
    spoken = Spoken(place)
    task = spoken.start()
    await spoken.carried()
    async with LocalGateway(
        tmp_path / "other", store=place.gateway.deps.store, blobs=place.gateway.deps.blobs
    ) as other:
        operator = Operator(other, place.operator.spec)
        await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "reason": "PodLost", "message": ""}))
        await ok(await operator.fence(2))
        await asyncio.wait([task])
    effect = await place.settled()
    assert (spoken.ended, effect["status"]) == (False, "unknown")
    assert "cut: " in effect["detail"]


async def test_a_host_that_is_not_there_was_not_reached(place: Place, echo: Echo, upstream: GitServer) -> None:
    gone = ResolvedSandbox(egress=(ResolvedEgress(host="none.example.com", port=9),))
    operator = Operator(place.gateway, resolved(upstream, "u2", sandbox=gone))
    await operator.admit()
    await ok(await operator.fence(1))
    await operator.register("q1", 1)
    runner = place.gateway.sandbox("q1", "team-a")
    started = {"record_id": "s", "type": "AGENT_STARTED", "payload": {}, "recorded_at": 7}
    await ok(await runner.post("/v1/self/records", json={"epoch": 1, "records": [started]}))
    answer = await runner.post("/tunnel/none.example.com:9")
    assert (answer.status_code, answer.json()["reason"]) == (502, "TargetUnreachable")
    assert [e["status"] for e in (await operator.state())["effects"]] == ["not_dispatched"]


async def test_tunnels_that_are_asked_for_at_once_are_no_more_than_a_run_may_have(place: Place) -> None:
    most = place.gateway.deps.settings.egress_open
    streams = await asyncio.gather(*(place.connect("none") for _ in range(most + 8)))
    assert sorted(line[:12] for line, _ in streams) == [b"HTTP/1.1 200"] * most + [b"HTTP/1.1 429"] * 8
    for _, (_, writer) in streams:
        writer.close()


async def test_a_run_has_so_many_tunnels_at_once_and_no_more(place: Place) -> None:
    most = place.gateway.deps.settings.egress_open
    streams = [await place.connect("none") for _ in range(most)]
    assert {line for line, _ in streams} == {b"HTTP/1.1 200 Connection established"}
    line, (_, refused) = await place.connect("none")
    assert line.startswith(b"HTTP/1.1 429 ")
    refused.close()
    for _, (_, writer) in streams:
        writer.close()
