"""The model doors in all three protocols, against the stand-in over real sockets."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.gateway_script import Operator, ok
from tests.model_place import (
    ANTHROPIC,
    CHAT,
    KEY,
    PRICES,
    RESPONSES,
    USAGE,
    Place,
    Spoken,
    gateway,
    last,
    place,
    script,
)

from moorage.api.budget import ResolvedLimits
from moorage.testing.clock import StepClock
from moorage.testing.models import Fault, Reply, StandIn
from moorage.testing.serving import listening

CUT = Reply(text="word " * 50, usage=USAGE, faults=(Fault(kind="cut", after=6),))
ALL = pytest.mark.parametrize("spoken", [ANTHROPIC, RESPONSES, CHAT], ids=lambda each: each.name)
__all__ = ["gateway", "place", "script"]  # fixtures


def said(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def some(usage: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in usage.items() if amount}


async def asked_directly(model: StandIn, spoken: Spoken, **changes: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=model.url) as client:
        return await client.post(spoken.path.removeprefix("/model"), json=spoken.ask(**changes))


@pytest.mark.rule("T2", "B1")
@ALL
@pytest.mark.parametrize("stream", [False, True])
async def test_each_protocol_passes_as_it_is_and_is_counted(place: Place, spoken: Spoken, stream: bool) -> None:
    operator = await place.run(spoken)
    answer = await place.ask(spoken, stream=stream)
    assert answer.status_code == 200
    assert answer.content == (await asked_directly(place.model, spoken, stream=stream)).content
    assert place.model.log[0].api_key == KEY
    request, response = await last(operator, "MODEL_REQUEST"), await last(operator, "MODEL_RESPONSE")
    assert (request.payload["protocol"], request.payload["stream"]) == (spoken.name, stream)
    assert (some(response.payload["usage"]), response.payload["estimated"]) == (spoken.vector, False)
    assert (response.payload["stop_reason"], response.payload["complete"]) == (spoken.stop, True)
    content = await place.gateway.deps.blobs.get("team-a", response.attachments["content"])
    assert content == answer.content
    assert some((await operator.state())["usage"]) == spoken.vector | {"model_requests": 1}


COST = 17 * 3 + 100 * 3 // 10 + 300 * 15  # micro-dollars of USAGE: 4,581


@pytest.mark.rule("B1", "B3", "C7")
@ALL
async def test_each_answer_has_its_cost_and_a_hard_limit_stops(place: Place, spoken: Spoken) -> None:
    limits = ResolvedLimits(cost_soft_micros=1, cost_hard_micros=2 * COST)
    operator = await place.run(spoken, limits=limits, prices=PRICES)
    first, second, third = [await place.ask(spoken, stream=stream) for stream in (True, False, False)]
    assert (first.headers["x-moorage-cost-left"], first.headers["x-moorage-cost-used"]) == ("0.009162", "0.00")
    assert (second.headers["x-moorage-cost-left"], second.headers["x-moorage-cost-used"]) == ("0.004581", "0.004581")
    assert (third.status_code, third.headers["x-should-retry"]) == (400, "false")
    assert "BudgetExhausted: the run's cost limit of $0.009162 is used up" in third.json()["error"]["message"]
    answers = [r.payload["usage"]["cost_micros"] for r in await operator.records() if r.type == "MODEL_RESPONSE"]
    assert answers == [COST, COST]
    assert (await operator.state())["usage"]["cost_micros"] == 2 * COST
    assert len(place.model.log) == 2


@pytest.mark.rule("B2", "B3")
@pytest.mark.parametrize("limited", ["tokens", "cost"])
async def test_as_many_requests_as_may_be_open_pass_a_limit_by_one_at_most(place: Place, limited: str) -> None:
    """Each reserves its worst case and waits for room; the sum over all answers is the run's."""
    tokens, cost = 10 * 417, 10 * COST
    limits = ResolvedLimits(tokens_hard=tokens) if limited == "tokens" else ResolvedLimits(cost_hard_micros=cost)
    operator = await place.run(ANTHROPIC, limits=limits, prices=PRICES)
    most = place.gateway.deps.settings.model_open
    asking = [place.ask(ANTHROPIC, stream=n % 2 == 0, max_tokens=300, temperature=n / 100) for n in range(most)]
    answers = await asyncio.gather(*asking)
    assert sorted({answer.status_code for answer in answers}) == [200, 400]
    refused = [answer.json()["error"]["message"] for answer in answers if answer.status_code == 400]
    assert all(message.startswith("BudgetExhausted") for message in refused)
    used = (await operator.state())["usage"]
    assert len(place.model.log) == used["model_requests"] == most - len(refused)
    assert used["cost_micros"] == len(place.model.log) * COST
    assert len(place.model.log) == 10, "requests that wait for room use all that there is"


