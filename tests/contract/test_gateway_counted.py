"""What may not pass uncounted at the model doors, and what is charged where nobody tells what it came to."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
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

from moorage.testing.serving import listening

__all__ = ["gateway", "place", "script"]  # fixtures


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
