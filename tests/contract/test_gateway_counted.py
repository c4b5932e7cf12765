"""What may not pass uncounted at the model doors, and what becomes of requests whose answer nobody waits for."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.gateway_script import ok, result
from tests.model_place import (
    ANTHROPIC,
    PRICES,
    RESPONSES,
    USER,
    Place,
    gateway,
    last,
    place,
    script,
)

from moorage.api.budget import ResolvedLimits
from moorage.testing.gateway import LocalGateway
from moorage.testing.serving import listening

__all__ = ["gateway", "place", "script"]  # fixtures


def at_once(gateway: LocalGateway, app: ASGIApp) -> httpx.AsyncClient:
    """A sandbox's client that calls the gateway, as `app` has it, in its own task."""
    headers = {"authorization": f"Bearer {gateway.token_for_pod('p1', 'team-a')}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers)


async def test_who_is_gone_when_the_turn_comes_asks_nothing(place: Place) -> None:
    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        asked = False

        async def told() -> Message:
            nonlocal asked
            message = {"type": "http.disconnect"} if asked else await receive()
            asked = asked or not message.get("more_body")
            return message

        await place.gateway(scope, told, send)

    operator = await place.run(ANTHROPIC, max_concurrent=1)
    async with at_once(place.gateway, left) as client:
        await client.post(ANTHROPIC.path, json=ANTHROPIC.ask())
    assert place.model.log == []
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert (payload["status"], payload["problem"], payload["usage"]) == (0, "ProviderBusy", {})
    assert (await place.ask(ANTHROPIC)).status_code == 200, "its turn was given back"


@pytest.mark.rule("I5", "X2")
async def test_what_an_agent_has_left_behind_asks_no_model_once_it_has_ended(place: Place) -> None:
    operator = await place.run(ANTHROPIC)
    assert (await place.ask(ANTHROPIC)).status_code == 200
    ended = {"outcome": "completed", "reason": "Completed", "exit_code": 0, "commit": None}
    await ok(await place.client().post("/v1/self/result", json=result(None, **ended)))
    answer = await place.ask(ANTHROPIC, temperature=1)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert answer.json()["error"]["message"].startswith("NotAtWork: no agent is at work here")
    assert len(place.model.log) == (await operator.types()).count("MODEL_REQUEST") == 1


@pytest.mark.rule("B2")
async def test_an_answer_whose_reading_is_broken_off_is_settled_like_a_lost_one(place: Place) -> None:
    going, begun = asyncio.Event(), asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b"{"
        begun.set()
        await going.wait()

    async def answering(_: Request) -> Response:
        return StreamingResponse(half(), media_type="application/json")

    async with listening(Starlette(routes=[Route("/v1/messages", answering, methods=["POST"])])) as url:
        operator = await place.run(ANTHROPIC, base_url=url, max_concurrent=1, limits=ResolvedLimits(tokens_hard=3_000))
        async with at_once(place.gateway, place.gateway) as client:
            asking = asyncio.create_task(client.post(ANTHROPIC.path, json=ANTHROPIC.ask()))
            await asyncio.wait_for(begun.wait(), 40)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        going.set()
        reserved = (await last(operator, "MODEL_REQUEST")).payload["reserved"]
        assert (await place.ask(ANTHROPIC)).status_code == 400, "all of it is used up"
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert payload["problem"] == "GatewayLost"
    assert payload["usage"] == {name: reserved[name] for name in ("input_tokens", "output_tokens")}


@pytest.mark.rule("B2")
@pytest.mark.parametrize(
    "asking",
    [
        {"background": True},
        {"previous_response_id": "resp_1"},
        {"input": [*USER, {"type": "item_reference", "id": "m"}]},
    ],
)
async def test_what_the_provider_would_do_elsewhere_isnt_passed_on(place: Place, asking: dict[str, Any]) -> None:
    operator = await place.run(RESPONSES)
    answer = await place.ask(RESPONSES, **asking)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert answer.json()["error"]["message"].startswith("NotCountable: this gateway doesn't pass on ")
    assert place.model.log == []
    assert "MODEL_REQUEST" not in await operator.types()


@pytest.mark.rule("B2")
@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_what_the_provider_goes_on_with_is_charged_at_its_worst(place: Place, status: str) -> None:
    async def answering(_: Request) -> Response:
        return JSONResponse({"object": "response", "id": "resp_1", "status": status, "output": [], "usage": None})

    async with listening(Starlette(routes=[Route("/v1/responses", answering, methods=["POST"])])) as url:
        operator = await place.run(RESPONSES, base_url=url, prices=PRICES)
        assert (await place.ask(RESPONSES)).status_code == 200
    reserved = (await last(operator, "MODEL_REQUEST")).payload["reserved"]
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert (payload["usage"], payload["estimated"], payload["complete"]) == (reserved, True, False)


async def test_a_request_that_allows_more_than_any_answer_has_is_passed_on(place: Place) -> None:
    operator = await place.run(ANTHROPIC, prices=PRICES)
    assert (await place.ask(ANTHROPIC, max_tokens=2**63)).status_code == 200
    assert (await last(operator, "MODEL_REQUEST")).payload["reserved"]["output_tokens"] == 10_000_000
