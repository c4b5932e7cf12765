"""Requests that their provider didn't answer: sent again as the same decision, out of a budget that everybody sees."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.gateway_script import Operator, ok
from tests.model_place import ANTHROPIC, CALL, CHAT, RESPONSES, USAGE, Place, Spoken, gateway, last, place, script

from moorage.api.wire import ResolvedRetries
from moorage.testing.clock import StepClock
from moorage.testing.models import Fault, Reply

__all__ = ["gateway", "place", "script"]  # fixtures

RETRIES = ResolvedRetries(max_attempts=4, budget=10)
ALL = pytest.mark.parametrize("spoken", [ANTHROPIC, RESPONSES, CHAT], ids=lambda spoken: spoken.name)
STREAMING = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def failing(*faults: Fault) -> list[Reply]:
    return [Reply(text="word " * 50, tools=(CALL,), usage=USAGE, faults=faults)]


def scripted(*faults: Fault) -> Any:
    return pytest.mark.parametrize("script", [failing(*faults)], ids=[""])


async def of_type(operator: Operator, kind: str) -> list[Any]:
    return [record for record in await operator.records() if record.type == kind]


async def statuses(operator: Operator) -> list[int]:
    return [record.payload["status"] for record in await of_type(operator, "MODEL_RESPONSE")]


def settings(place: Place, **changes: int) -> None:
    """Before the run begins."""
    deps = place.gateway.deps
    place.gateway.deps = replace(deps, settings=replace(deps.settings, **changes))
    place.gateway.restart()


def counted(place: Place, name: str, **labels: str) -> float:
    return place.gateway.deps.metrics.registry.get_sample_value(name, labels) or 0.0


@ALL
@STREAMING
@pytest.mark.rule("O1", "Q3", "B3")
@scripted(Fault(kind="status", status=503, times=2))
async def test_what_failed_is_sent_again_and_is_one_decision(place: Place, spoken: Spoken, *, stream: bool) -> None:
    operator = await place.run(spoken, retries=RETRIES)
    answer = await place.ask(spoken, stream=stream)
    assert (answer.status_code, answer.headers["x-moorage-retries"]) == (200, "2")
    assert answer.headers["x-moorage-retries-left"] == "8"
    asked = await of_type(operator, "MODEL_REQUEST")
    assert [record.payload.get("retry_of") for record in asked] == [None, asked[0].request_id, asked[0].request_id]
    assert [record.payload.get("try") for record in asked] == [None, 2, 3]
    assert await statuses(operator) == [503, 503, 200]
    assert len({entry.key for entry in place.model.log}) == 1
    used = (await operator.state())["usage"]
    assert (used["model_requests"], used["model_retries"]) == (1, 2)
    assert {name: used[name] for name in spoken.vector} == spoken.vector
    assert counted(place, "moorage_model_retries_total", protocol=spoken.name, status="503") == 2


@ALL
@scripted(Fault(kind="status", status=503, times=9))
async def test_the_agent_hears_the_last_failure_in_the_providers_words(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken, retries=RETRIES)
    answer = await place.ask(spoken)
    assert (answer.status_code, answer.headers["x-moorage-retries"]) == (503, "3")
    assert answer.json()["error"]["message"] == "scripted fault"
    assert await statuses(operator) == [503] * 4


@scripted(Fault(kind="status", status=429, retry_after_s=61, times=9))
async def test_a_wait_that_is_too_long_is_the_agents(place: Place) -> None:
    await place.run(ANTHROPIC, retries=RETRIES)
    answer = await place.ask(ANTHROPIC)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "61")
    assert len(place.model.log) == 1


@scripted(Fault(kind="status", status=429, retry_after_s=0.2, times=1))
async def test_what_the_provider_asks_for_is_waited_for(place: Place) -> None:
    await place.run(ANTHROPIC, retries=RETRIES)
    assert (await place.ask(ANTHROPIC)).status_code == 200
    first, second = place.model.log
    assert second.at - first.at >= 200


@pytest.mark.parametrize(
    "script", [failing(Fault(kind="status", status=status, times=9)) for status in (400, 401, 404)], ids=str
)
async def test_what_no_waiting_mends_is_passed_on(place: Place) -> None:
    await place.run(ANTHROPIC, retries=RETRIES)
    assert (await place.ask(ANTHROPIC)).status_code in {400, 401, 404}
    assert len(place.model.log) == 1


@pytest.mark.rule("B3", "I4")
@scripted(Fault(kind="status", status=503, times=9))
async def test_a_budget_that_is_spent_stays_spent(place: Place) -> None:
    operator = await place.run(ANTHROPIC, retries=ResolvedRetries(max_attempts=4, budget=4))
    assert [(await place.ask(ANTHROPIC)).status_code for _ in range(2)] == [503, 503]
    assert len(place.model.log) == 4 + 2, "three retries, then the one that was left"
    place.gateway.restart()
    answer = await place.ask(ANTHROPIC)
    assert (answer.status_code, answer.headers["x-moorage-retries-left"]) == (503, "0")
    assert len(place.model.log) == 4 + 2 + 1
    assert (await operator.state())["usage"]["model_retries"] == 4


@pytest.mark.rule("B3")
@scripted(Fault(kind="status", status=503, times=99))
async def test_many_at_once_share_one_budget(place: Place) -> None:
    operator = await place.run(ANTHROPIC, retries=ResolvedRetries(max_attempts=10, budget=3))
    answers = await asyncio.gather(*(place.ask(ANTHROPIC, max_tokens=100 + n) for n in range(4)))
    assert {answer.status_code for answer in answers} == {503}
    assert (await operator.state())["usage"]["model_retries"] == 3
    assert len(place.model.log) == 4 + 3


@ALL
@STREAMING
@scripted(Fault(kind="cut", after=0))
async def test_an_answer_that_broke_before_anybody_heard_of_it_is_asked_for_again(
    place: Place, spoken: Spoken, *, stream: bool
) -> None:
    operator = await place.run(spoken, retries=RETRIES)
    assert (await place.ask(spoken, stream=stream)).status_code == 200
    lost, answered = await of_type(operator, "MODEL_RESPONSE")
    assert (lost.payload["complete"], lost.payload["estimated"]) == (False, True), "it may have cost something"
    assert spoken.vector.items() <= answered.payload["usage"].items()
    used = (await operator.state())["usage"]
    assert used["input_tokens"] == lost.payload["usage"]["input_tokens"] + spoken.vector["input_tokens"]


@ALL
@scripted(Fault(kind="overloaded", times=1))
async def test_a_stream_that_is_only_an_error_is_a_refusal(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken, retries=RETRIES)
    answer = await place.ask(spoken, stream=True)
    assert (answer.status_code, answer.headers["x-moorage-retries"]) == (200, "1")
    assert spoken.final in answer.content
    failed, _ = await of_type(operator, "MODEL_RESPONSE")
    assert (failed.payload["problem"], failed.payload["usage"]) == ("ProviderFailed", {})


@ALL
@scripted(Fault(kind="overloaded", times=9))
async def test_an_error_that_stays_one_is_passed_on_as_it_came(place: Place, spoken: Spoken) -> None:
    await place.run(spoken, retries=RETRIES)
    answer = await place.ask(spoken, stream=True)
    assert (answer.status_code, answer.headers["x-moorage-retries"]) == (200, "3")
    assert b"scripted fault" in answer.content


@ALL
@scripted(Fault(kind="cut", after=3))
async def test_what_the_agent_heard_some_of_is_cut_for_it_and_not_sent_again(place: Place, spoken: Spoken) -> None:
    await place.run(spoken, retries=RETRIES)
    with pytest.raises(httpx.RemoteProtocolError):
        await place.ask(spoken, stream=True)
    assert len(place.model.log) == 1


async def test_a_provider_that_nobody_reaches_is_tried_again(place: Place) -> None:
    operator = await place.run(ANTHROPIC, retries=RETRIES, base_url="http://127.0.0.1:9")
    answer = await place.ask(ANTHROPIC)
    assert (answer.status_code, answer.headers["x-moorage-retries"]) == (502, "3")
    assert await statuses(operator) == [0] * 4
    assert (await operator.state())["usage"]["output_tokens"] == 0


@pytest.mark.rule("I5")
@scripted(Fault(kind="status", status=429, retry_after_s=59, times=9))
async def test_a_cancelled_run_waits_for_no_retry(place: Place) -> None:
    operator = await place.run(ANTHROPIC, retries=RETRIES)
    asking = asyncio.create_task(place.ask(ANTHROPIC))
    async with asyncio.timeout(40):
        while await statuses(operator) != [429]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
        assert (await asking).status_code == 429
    assert len(place.model.log) == 1


@pytest.mark.rule("Q3")
@scripted(Fault(kind="status", status=503, times=3))
async def test_a_provider_that_fails_and_fails_is_left_alone_for_a_while(place: Place, clock: StepClock) -> None:
    settings(place, breaker_failures=3, breaker_open_ms=5_000)
    operator = await place.run(ANTHROPIC, retries=ResolvedRetries(max_attempts=3, budget=10))
    assert (await place.ask(ANTHROPIC)).status_code == 503
    assert counted(place, "moorage_model_breakers_open") == 1
    refused = await place.ask(ANTHROPIC)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "x-should-retry" not in refused.headers
    assert "ProviderDown" in refused.json()["error"]["message"]
    assert len(place.model.log) == len(await of_type(operator, "MODEL_REQUEST")) == 3, "nobody asked, nothing noted"
    clock.advance(5_000)
    assert (await place.ask(ANTHROPIC)).status_code == 200
    assert counted(place, "moorage_model_breakers_open") == 0


@pytest.mark.rule("Q3")
@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize("limit", [{"requests_per_minute": 2}, {"tokens_per_minute": 600}])
async def test_no_more_leaves_in_a_minute_than_the_provider_takes(
    place: Place, clock: StepClock, limit: dict[str, int], gateways: int
) -> None:
    """One of several asks its share, so that all of them ask no more than that."""
    settings(place, model_room_ms=50, gateways=gateways)
    operator = await place.run(ANTHROPIC, **{name: amount * gateways for name, amount in limit.items()})
    answers = [await place.ask(ANTHROPIC, max_tokens=n) for n in (100, 101, 102)]
    assert [answer.status_code for answer in answers] == [200, 200, 429], "300 and more tokens each"
    assert answers[2].headers["retry-after"] == "5"
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert (payload["problem"], payload["usage"]) == ("ProviderBusy", {})
    assert len(place.model.log) == 2
    clock.advance(60_000)
    assert (await place.ask(ANTHROPIC, max_tokens=103)).status_code == 200


async def test_an_answer_that_is_too_long_is_no_fault_of_the_providers(place: Place) -> None:
    settings(place, max_content_bytes=600, breaker_failures=1)
    operator = await place.run(ANTHROPIC, retries=RETRIES)
    answer = await place.ask(ANTHROPIC)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert "AnswerTooLarge" in answer.json()["error"]["message"]
    assert len(place.model.log) == 1
    assert (await last(operator, "MODEL_RESPONSE")).payload["problem"] == "TooLarge"
    assert counted(place, "moorage_model_breakers_open") == 0
