"""Asking the model: what is repeated, for how long, and what is not. Over real HTTP, with time that a test owns."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moorage.drivers.builtin.messages import MessagesConversation
from moorage.drivers.builtin.model import BudgetSpent, ModelClient, ModelError, Retries, client
from moorage.testing.serving import listening

GOOD = {"type": "message", "content": [{"type": "text", "text": "yes"}], "stop_reason": "end_turn"}


class Door:
    """Gives the answers that it was given, the last one for ever."""

    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.app = Starlette(routes=[Route("/model/v1/messages", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> Response:
        await request.body()
        self.requests.append(request)
        return self.answers[min(len(self.requests), len(self.answers)) - 1]


class Time:
    def __init__(self) -> None:
        self.at, self.slept = 0.0, []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds

    def now(self) -> float:
        return self.at


def refusal(status: int, message: str = "no", code: str | None = None, **headers: str) -> Response:
    body = {"type": "error", "error": {"type": "x", "message": message, "code": code}}
    return JSONResponse(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


@asynccontextmanager
async def asking(door: Door, time: Time, draw: float = 0.5) -> AsyncIterator[ModelClient]:
    async with listening(door.app) as url, client(url, "dummy") as http:
        yield ModelClient(http, Retries(), MessagesConversation(), sleep=time.sleep, draw=lambda: draw, now=time.now)


async def ask(door: Door, time: Time, **more: Any) -> Any:
    async with asking(door, time, **more) as model:
        return await model.ask({"model": "m"}, 7)


async def test_a_repetition_says_that_it_is_one() -> None:
    door, time = Door(refusal(529), refusal(503), JSONResponse(GOOD)), Time()
    assert (await ask(door, time)).text == "yes"
    assert [r.headers["x-stainless-retry-count"] for r in door.requests] == ["0", "1", "2"]
    assert {r.headers["x-moorage-turn"] for r in door.requests} == {"7"}
    assert {r.headers["x-moorage-pauses"] for r in door.requests} == {"1"}
    assert {r.headers["x-api-key"] for r in door.requests} == {"dummy"}
    assert time.slept == [0.25, 0.5]


async def test_retry_after_is_honoured_in_both_forms() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=30))
    door, time = Door(refusal(429, retry_after="2.5"), refusal(429, retry_after=at), JSONResponse(GOOD)), Time()
    await ask(door, time)
    assert time.slept[0] == 2.5
    assert 25 <= time.slept[1] <= 30


@pytest.mark.parametrize("header", ["soon", "-5", "", "nan"])
async def test_a_retry_after_that_says_nothing_is_no_reason_to_hang_or_fall(header) -> None:
    door, time = Door(refusal(429, retry_after=header), JSONResponse(GOOD)), Time()
    await ask(door, time)
    assert 0 <= time.slept[0] <= 1


async def test_patience_ends_with_the_last_reason() -> None:
    door, time = Door(refusal(503, "overloaded again")), Time()
    with pytest.raises(ModelError, match="overloaded again") as told:
        await ask(door, time, draw=0.999)
    assert told.value.reason == "ModelUnavailable"
    assert 250 < time.at <= 300
    assert len(door.requests) < 40


async def test_a_wait_past_all_patience_is_not_begun() -> None:
    door, time = Door(refusal(429, retry_after="7200")), Time()
    with pytest.raises(ModelError):
        await ask(door, time)
    assert (time.slept, len(door.requests)) == ([], 1)


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (refusal(401), ModelError, "ModelUnauthorized"),
        (refusal(403), ModelError, "ModelUnauthorized"),
        (refusal(400), ModelError, "ModelRefused"),
        (refusal(404), ModelError, "ModelRefused"),
        (refusal(503, x_should_retry="false"), ModelError, "ModelRefused"),
        (refusal(400, "too long", code="context_length_exceeded"), ModelError, "ContextExceeded"),
        (JSONResponse({"error": "no"}, 400), ModelError, "ModelRefused"),
        (refusal(400, "BudgetExhausted: all gone", x_should_retry="false"), BudgetSpent, "BudgetExhausted"),
    ],
)
async def test_what_no_repetition_mends_is_asked_once(answer, kind, reason) -> None:
    door, time = Door(answer), Time()
    with pytest.raises(kind) as told:
        await ask(door, time)
    assert told.value.reason == reason
    assert len(door.requests) == 1


async def test_an_answer_that_can_not_be_read_is_asked_for_again() -> None:
    door, time = Door(Response(b"<html>"), JSONResponse(GOOD)), Time()
    assert (await ask(door, time)).text == "yes"


async def test_nobody_there_is_told_as_such() -> None:
    time = Time()
    async with client("http://127.0.0.1:9", "dummy") as http:
        model = ModelClient(http, Retries(), MessagesConversation(), sleep=time.sleep, draw=lambda: 0.9, now=time.now)
        with pytest.raises(ModelError, match="ConnectError"):
            await model.ask({}, 1)


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert (await ask(Door(JSONResponse(GOOD)), Time())).text == "yes"
