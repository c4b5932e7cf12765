"""The gateway as a runner calls it: patient with what passes, quick with what doesn't, the current token each time."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from moorage.api.commands import WaitingMessages
from moorage.api.wire import ReportedRecord, ReportRequest
from moorage.api.work import Heartbeat
from moorage.runner import client as module
from moorage.runner.client import Fenced, GatewayClient, GatewayError, GatewayLost, NotWanted
from moorage.runner.exchange import NoAnswer, request
from moorage.runner.report import Reporter
from moorage.testing.serving import listening
from moorage.workspace.errors import AuthFailed, DiskFull, NetworkUnreachable, TimedOut, classify

REPORT = ReportRequest(
    epoch=3, records=(ReportedRecord(record_id="AGENT_STARTED:1", type="AGENT_STARTED", recorded_at=1),)
)
BEAT = Heartbeat(work_id="u1", epoch=3, progress_seq=7, observed_at=1)
DONE = JSONResponse({"offset": 5, "hash": "h", "a field of tomorrow's": 1})


def refusal(status: int, reason: str) -> Response:
    return JSONResponse({"reason": reason, "message": f"why: {reason}"}, status)


class Scripted:
    """Answers in order, the last one again and again; keeps tokens and bodies."""

    def __init__(self) -> None:
        self.answers: list[Response] = [DONE]
        self.tokens: list[str] = []
        self.bodies: list[object] = []
        self.hang = False
        self.app = Starlette(routes=[Route("/v1/self{rest:path}", self.serve, methods=["GET", "POST"])])

    async def serve(self, request: Request) -> Response:
        self.tokens.append(request.headers["authorization"])
        self.bodies.append(json.loads(await request.body() or b"null"))
        if self.hang:
            await asyncio.sleep(30)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def gateway() -> Scripted:
    return Scripted()


@pytest.fixture
async def client(gateway, tmp_path) -> AsyncIterator[GatewayClient]:
    (tmp_path / "token").write_text("first\n")
    async with listening(gateway.app) as url:
        made = GatewayClient(url, tmp_path / "token", patience_s=40)
        yield made


async def test_what_may_pass_is_asked_again_with_the_same_ids(gateway, client) -> None:
    gateway.answers = [refusal(425, "NotRegistered"), refusal(503, "Unavailable"), PlainTextResponse("no", 502), DONE]
    assert (await client.records(REPORT)).offset == 5
    assert gateway.bodies == [REPORT.model_dump(mode="json")] * 4


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(409, "Fenced"), Fenced),
        (refusal(409, "RunEnded"), NotWanted),
        (refusal(409, "Cancelling"), NotWanted),
        (refusal(424, "GitAuthFailed"), NotWanted),
        (refusal(409, "IllegalMove"), GatewayError),
        (refusal(422, "Invalid"), GatewayError),
        (refusal(401, "Unauthenticated"), GatewayError),
        (PlainTextResponse("<html>not found</html>", 404), GatewayError),
    ],
)
async def test_what_will_not_pass_is_told_at_once(gateway, client, answer, kind) -> None:
    gateway.answers = [answer]
    with pytest.raises(GatewayError) as refused:
        await client.records(REPORT)
    assert type(refused.value) is kind
    assert len(gateway.bodies) == 1


async def test_a_rotated_token_is_used_and_a_missing_one_waited_for(gateway, client, tmp_path) -> None:
    await client.records(REPORT)
    (tmp_path / "token").write_text("second")
    await client.records(REPORT)
    (tmp_path / "token").rename(tmp_path / "aside")
    waiting = asyncio.create_task(client.records(REPORT))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    (tmp_path / "aside").rename(tmp_path / "token")
    await waiting
    assert gateway.tokens == ["Bearer first", "Bearer second", "Bearer second"]


async def test_a_gateway_that_comes_up_late_is_waited_for(gateway, tmp_path) -> None:
    (tmp_path / "token").write_text("t")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    client = GatewayClient(f"http://127.0.0.1:{port}", tmp_path / "token", patience_s=40)
    waiting = asyncio.create_task(client.records(REPORT))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    async with listening(gateway.app, port):
        assert (await waiting).offset == 5


async def test_patience_ends_with_the_last_word(gateway, client, monkeypatch) -> None:
    monkeypatch.setattr(client, "_patience_s", 2.0)
    gateway.answers = [refusal(503, "Unavailable")]
    with pytest.raises(GatewayLost, match="Unavailable"):
        await client.records(REPORT)
    assert len(gateway.bodies) > 1


async def test_git_is_waited_for_where_the_network_failed_and_nowhere_else(client) -> None:
    came: list[Exception] = [NetworkUnreachable("connection refused"), AuthFailed("no"), DiskFull("no"), OSError("no")]

    async def push() -> None:
        raise came.pop(0)

    for kind in (AuthFailed, DiskFull, OSError):
        with pytest.raises(kind):
            await client.patiently(push)
    assert came == []


async def test_git_is_waited_for_while_the_gateway_fetches_and_where_it_was_slow_a_few_times(gateway, tmp_path) -> None:
    """Neither is an outage: no patience is left for one here."""
    (tmp_path / "token").write_text("t")
    client = GatewayClient("http://127.0.0.1:9", tmp_path / "token", patience_s=0)
    came: list[Exception] = []

    async def fetch() -> str:
        if came:
            raise came.pop(0)
        return "fetched"

    words = "remote: WorkspaceFetching: ask again\nfatal: unable to access 'http://x/': ... error: 503"
    came += [classify(words)] * 5
    assert await client.patiently(fetch) == "fetched"
    came += [TimedOut("300 s")] * 3
    with pytest.raises(TimedOut):
        await client.patiently(fetch)
    came += [NetworkUnreachable("error: 503")]
    with pytest.raises(GatewayLost):
        await client.patiently(fetch)


@pytest.mark.parametrize(
    "answers",
    [["away", "fetched"], ["away"], ["fetched"] * 500 + ["away"] * 30],
    ids=["in turns", "away", "after a long fetch"],
)
async def test_patience_is_for_all_failures_together_and_for_no_time_that_the_gateway_prepares(
    answers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch between two failures neither uses patience up nor begins it anew. Each call takes a second here."""
    now, came = [0.0], []

    async def nothing(_: float) -> None:
        return None

    async def call() -> None:
        now[0] += 1
        assert len(came) < 1_000, "patience never ends"
        came.append(answers[len(came) % len(answers)])
        raise NoAnswer("none") if came[-1] == "away" else module.Preparing(503, "WorkspaceFetching", "ask again")

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=nothing))
    with pytest.raises(GatewayLost):
        await module.patiently(call, patience_s=30)
    assert came.count("away") == 30


