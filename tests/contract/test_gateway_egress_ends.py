"""A request to a host ends with its agent's work, its attempt, its client and its time, whatever the host does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, refused, resolved, result

from moorage.api.wire import ResolvedEgress, ResolvedSandbox, SecretRef
from moorage.gateway import watching
from moorage.gateway.settings import GatewaySettings
from moorage.testing.authority import Authority, Cut
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

pytestmark = pytest.mark.timeout(120)

HOSTS = dict.fromkeys(("keyed.example.com", "opaque.example.com", "endless.example.com"), "127.0.0.1")
POSTS = "/egress/http/{}.example.com/v1/pay"
ENDLESS = "/egress/http/endless.example.com/feed"


@dataclass
class Endless:
    """Answers with a body that never ends; `flood`: as fast as it is read, else one chunk and silence."""

    flood: bool = False
    port: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 -\r\ncontent-type: text/plain\r\n\r\nfirstsecond")
        with contextlib.suppress(OSError):
            while self.flood:
                writer.write(b"x" * 65_536)
                await writer.drain()
            await reader.read()
        self.left.set()
        writer.close()


@dataclass
class Place:
    """A run at work, and the hosts that it may ask."""

    gateway: LocalGateway
    operator: Operator
    runner: httpx.AsyncClient
    authority: Authority
    endless: Endless

    async def settled(self) -> Any:
        """The only effect, once it is closed."""
        for _ in range(1_200):
            (effect,) = (await self.operator.state())["effects"]
            if effect["status"] not in {"intended", "dispatched"}:
                return effect
            await asyncio.sleep(0.05)
        raise AssertionError("the effect is still open")


@contextlib.asynccontextmanager
async def placed(tmp_path: Path, upstream: GitServer, **limits: int) -> AsyncIterator[Place]:
    endless = Endless()
    server = await asyncio.start_server(endless.serve, "127.0.0.1", 0)
    endless.port = server.sockets[0].getsockname()[1]
    settings = GatewaySettings(egress_private=("127.0.0.0/8",), **limits)
    gateway = LocalGateway(tmp_path, settings=settings, hosts=HOSTS)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    gateway.secrets.give("team-a", "api", token="sk-of-the-tenant")
    async with Authority().listening() as authority, gateway.serving():
        hosts: list[Any] = [
            ResolvedEgress(
                host=f"{name}.example.com",
                effects=name,
                scheme="http",
                port=authority.port,
                credentials=SecretRef(name="api", key="token"),
            )
            for name in ("keyed", "opaque")
        ]
        hosts.append(ResolvedEgress(host="endless.example.com", scheme="http", port=endless.port))
        operator = Operator(gateway, resolved(upstream, sandbox=ResolvedSandbox(egress=tuple(hosts))))
        yield Place(gateway, operator, await agent_at_work(gateway, operator), authority, endless)
    server.close()


@pytest.fixture
async def place(tmp_path: Path, upstream: GitServer) -> AsyncIterator[Place]:
    async with placed(tmp_path, upstream) as made:
        yield made


async def cancelled(place: Place) -> None:
    await ok(await place.operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))


async def agent_done(place: Place) -> None:
    await ok(await place.runner.post("/v1/self/result", json=result(None, outcome="failed", reason="Exited")))


async def taken_over(place: Place) -> None:
    await ok(await place.operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "reason": "PodLost", "message": ""}))


OVER: list[Callable[[Place], Awaitable[None]]] = [cancelled, agent_done, taken_over]


@pytest.mark.rule("I5", "I8", "X2")
@pytest.mark.parametrize("flood", [False, True])
@pytest.mark.parametrize("end", OVER)
async def test_a_read_that_never_ends_ends_with_its_agents_work(
    place: Place, end: Callable[[Place], Awaitable[None]], flood: bool
) -> None:
    place.endless.flood = flood
    async with place.runner.stream("GET", ENDLESS) as answer:  # and nobody reads on: the way back is full, too
        assert answer.status_code == 200
        await end(place)
        effect = await place.settled()
        assert (effect["status"], effect["detail"][:10]) == ("confirmed", "cut after ")
        assert "the run is" in effect["detail"]
        await asyncio.wait_for(place.endless.left.wait(), 60)


@pytest.mark.rule("I8")
async def test_a_read_ends_where_another_gateway_heard_of_the_end_of_its_attempt(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_MS", 20)
    deps = place.gateway.deps
    async with (
        place.runner.stream("GET", ENDLESS) as answer,
        LocalGateway(tmp_path / "other", store=deps.store, blobs=deps.blobs) as other,
    ):
        assert answer.status_code == 200
        lost = {"epoch": 1, "reason": "PodLost", "message": ""}
        await ok(await Operator(other, place.operator.spec).report(1, "ATTEMPT_ENDED", lost))
        assert "the run is" in (await place.settled())["detail"]


@pytest.mark.rule("I8")
@pytest.mark.parametrize("flood", [False, True])
async def test_a_read_ends_with_its_client(place: Place, flood: bool) -> None:
    place.endless.flood = flood
    async with place.runner.stream("GET", ENDLESS) as answer:
        assert answer.status_code == 200
    assert "its client is gone" in (await place.settled())["detail"]
    await asyncio.wait_for(place.endless.left.wait(), 60)


@pytest.mark.rule("I5", "I8")
async def test_a_read_that_the_host_never_answers_ends_with_its_run(place: Place) -> None:
    place.authority.waits.clear()
    asked = asyncio.create_task(place.runner.get(POSTS.format("keyed")))
    await place.authority.came.wait()
    await cancelled(place)
    assert "the run is Cancelling" in refused(await asked, 409, "ReadCut")
    assert (await place.settled())["status"] == "not_dispatched"


@pytest.mark.parametrize(
    ("method", "host", "status"),
    [("GET", "opaque", "not_dispatched"), ("POST", "opaque", "unknown"), ("POST", "keyed", "unknown")],
)
async def test_a_host_that_never_answers_is_waited_for_no_longer_than_its_time(
    tmp_path: Path, upstream: GitServer, method: str, host: str, status: str
) -> None:
    async with placed(tmp_path, upstream, egress_total_ms=200) as place:
        place.authority.waits.clear()
        answer = await place.runner.request(method, POSTS.format(host))
        reason = "ReadCut" if method == "GET" else "EffectUnknown"
        assert "it took longer than 0.2 s" in refused(answer, 409, reason)
        assert (await place.settled())["status"] == status


@pytest.mark.rule("I5", "I8")
@pytest.mark.parametrize("host", ["opaque", "keyed"])
async def test_an_effect_without_an_answer_ends_with_its_run_and_is_unknown(
    tmp_path: Path, upstream: GitServer, host: str
) -> None:
    async with placed(tmp_path, upstream, egress_grace_ms=0) as place:
        place.authority.waits.clear()
        asked = asyncio.create_task(place.runner.post(POSTS.format(host), content=b"x"))
        await place.authority.came.wait()
        await cancelled(place)
        refused(await asked, 409, "EffectUnknown")
        assert (await place.settled())["status"] == "unknown"


@pytest.mark.rule("I5")
@pytest.mark.parametrize("cut", [None, Cut.AFTER])
async def test_what_is_under_way_may_still_be_answered_and_is_not_sent_again(
    tmp_path: Path, upstream: GitServer, cut: Cut | None
) -> None:
    async with placed(tmp_path, upstream, egress_grace_ms=600_000) as place:
        place.authority.waits.clear()
        place.authority.cuts = [cut]
        asked = asyncio.create_task(place.runner.post(POSTS.format("keyed"), content=b"x"))
        await place.authority.came.wait()
        await cancelled(place)
        place.authority.waits.set()
        assert (await asked).status_code == (409 if cut else 201)
        assert (await place.settled())["status"] == ("unknown" if cut else "confirmed")
        assert len(place.authority.log) == 1


# --- bodies that take their time --------------------------------------------------------------------------------------


async def begun(place: Place, body: bytes, size: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request of which only a part has come; it is told to go on when the gateway reads its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int((place.gateway.url or "").rpartition(":")[2]))
    head = f"POST {POSTS.format('opaque')} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer token-of-p1\r\n"
    writer.write(
        head.encode() + f"expect: 100-continue\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n".encode() + body
    )
    return reader, writer


@pytest.mark.rule("I5")
@pytest.mark.parametrize("end", OVER)
async def test_a_body_that_has_come_only_after_its_agents_end_has_no_effect(
    place: Place, end: Callable[[Place], Awaitable[None]]
) -> None:
    reader, writer = await begun(place, b"ha", 4)
    assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    await end(place)
    writer.write(b"lf")
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert b" 409 " in answer.partition(b"\r\n")[0]
    assert b"NotAtWork" in answer
    assert (place.authority.log, (await place.operator.state())["effects"]) == ([], [])


@pytest.mark.rule("I6")
async def test_bodies_that_are_coming_count_towards_what_a_run_may_have_under_way(
    tmp_path: Path, upstream: GitServer
) -> None:
    async with placed(tmp_path, upstream, egress_open=2) as place:
        streams = [await begun(place, b"ha", 4) for _ in range(3)]
        answers = [asyncio.create_task(reader.read()) for reader, _ in streams]
        refused_, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert [b"TooManyOpen" in task.result() for task in refused_] == [True]
        for number, (_, writer) in enumerate(streams):
            writer.write(b"%02d" % number)  # bodies of their own: the same one would be the same call
        others = [answer for task in answers if b"TooManyOpen" not in (answer := await asyncio.wait_for(task, 60))]
        assert [b" 201 " in answer for answer in others] == [True, True]
        for _, writer in streams:
            writer.close()


@pytest.mark.rule("E2")
async def test_a_safe_point_while_a_request_waits_for_its_turn_leads_it_to_no_key_that_was_used(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, blobs = POSTS.format("keyed"), place.gateway.deps.blobs
    assert (await place.runner.post(path, content=b"x")).json() == {"number": 1}
    put, held, go = blobs.put, asyncio.Event(), asyncio.Event()

    async def slow(*what: Any) -> Any:
        held.set()
        await go.wait()
        return await put(*what)

    monkeypatch.setattr(blobs, "put", slow)
    first = asyncio.create_task(place.runner.post(path, content=b"y"))
    await held.wait()  # and has the lock
    reads = len(place.gateway.secrets.reads)
    second = asyncio.create_task(place.runner.post(path, content=b"x"))
    for _ in range(1_200):
        if len(place.gateway.secrets.reads) > reads:
            break
        await asyncio.sleep(0.05)
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 8}
    await ok(await place.runner.post("/v1/self/checkpoint", json=point))
    go.set()
    assert [(await first).status_code, (await second).status_code] == [201, 201]
    assert sorted(place.authority.committed) == [b"x", b"x", b"y"]
