"""T2: whoever far away says what he was sent says no credential to an agent, a journal or a person."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.gateway_script import PASSWORD, Operator, agent_at_work, resolved
from tests.model_place import ANTHROPIC, KEY, Place, place, script

from moorage.api.wire import ResolvedEgress, ResolvedSandbox, SecretRef
from moorage.gateway.headers import plainly, without
from moorage.gateway.settings import GatewaySettings
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.serving import listening

__all__ = ["place", "script"]  # fixtures

HIDDEN = "[the credential]"


async def echo(request: Request) -> Response:
    """What it was sent: where a stream is asked for as its first event, to a read and a post as an answer, to
    others as a refusal.
    """
    body = await request.body()
    sent = dict(request.headers)
    headers = {"x-seen": sent.get("x-api-key", sent.get("authorization", ""))}
    if request.url.path.startswith("/v1/pay"):
        return JSONResponse(sent, 201 if request.method == "POST" else 200, headers)
    error = {"type": "error", "error": {"type": "overloaded_error", "message": str(sent)}}
    if not orjson.loads(body).get("stream"):
        return JSONResponse(error, 403, headers)
    said = b"event: error\ndata: %s\n\n" % orjson.dumps(error)
    return Response(said, 200, headers, "text/event-stream")


@pytest.fixture
async def far() -> AsyncIterator[str]:
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    async with listening(app) as url:
        yield url


@pytest.fixture
async def gateway(tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    store = SqliteStore(tmp_path / "journal.db")
    settings = GatewaySettings(egress_private=("127.0.0.0/8",))
    hosts = {"far.example.com": "127.0.0.1"}
    made = LocalGateway(tmp_path, store=store, clock=clock, lot=lambda: 0, settings=settings, hosts=hosts)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    made.secrets.give("team-a", "api", token=KEY)
    async with made.serving():
        yield made
    await store.close()


async def journaled(operator: Operator, gateway: LocalGateway) -> str:
    """All that the records of a run say, and the blobs that they name."""
    records = await operator.records()
    refs = [ref for record in records for ref in (record.attachments or {}).values()]
    return str(records) + str([await gateway.deps.blobs.get("team-a", ref) for ref in refs])


@pytest.mark.rule("T2")
@pytest.mark.parametrize("path", [ANTHROPIC.path, f"{ANTHROPIC.path}/count_tokens"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_provider_that_says_what_it_was_sent(place: Place, far: str, path: str, *, stream: bool) -> None:
    operator = await place.run(ANTHROPIC, base_url=far, capture=True)
    answer = await place.client().post(path, json=ANTHROPIC.ask(stream=stream))
    assert HIDDEN in answer.text
    assert KEY not in answer.text + str(answer.headers)
    assert KEY not in await journaled(operator, place.gateway)


@pytest.mark.rule("T2")
@pytest.mark.parametrize(("method", "effects"), [("POST", "keyed"), ("POST", "opaque"), ("GET", "none")])
async def test_a_host_that_says_what_it_was_sent(
    gateway: LocalGateway, upstream: Any, far: str, method: str, effects: Any
) -> None:
    """The body of a read passes as it comes, and isn't kept."""
    entry = ResolvedEgress(
        host="far.example.com",
        effects=effects,
        credentials=SecretRef(name="api", key="token"),
        scheme="http",
        port=int(far.rpartition(":")[2]),
    )
    operator = Operator(gateway, resolved(upstream, sandbox=ResolvedSandbox(egress=(entry,))))
    runner = await agent_at_work(gateway, operator)
    answer = await runner.request(method, "/egress/http/far.example.com/v1/pay", content=b"{}")
    assert answer.is_success
    assert answer.headers["x-seen"] == f"Bearer {HIDDEN}"
    assert KEY not in (answer.text if method == "POST" else "")
    assert KEY not in await journaled(operator, gateway)


@pytest.mark.parametrize("header", ["Bearer {}", "token {}", "{}"])
def test_a_credential_is_known_however_it_is_spelled(header: str) -> None:
    secret = 'a/b"c+d'
    told = f"{secret} a%2Fb%22c%2Bd {orjson.dumps(secret).decode()}"
    credential = {"authorization": header.format(secret)}
    assert plainly(told, credential) == f'{HIDDEN} {HIDDEN} "{HIDDEN}"'
    assert without(told.encode(), credential).decode() == plainly(told, credential)
    assert plainly("as it was", {}) == "as it was"