@pytest.mark.rule("F4")
async def test_a_heartbeat_that_fails_or_hangs_makes_room_for_the_next(gateway, client, monkeypatch) -> None:
    gateway.answers = [refusal(503, "Unavailable"), JSONResponse({"seq": 1, "stop": "cancel"})]
    with pytest.raises(GatewayError):
        await client.heartbeat(BEAT)
    assert (await client.heartbeat(BEAT)).stop == "cancel"
    monkeypatch.setattr(module, "HEARTBEAT_TIMEOUT_S", 0.1)
    gateway.hang = True
    with pytest.raises(NoAnswer):
        await client.heartbeat(BEAT)
    assert len(gateway.bodies) == 3


async def test_a_gateway_on_a_socket_file(gateway, tmp_path) -> None:
    (tmp_path / "token").write_text("t")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        gateway.tokens.append(head.decode())
        body = b'{"seq": 4}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "s")
    client = GatewayClient(f"unix:{tmp_path / 's'}", tmp_path / "token", patience_s=1)
    assert (await client.orders(3, 7)).seq == 4
    assert gateway.tokens[0].startswith("GET /v1/self/orders?after=3&heard=7 HTTP/1.0")
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ncontent-length: much\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    ],
)
async def test_half_an_answer_or_none_is_no_answer(answer, tmp_path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "s"):
        with pytest.raises(NoAnswer):
            await request(f"unix:{tmp_path / 's'}", "GET /", {}, within_s=5)


@pytest.mark.rule("R8", "M3")
async def test_at_an_older_gateway_nobody_says_anything_and_other_refusals_are_raised(gateway, client) -> None:
    gateway.answers = [refusal(404, "NoSuchDoor"), refusal(403, "Forbidden")]
    assert await client.messages() == WaitingMessages()
    with pytest.raises(GatewayError):
        await client.messages()


@pytest.mark.rule("R8")
async def test_an_older_gateway_may_refuse_what_nothing_follows_from_and_nothing_else(gateway, client) -> None:
    gateway.answers = [refusal(403, "Forbidden")]
    assignment: Any = SimpleNamespace(epoch=3)
    reporter = Reporter(client, assignment)
    for kind in ("COMPLETION_CHECKED", "CONTINUATION_DECIDED"):
        await reporter.emit(kind, {"text": "x"})
    with pytest.raises(GatewayError):
        await reporter.emit("TOOL_REQUEST", {"tool": "x"})
    gateway.answers = [refusal(409, "Fenced")]
    with pytest.raises(Fenced):
        await reporter.emit("COMPLETION_CHECKED", {"text": "x"})


@pytest.mark.parametrize("reason", ["WorkspaceFetching", "BranchTaken"])
async def test_what_the_gateway_prepares_is_no_outage(gateway, tmp_path, reason: str) -> None:
    """However long it takes: the gateway has answered, and the owner lives by its heartbeats."""
    (tmp_path / "token").write_text("first\n")
    gateway.answers = [*[refusal(503, reason)] * 3, refusal(409, "RunEnded")]
    async with listening(gateway.app) as url:
        with pytest.raises(NotWanted):
            await GatewayClient(url, tmp_path / "token", patience_s=0).assignment()
    assert len(gateway.tokens) == 4


async def test_a_report_is_repeated_while_the_gateway_fetches_the_repository(gateway, tmp_path) -> None:
    """A gateway that has just started brings the mirror before it can look at a checkpoint in it."""
    (tmp_path / "token").write_text("first\n")
    gateway.answers = [*[refusal(503, "WorkspaceFetching")] * 3, DONE]
    async with listening(gateway.app) as url:
        await GatewayClient(url, tmp_path / "token", patience_s=0).records(REPORT)
    assert len(gateway.tokens) == 4