@pytest.mark.rule("B2")
@pytest.mark.parametrize("script", [(Reply(text="x", usage=USAGE, faults=(Fault(kind="stall"),)),)])
async def test_what_its_gateway_never_heard_the_end_of_is_charged_at_its_worst(place: Place) -> None:
    limits = ResolvedLimits(cost_hard_micros=100_000)
    operator = await place.run(ANTHROPIC, limits=limits, prices=PRICES)
    place.waiting.append(asyncio.create_task(place.ask(ANTHROPIC)))
    async with asyncio.timeout(40):
        while not place.model.log:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    reserved = (await last(operator, "MODEL_REQUEST")).payload["reserved"]
    assert reserved["output_tokens"] == 1_000
    assert (await operator.state())["usage"].get("cost_micros", 0) == 0
    place.gateway.restart()
    assert (await place.ask(ANTHROPIC, temperature=1)).status_code == 200
    lost = next(r.payload for r in await operator.records() if r.type == "MODEL_RESPONSE")
    assert (lost["problem"], lost["estimated"], lost["complete"]) == ("GatewayLost", True, False)
    assert lost["usage"] == reserved
    assert (await operator.state())["usage"]["cost_micros"] == reserved["cost_micros"] + COST


STALLED = (Reply(text="x", usage=USAGE, faults=(Fault(kind="stall"),)),)


async def reserved_all(place: Place, clock: StepClock) -> Operator:
    """A run whose whole budget is reserved for a request that stalls."""
    settings = replace(place.gateway.deps.settings, keep_alive_ms=20)
    place.gateway.deps = replace(place.gateway.deps, settings=settings)
    place.gateway.restart()
    operator = await place.run(ANTHROPIC, limits=ResolvedLimits(tokens_hard=500))
    place.waiting.append(asyncio.create_task(place.ask(ANTHROPIC)))
    async with asyncio.timeout(40):
        while not place.model.log:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return operator


@pytest.mark.rule("B2")
@pytest.mark.parametrize("script", [STALLED])
async def test_room_that_doesnt_come_is_told_as_what_may_pass(place: Place, clock: StepClock) -> None:
    await reserved_all(place, clock)
    waiting = asyncio.create_task(place.ask(ANTHROPIC, temperature=1))
    while not waiting.done():  # however late it asks: its patience begins when it does
        clock.advance(place.gateway.deps.settings.model_room_ms)
        await asyncio.sleep(0.01)
    answer = await waiting
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
    assert "BudgetReserved" in answer.json()["error"]["message"]
    assert len(place.model.log) == 1


@pytest.mark.parametrize("script", [STALLED])
async def test_who_goes_away_while_waiting_asks_nothing(place: Place, clock: StepClock) -> None:
    operator = await reserved_all(place, clock)
    given_up = place.gateway.deps.metrics.model_requests.labels("anthropic-messages", "BudgetReserved")
    patience = 0.1
    async with asyncio.timeout(40):
        while not given_up._value.get():  # the time stands still: it isn't patience that ends
            asking = asyncio.create_task(place.ask(ANTHROPIC, temperature=1))
            await asyncio.wait({asking}, timeout=patience)  # one comes as far as to wait, and is cut there
            asking.cancel()
            patience *= 1.5  # however slow the machine is
    assert (await operator.types()).count("MODEL_REQUEST") == len(place.model.log) == 1


