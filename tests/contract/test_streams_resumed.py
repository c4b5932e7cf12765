"""Whoever follows a run over gateways that die has each line once, in order, and the end (M4, M5).

Real processes, SIGKILLed at moments that the reader's own progress chooses.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.killpoint_places import elsewhere
from tests.gateway_killed import Killed, Patient, Service, broken_off, meeting, running
from tests.gateway_script import resolved, told

from moorage.api.sse import Event
from moorage.cli.evidence import Evidence
from moorage.cli.following import Following
from moorage.points import Point
from moorage.runner.watch import background
from moorage.testing.gateway import OPERATOR_TOKEN
from moorage.testing.gitserver import GitServer
from moorage.testing.killpoints import Fault, Shot, fired

pytestmark = pytest.mark.timeout(180)  # processes are started anew, a few times

LINES = 60


def line(number: int) -> str:
    return f"line {number}\n"


def following(port: int, notes: list[str], door: str = "logs") -> Following:
    headers = {"authorization": f"Bearer {OPERATOR_TOKEN}"}
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers)
    return Evidence(client, "u1", "fix").following(door, {"follow": "true"}, notes.append)


async def begun(port: int, upstream: GitServer) -> None:
    """A run whose agent may write."""
    operator = Patient(port, OPERATOR_TOKEN)
    spec = resolved(upstream)
    await operator("PUT", "/v1/runs/u1", spec.model_dump(mode="json"))
    await operator("POST", "/v1/runs/u1/fence", {"epoch": 1, "attempt": 1, "holder": "a"})
    await operator("POST", "/v1/runs/u1/pods", {"pod_uid": "p1", "pod_name": "p1", "epoch": 1, "role": "runner"})
    await operator.http.aclose()


async def soon(_: int) -> None:
    """A moment, whatever the reader does."""
    await asyncio.sleep(0.05)


async def writes(ports: list[int], last: int = LINES, *, pace: Callable[[int], Any] = soon) -> None:
    """Each line at the next gateway, until it is acknowledged; `pace` says when the next may follow. Then the end."""
    runners, operator = [Patient(port, "token-of-p1") for port in ports], Patient(ports[0], OPERATOR_TOKEN)
    try:
        for number in range(last):
            body = told("AGENT_OUTPUT", {"stream": "stdout", "text": line(number)}, str(number))
            await runners[number % len(runners)]("POST", "/v1/self/records", body)
            await pace(number + 1)
        end = {"record_id": "end", "type": "RUN_FAILED", "payload": {"reason": "AgentFailed", "message": ""}}
        await operator("POST", "/v1/runs/u1/records", {"epoch": 1, "records": [end | {"recorded_at": 5}]})
    finally:  # the reader may be through before the end is acknowledged
        for client in (*runners, operator):
            await client.http.aclose()


class Reader:
    """Has the writer wait until it has what was written, so that each line is told by itself at any speed."""

    def __init__(self) -> None:
        self._read, self._news = 0, asyncio.Condition()

    async def at(self, count: int) -> None:
        async with self._news:
            self._read = count
            self._news.notify_all()

    async def has(self, count: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self._read >= count)


async def seen(events: AsyncGenerator[Event, None], at: Callable[[int], Any]) -> list[Event]:
    """All events; `at` may do something once so many have come."""
    found = []
    async with aclosing(events):
        async for event in events:
            found.append(event)
            await at(len(found))
    return found


def once_each(found: list[Event]) -> None:
    """Every line, in order, and the end behind them."""
    assert "".join(json.loads(e.data)["text"] for e in found if e.kind == "output") == "".join(map(line, range(LINES)))
    assert [event.kind for event in found] == ["output"] * LINES + ["end"]
    ids = [event.id or 0 for event in found]
    assert ids == sorted(set(ids))


@pytest.mark.rule("M4", "M5")
async def test_a_follower_of_a_gateway_that_is_killed_has_each_line_once(tmp_path: Path, upstream: GitServer) -> None:
    async with running(tmp_path) as gateway:
        await begun(gateway.port, upstream)

        async def kill(count: int) -> None:
            if count in {1, 15, 16, 40}:
                await gateway.kill()
                await gateway.start()

        stream, others = following(gateway.port, notes := []), [following(gateway.port, []) for _ in range(5)]
        async with background(writes([gateway.port])):
            found, *rest = await asyncio.gather(
                seen(stream.events(), kill), *(seen(other.events(), nothing) for other in others)
            )
        for events in (found, *rest):
            once_each(events)
        assert gateway.kills == 4
        assert stream.cursor == found[-1].id
        timeline = await seen(following(gateway.port, [], "timeline").events(), nothing)
        assert [event.kind for event in timeline] == ["record"] * (len(timeline) - 1) + ["end"]
        assert notes.count("the gateway is back") <= 4
        for each in (stream, *others):
            await each.client.aclose()


async def nothing(_: int) -> None:
    """Only look."""


@pytest.mark.rule("M4", "M5")
async def test_a_follower_of_two_gateways_has_what_either_was_told_whichever_is_killed(
    postgres: str, tmp_path: Path, upstream: GitServer
) -> None:
    """Lines are written at both, in turn. The reader's gateway dies, it goes on at the other; then that one dies."""
    async with (
        running(tmp_path, postgres) as one,
        running(tmp_path, postgres) as other,
        Service(one.port, other.port).listening() as service,
    ):
        await begun(one.port, upstream)

        async def kill(count: int) -> None:
            if count in {5, 35}:
                dying = one if count == 5 else other
                service.ports = [each.port for each in (one, other) if each is not dying]
                await dying.kill()
                await dying.start()
                service.ports.append(dying.port)

        stream = following(service.port, [])
        async with background(writes([one.port, other.port])):
            once_each(await seen(stream.events(), kill))
        assert (one.kills, other.kills) == (1, 1)
        await stream.client.aclose()


