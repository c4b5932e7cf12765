"""I6: where a gateway has no room for a body or an answer it says so, and what is small goes on."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.gateway_script import PASSWORD, Operator, agent_at_work, resolved
from tests.model_place import ANTHROPIC, Place, place, script

from moorage.api.wire import ResolvedEgress, ResolvedSandbox
from moorage.gateway.settings import KIB, GatewaySettings
from moorage.store.sqlite import SqliteStore
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.serving import listening

__all__ = ["place", "script"]  # fixtures
pytestmark = pytest.mark.rule("I6")

ROOM = 64 * KIB


@pytest.fixture(params=["share", "all"])
async def gateway(request: Any, tmp_path: Path, clock: StepClock) -> AsyncIterator[LocalGateway]:
    """What a run may hold is little, or what all may is."""
    store = SqliteStore(tmp_path / "journal.db")
    room = {"room_share_bytes": ROOM} if request.param == "share" else {"room_bytes": ROOM}
    settings = GatewaySettings(egress_private=("127.0.0.0/8",), **room)
    hosts = {"far.example.com": "127.0.0.1"}
    made = LocalGateway(tmp_path, store=store, clock=clock, lot=lambda: 0, settings=settings, hosts=hosts)
    made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with made.serving():
        yield made
    await store.close()


@pytest.mark.parametrize("path", [ANTHROPIC.path, f"{ANTHROPIC.path}/count_tokens"])
async def test_a_request_that_has_no_room_is_to_be_asked_again_and_reaches_no_model(place: Place, path: str) -> None:
    await place.run(ANTHROPIC)
    client = place.client()
    large = await client.post(path, json=ANTHROPIC.ask(system="x" * ROOM))
    assert large.status_code in {429, 503}
    assert large.json()["error"]["message"].startswith(("TooManyOpen", "GatewayFull"))
    assert large.headers["retry-after"] == "5"
    assert "x-should-retry" not in large.headers
    assert place.model.log == []
    for _ in range(3):
        assert (await client.post(path, json=ANTHROPIC.ask(system="x" * (ROOM // 2)))).status_code == 200


async def far(request: Request) -> Response:
    """As much as it is asked for."""
    await request.body()
    return Response(b"x" * int(request.url.query), 201)


async def test_an_effect_whose_answer_has_no_room_has_happened_and_one_whose_body_has_none_has_not(
    gateway: LocalGateway, upstream: Any
) -> None:
    async with listening(Starlette(routes=[Route("/pay", far, methods=["POST"])])) as url:
        port = int(url.rpartition(":")[2])
        entry = ResolvedEgress(host="far.example.com", scheme="http", port=port)
        operator = Operator(gateway, resolved(upstream, sandbox=ResolvedSandbox(egress=(entry,))))
        runner = await agent_at_work(gateway, operator)
        path = "/egress/http/far.example.com/pay"
        body = await runner.post(f"{path}?1", content=b"x" * (ROOM + 1))
        assert (body.status_code in {429, 503}, body.headers["retry-after"]) == (True, "5")
        assert (await operator.state())["effects"] == []
        answer = await runner.post(f"{path}?{ROOM}", content=b"{}")
        assert (answer.status_code, answer.json()["reason"]) == (409, "EffectDone")
        for size in (ROOM // 2, ROOM // 2 + 1):
            assert len((await runner.post(f"{path}?{size}", content=b"{}")).content) == size
        assert [each["status"] for each in (await operator.state())["effects"]] == ["confirmed"] * 3