@pytest.mark.rule("B2")
@pytest.mark.parametrize("script", [STALLED])
async def test_a_lost_request_is_charged_at_the_runs_end_at_the_latest(place: Place, clock: StepClock) -> None:
    operator = await reserved_all(place, clock)
    place.gateway.restart()
    end = {"reason": "AgentFailed", "message": "", "commit": None}
    await ok(await operator.report(1, "RUN_FAILED", end))
    reserved = (await last(operator, "MODEL_REQUEST")).payload["reserved"]
    used = (await operator.state())["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (reserved["input_tokens"], 1_000)


class Peak:
    """A provider that notes how many requests it had at once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._now, self.most = app, 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._now -= 1  # before anybody can know that it is over
            await send(message)

        self._now += 1
        self.most = max(self.most, self._now)
        await self._app(scope, receive, noting)


DRIPPING = Reply(text="word " * 50, usage=USAGE, faults=(Fault(kind="drip", seconds=0.01, times=99),))


@pytest.mark.parametrize("script", [(DRIPPING,)])
async def test_no_more_requests_are_under_way_than_the_provider_takes(place: Place) -> None:
    peak = Peak(place.model.app)
    async with listening(peak) as url:
        await place.run(ANTHROPIC, base_url=url, max_concurrent=2)
        asking = [place.ask(ANTHROPIC, stream=n % 2 == 0, temperature=n / 100) for n in range(10)]
        answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} == {200}
    assert peak.most <= 2


@pytest.mark.rule("M1")
@ALL
@pytest.mark.parametrize("script", [(Reply(text="word " * 2_000, usage=USAGE),)])
async def test_however_many_events_an_answer_has_the_journal_has_two_records_of_it(
    place: Place, spoken: Spoken
) -> None:
    operator = await place.run(spoken)
    before = len(await operator.types())
    answer = await place.ask(spoken, stream=True)
    assert len(said(answer)) > 100, "an answer of many events"
    assert (await operator.types())[before:] == ["MODEL_REQUEST", "MODEL_RESPONSE"]


@pytest.mark.rule("R2")
@ALL
async def test_the_record_comes_before_what_can_be_acted_on(place: Place, spoken: Spoken) -> None:
    operator, got = await place.run(spoken), b""
    async with place.client().stream("POST", spoken.path, json=spoken.ask(stream=True)) as answer:
        async for chunk in answer.aiter_bytes():
            got += chunk
            if spoken.final in chunk:
                assert "MODEL_RESPONSE" in await operator.types()
    assert spoken.final in got


@pytest.mark.rule("R2")
@ALL
async def test_a_recovered_attempt_gets_the_recorded_answer_and_is_not_billed(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken)
    first = await place.ask(spoken, stream=True)
    used = (await operator.state())["usage"]
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    place.gateway.restart()
    again = await place.ask(spoken, "p2", stream=True)
    assert (again.content, again.headers["x-moorage-replayed"]) == (first.content, "true")
    assert (await operator.state())["usage"] == used
    assert len(place.model.log) == 1


@pytest.mark.parametrize("script", [(CUT,)])
@ALL
async def test_a_cut_stream_is_cut_for_the_agent_too_and_settled_as_an_estimate(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken)
    with pytest.raises(httpx.RemoteProtocolError):
        await place.ask(spoken, stream=True)
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert (payload["complete"], payload["estimated"]) == (False, True)
    assert payload["usage"]["input_tokens"] > 0
    assert payload["usage"]["output_tokens"] >= 1


async def test_a_chats_usage_is_told_to_us_and_only_to_who_asked(place: Place) -> None:
    await place.run(CHAT)
    plain = await place.ask(CHAT, stream=True)
    asking = await place.ask(CHAT, stream=True, stream_options={"include_usage": True})
    sent = [body.get("stream_options") for body in place.model.bodies]
    assert sent == [{"include_usage": True}] * 2
    assert all(chunk["choices"] for chunk in said(plain))
    assert said(asking)[:-1] == said(plain)
    assert said(asking)[-1]["usage"]["completion_tokens"] == 300
    assert plain.text.endswith("data: [DONE]\n\n")


@ALL
async def test_refusals_are_in_the_providers_shape_and_not_retried(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken, limits=ResolvedLimits(tokens_hard=0))
    other = await place.ask(spoken, model="m-2")
    spent = await place.ask(spoken)
    assert [(a.status_code, a.headers["x-should-retry"]) for a in (other, spent)] == [(404, "false"), (400, "false")]
    error = spent.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("BudgetExhausted")
    assert place.model.log == []
    assert "MODEL_REQUEST" not in await operator.types()


async def test_the_other_protocols_doors_are_closed_to_a_run(place: Place) -> None:
    await place.run(RESPONSES)
    for other in (ANTHROPIC, CHAT):
        answer = await place.ask(other)
        assert answer.status_code == 404
        assert "ask at /v1/responses" in answer.json()["error"]["message"]
    assert place.model.log == []


@pytest.mark.parametrize("script", [(Reply(text="x", faults=(Fault(kind="status", status=429, retry_after_s=3),)),)])
@ALL
async def test_a_providers_refusal_passes_and_costs_nothing(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken)
    answer = await place.ask(spoken)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert (payload["status"], payload["usage"], payload["complete"]) == (429, {}, False)


@ALL
async def test_the_list_of_models_is_what_the_run_may_use(place: Place, spoken: Spoken) -> None:
    await place.run(spoken, allowed=("m-1", "vendor/m-2"))
    client = place.client()
    listed = (await ok(await client.get("/model/v1/models")))["data"]
    assert [model["id"] for model in listed] == ["m-1", "vendor/m-2"]
    assert await ok(await client.get("/model/v1/models/vendor/m-2")) == listed[1]
    missing = await client.get("/model/v1/models/m-3")
    assert (missing.status_code, "error" in missing.json()) == (404, True)
    stranger = await place.gateway.sandbox("nobody", "team-a").get("/model/v1/models")
    assert stranger.status_code in {401, 425}
    assert place.model.log == []


async def test_tokens_are_counted_by_the_provider_and_nothing_is_recorded(place: Place) -> None:
    operator = await place.run(ANTHROPIC, limits=ResolvedLimits(tokens_hard=0))
    body = ANTHROPIC.ask()
    answer = await place.client().post("/model/v1/messages/count_tokens", json=body)
    assert (answer.status_code, answer.json()["input_tokens"] > 5) == (200, True)
    refused = await place.client().post("/model/v1/messages/count_tokens", json=body | {"model": "m-2"})
    assert refused.status_code == 404
    assert not [kind for kind in await operator.types() if kind.startswith("MODEL")]


async def test_a_base_url_with_the_version_in_it_is_the_same_address(place: Place) -> None:
    await place.run(CHAT, base_url=f"{place.model.url}/v1/")
    assert (await place.ask(CHAT)).status_code == 200