class Torn(Service):
    """Each connection breaks after so many bytes of its answer, wherever that is: within an event, mostly."""

    def __init__(self, port: int, chance: random.Random) -> None:
        super().__init__(port)
        self.broken = 0
        self._lots = chance

    async def _carried(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, left = None, self._lots.randint(600, 2_000)  # bytes: its headers and an event at least
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.ports[0])
            async with background(_passed(reader, back)):
                while left and (data := await there.read(left)):
                    left -= len(data)
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            self.broken += not left
            await broken_off(writer, back)


async def _passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            sink.write(data)


@pytest.mark.rule("M4")
@pytest.mark.parametrize("seed", range(3))
async def test_a_follower_whose_connection_breaks_within_events_has_each_line_once(
    tmp_path: Path, upstream: GitServer, seed: int
) -> None:
    async with running(tmp_path) as gateway, Torn(gateway.port, random.Random(seed)).listening() as service:
        await begun(gateway.port, upstream)
        await writes([gateway.port])
        stream = following(service.port, [])
        once_each(await seen(stream.events(), nothing))
        await stream.client.aclose()
        assert isinstance(service, Torn)
        assert service.broken > 3


@pytest.mark.rule("K1", "M4")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_a_gateway_as_it_tells_a_follower_each_line_comes_once")
)
async def test_whatever_befalls_a_gateway_as_it_tells_a_follower_each_line_comes_once(
    tmp_path: Path, upstream: GitServer, fault: Fault, points: Sequence[Point]
) -> None:
    gateway, trace = Killed(tmp_path), tmp_path / "trace"
    shots = [Shot(point, number, fault) for point in points for number in (1, 9)]
    try:
        async with meeting(gateway, trace, shots):
            await begun(gateway.port, upstream)
            stream, reader = following(gateway.port, []), Reader()
            async with background(writes([gateway.port], pace=reader.has)):
                once_each(await seen(stream.events(), reader.at))
            await stream.client.aclose()
    finally:
        await gateway.kill()
    assert all(fired(trace, shot) for shot in shots)
