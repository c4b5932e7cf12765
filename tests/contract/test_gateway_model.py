"""The model door against a small real provider on loopback: what leaves, what comes back, what the journal has then."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.gateway_script import Operator, agent_at_work, ok, resolved

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedModel, SecretRef

KEY = "sk-ant-real-0123456789abcdef"
MODEL = "claude-test"


def event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


STREAM = [
    event(
        "message_start",
        message={"usage": {"input_tokens": 11, "cache_read_input_tokens": 500, "cache_creation_input_tokens": 40}},
    ),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Let me look."}),
    event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 25}),
    event("message_stop"),
]
MESSAGE = {
    "type": "message",
    "content": [{"type": "text", "text": "done"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 7, "output_tokens": 3},
}


@dataclass
class Provider:
    """Answers like the real one, from a script, and keeps what it was asked."""

    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200
    events: list[bytes] = field(default_factory=lambda: STREAM)
    cut_after: int | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def messages(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append((dict(request.headers), body))
        self.reached.set()
        if self.status != 200:
            error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
            return JSONResponse(error, self.status, {"retry-after": "3"})
        if not json.loads(body).get("stream"):
            return JSONResponse(MESSAGE, headers={"request-id": "req_1"})
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        for at, chunk in enumerate(self.events):
            if self.cut_after is not None and at >= self.cut_after:
                raise ConnectionResetError("cut on purpose")
            if at == 2:
                await self.gate.wait()
            yield chunk

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Provider"]:
        app = Starlette(routes=[Route("/v1/messages", self.messages, methods=["POST"])])
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            config = uvicorn.Config(app, log_config=None, log_level="critical", lifespan="off", ws="none")
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve([listener]))
            try:
                yield self
            finally:
                self.gate.set()
                server.should_exit = True
                await task


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider().serving() as running:
        running.gate.set()
        yield running


def with_model(upstream, provider: Provider, **changes: Any):
    model = ResolvedModel(
        provider="main",
        protocol="anthropic-messages",
        base_url=provider.url,
        name=MODEL,
        credentials=SecretRef(name="model", key="api-key"),
    ).model_copy(update={k: v for k, v in changes.items() if k in ResolvedModel.model_fields})
    spec = resolved(upstream)
    limits = changes.get("limits", ResolvedLimits())
    return spec.model_copy(update={"agent": spec.agent.model_copy(update={"model": model}), "limits": limits})


@pytest.fixture
async def operator(gateway, upstream, provider) -> Operator:
    gateway.secrets.give("team-a", "model", **{"api-key": KEY})
    made = Operator(gateway, with_model(upstream, provider))
    await agent_at_work(gateway, made)
    return made


def ask(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "temperature": 0.7, "messages": [{"role": "user", "content": "hi"}]} | (
        changes
    )


async def asked(gateway, body: dict[str, Any], pod: str = "p1", **headers: str | bytes) -> httpx.Response:
    return await gateway.sandbox(pod, "team-a").post("/model/v1/messages", json=body, headers=headers)


def last(records: list[Any], kind: str) -> Any:
    return [record for record in records if record.type == kind][-1]


def answered(records: list[Any], number: int) -> Any:
    """The answer's record of the request that was noted as that one."""
    asked = [record.request_id for record in records if record.type == "MODEL_REQUEST"][number]
    return next(record for record in records if record.type == "MODEL_RESPONSE" and record.request_id == asked)


@pytest.mark.rule("T2", "L4", "J8")
async def test_the_key_is_added_on_the_way_out_and_both_directions_are_journaled(gateway, provider, operator) -> None:
    headers = {
        "x-client": b"sch\xf6n",
        "x-api-key": "dummy",
        "anthropic-version": "2023-06-01",
        "cookie": "a=b",
        "x-moorage-turn": "4",
    }
    answer = await asked(gateway, ask(), **headers)
    assert (answer.status_code, answer.json()) == (200, MESSAGE)
    assert answer.headers["request-id"] == "req_1"
    sent, body = provider.asked[0]
    assert sent["x-api-key"] == KEY
    assert sent["x-client"].encode("latin-1").decode() == "schön", "bytes that are no UTF-8 leave as UTF-8"
    assert sent["anthropic-version"] == "2023-06-01"
    assert not {"authorization", "cookie", "x-moorage-turn"} & set(sent)
    records = await operator.records()
    request, response = last(records, "MODEL_REQUEST"), last(records, "MODEL_RESPONSE")
    assert request.request_id == response.request_id
    assert request.turn == 4
    assert request.payload["model"] == MODEL
    assert response.payload["usage"] == {"input_tokens": 7, "output_tokens": 3}
    assert (response.payload["stop_reason"], response.payload["estimated"]) == ("end_turn", False)
    assert await gateway.deps.blobs.get("team-a", request.attachments["content"]) == body
    assert request.attachments["content"].retention == "erasable"
    stored = b"".join([entry.body async for entry in gateway.deps.store.stored("u1")])
    assert KEY.encode() not in stored
    assert b'"hi"' not in stored
    assert (await operator.state())["usage"]["model_requests"] == 1


async def test_a_stream_passes_event_by_event(gateway, provider, operator) -> None:
    provider.gate.clear()
    client = gateway.sandbox("p1", "team-a")
    got = b""
    async with client.stream("POST", "/model/v1/messages", json=ask(stream=True)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for chunk in answer.aiter_bytes():
            got += chunk
            if b"Let me look." in got and not provider.gate.is_set():
                assert "MODEL_RESPONSE" not in await operator.types()
                provider.gate.set()
            if b"message_stop" in chunk:
                assert "MODEL_RESPONSE" in await operator.types(), "durable before it can be acted on"
    assert got == b"".join(STREAM)
    payload = last(await operator.records(), "MODEL_RESPONSE").payload
    assert payload["usage"] == {
        "input_tokens": 11,
        "output_tokens": 25,
        "cache_read_tokens": 500,
        "cache_write_tokens": 40,
    }
    assert (payload["stop_reason"], payload["complete"]) == ("tool_use", True)
    assert (await operator.state())["usage"]["input_tokens"] == 11


async def test_a_cut_stream_is_cut_for_the_agent_too_and_settled_as_an_estimate(gateway, provider, operator) -> None:
    provider.cut_after = 2
    with pytest.raises(httpx.RemoteProtocolError):
        await asked(gateway, ask(stream=True))
    payload = last(await operator.records(), "MODEL_RESPONSE").payload
    assert (payload["complete"], payload["estimated"]) == (False, True)
    assert payload["usage"]["input_tokens"] == 11
    assert payload["usage"]["output_tokens"] == 3  # 12 characters


@pytest.mark.rule("R2")
async def test_a_recovered_attempt_gets_the_recorded_answer_and_is_not_billed(gateway, provider, operator) -> None:
    for body in (ask(), ask(stream=True)):
        first = await asked(gateway, body)
    used = (await operator.state())["usage"]
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    gateway.restart()
    again = await asked(gateway, dict(reversed(ask(stream=True).items())), "p2")
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert (await asked(gateway, ask(), "p2")).json() == MESSAGE
    assert len(provider.asked) == 2
    assert (await operator.state())["usage"] == used
    assert last(await operator.records(), "MODEL_RESPONSE").payload["replayed"] is True
    await asked(gateway, ask(max_tokens=101), "p2")
    assert len(provider.asked) == 3


@pytest.mark.rule("R2")
async def test_what_was_answered_before_the_safe_point_is_asked_anew(gateway, provider, operator) -> None:
    await asked(gateway, ask())
    runner = gateway.sandbox("p1", "team-a")
    point = {"epoch": 1, "iteration": 1, "changed": False, "recorded_at": 1}
    await ok(await runner.post("/v1/self/checkpoint", json=point))
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    await asked(gateway, ask(), "p2")
    assert len(provider.asked) == 2


async def test_the_same_question_within_an_attempt_is_a_new_decision_but_not_a_retry(
    gateway, provider, operator
) -> None:
    await asked(gateway, ask())
    await asked(gateway, ask())
    assert len(provider.asked) == 2
    await asked(gateway, ask(), **{"x-stainless-retry-count": "1"})
    assert len(provider.asked) == 2


async def test_what_is_refused_is_told_in_the_providers_words(gateway, provider, operator) -> None:
    other = await asked(gateway, ask(model="claude-huge"))
    assert (other.status_code, other.json()["error"]["type"]) == (404, "not_found_error")
    assert other.headers["x-should-retry"] == "false"
    broken = await gateway.sandbox("p1", "team-a").post("/model/v1/messages", content=b"{")
    assert broken.json()["error"]["type"] == "invalid_request_error"
    nowhere = await gateway.sandbox("p1", "team-a").post("/model/v1/complete", json={})
    assert nowhere.json()["type"] == "error"
    gateway.secrets.held.clear()
    missing = await asked(gateway, ask())
    assert (missing.status_code, missing.json()["error"]["type"]) == (401, "authentication_error")
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    fenced = await asked(gateway, ask())
    assert (fenced.status_code, fenced.headers["x-should-retry"]) == (400, "false")
    assert not provider.asked
    assert "MODEL_REQUEST" not in await operator.types()


async def test_a_providers_refusal_passes_and_costs_nothing(gateway, provider, operator) -> None:
    provider.status = 429
    answer = await asked(gateway, ask())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    payload = last(await operator.records(), "MODEL_RESPONSE").payload
    assert (payload["status"], payload["usage"], payload["complete"]) == (429, {}, False)


async def test_an_unreachable_provider_is_noted_and_may_be_asked_again(gateway, upstream, provider) -> None:
    gateway.secrets.give("team-a", "model", **{"api-key": KEY})
    operator = Operator(gateway, with_model(upstream, provider, base_url="http://127.0.0.1:9"))
    await agent_at_work(gateway, operator)
    answer = await asked(gateway, ask())
    assert answer.status_code == 502
    assert "x-should-retry" not in answer.headers
    assert last(await operator.records(), "MODEL_RESPONSE").payload["status"] == 0


@pytest.mark.parametrize("key", ["k\u201dey", "k\u00e9y", "ke\ny"])
async def test_a_key_that_no_header_can_carry_is_refused_by_name_before_anything_is_noted(
    gateway, upstream, provider, key: str
) -> None:
    gateway.secrets.give("team-a", "model", **{"api-key": key})
    operator = Operator(gateway, with_model(upstream, provider))
    await agent_at_work(gateway, operator)
    answer = await asked(gateway, ask())
    assert (answer.status_code, "Secret model" in answer.text, key in answer.text) == (401, True, False)
    assert [r.type for r in await operator.records() if r.type.startswith("MODEL")] == []
    assert provider.asked == []


@pytest.mark.rule("B3")
@pytest.mark.parametrize("limit", [0, 10])
async def test_a_hard_limit_stops_and_is_not_retried(gateway, upstream, provider, limit) -> None:
    gateway.secrets.give("team-a", "model", **{"api-key": KEY})
    operator = Operator(gateway, with_model(upstream, provider, limits=ResolvedLimits(tokens_hard=limit)))
    await agent_at_work(gateway, operator)
    while (answer := await asked(gateway, ask())).status_code == 200:
        assert answer.headers["x-moorage-tokens-left"] == str(limit)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert "BudgetExhausted" in answer.json()["error"]["message"]
    assert len(provider.asked) == limit // 10


@pytest.mark.rule("I5")
async def test_a_cancelling_run_asks_no_model(gateway, provider, operator) -> None:
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    answer = await asked(gateway, ask())
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert not provider.asked


@pytest.mark.rule("R2")
async def test_an_answer_that_came_after_its_attempt_was_lost_is_not_lost(gateway, provider, operator) -> None:
    provider.gate.clear()
    waiting = asyncio.create_task(asked(gateway, ask(stream=True)))
    await asyncio.wait_for(provider.reached.wait(), 5)
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    await operator.register("p2", 2)
    provider.gate.set()
    first = await waiting
    again = await asked(gateway, ask(stream=True), "p2")
    assert again.content == first.content
    assert len(provider.asked) == 1
    assert (await operator.state())["usage"]["output_tokens"] == 25


@pytest.mark.rule("T3")
@pytest.mark.parametrize("host", ["169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "0xa9.254.169.254"])
async def test_no_provider_is_a_metadata_service(gateway, upstream, provider, host) -> None:
    gateway.secrets.give("team-a", "model", **{"api-key": KEY})
    operator = Operator(gateway, with_model(upstream, provider, base_url=f"http://{host}"))
    await agent_at_work(gateway, operator)
    answer = await asked(gateway, ask())
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    assert "MODEL_REQUEST" not in await operator.types()


@pytest.mark.parametrize("address", ["http://[", "http://127.0.0.1:99999", "nonsense", "ftp://127.0.0.1"])
async def test_a_provider_without_an_address_is_told(gateway, upstream, provider, address) -> None:
    gateway.secrets.give("team-a", "model", **{"api-key": KEY})
    operator = Operator(gateway, with_model(upstream, provider, base_url=address))
    await agent_at_work(gateway, operator)
    answer = await asked(gateway, ask())
    assert (answer.status_code, answer.headers["x-should-retry"]) == (404, "false")
    assert "MODEL_REQUEST" not in await operator.types()


@pytest.mark.rule("B2")
async def test_what_is_answered_after_the_end_is_charged_too(gateway, provider, operator) -> None:
    provider.gate.clear()
    waiting = asyncio.create_task(asked(gateway, ask(stream=True)))
    await asyncio.wait_for(provider.reached.wait(), 30)
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "", "commit": None}))
    provider.gate.set()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(40):
        while (await operator.types())[-1] != "MODEL_RESPONSE":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    usage = (await operator.state())["usage"]
    assert (usage["input_tokens"], usage["cache_read_tokens"], usage["cache_write_tokens"]) == (11, 500, 40)


# --- turns ------------------------------------------------------------------------------------------------------------


Asking = asyncio.Task[httpx.Response]


async def waiting_for_a_turn(gateway, upstream, provider) -> tuple[Operator, Asking, Asking]:
    """A run whose provider takes one request at once; one that it is at, and one that waits."""
    operator = await one_at_once(gateway, upstream, provider)
    provider.gate.clear()
    first = asyncio.create_task(asked(gateway, ask(stream=True)))
    await asyncio.wait_for(provider.reached.wait(), 30)
    second = asyncio.create_task(asked(gateway, ask(temperature=1)))
    async with asyncio.timeout(40):
        while (await operator.types()).count("MODEL_REQUEST") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return operator, first, second


async def one_at_once(gateway, upstream, provider) -> Operator:
    gateway.secrets.give("team-a", "model", **{"api-key": KEY})
    operator = Operator(gateway, with_model(upstream, provider, max_concurrent=1))
    await agent_at_work(gateway, operator)
    return operator


async def refused_at_its_turn(operator: Operator, first: Asking, second: Asking, provider, why: str) -> None:
    provider.gate.set()
    answer = await asyncio.wait_for(second, 40)
    await asyncio.gather(first, return_exceptions=True)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert why in answer.text
    assert len(provider.asked) == 1
    records = await operator.records()
    payload = answered(records, 1).payload
    assert (payload["status"], payload["problem"], payload["usage"]) == (0, why, {})


@pytest.mark.rule("I5")
async def test_a_run_that_is_cancelled_while_it_waits_for_its_turn_asks_nothing(gateway, upstream, provider) -> None:
    operator, first, second = await waiting_for_a_turn(gateway, upstream, provider)
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    await refused_at_its_turn(operator, first, second, provider, "RunStopped")


@pytest.mark.rule("F3")
async def test_an_attempt_that_is_over_when_its_turn_comes_asks_nothing(gateway, upstream, provider) -> None:
    operator, first, second = await waiting_for_a_turn(gateway, upstream, provider)
    await ok(await operator.report(1, "ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "Lost"}))
    await ok(await operator.fence(2))
    await refused_at_its_turn(operator, first, second, provider, "Fenced")
    assert last(await operator.records(), "FENCE_REFUSED").payload["door"] == "model"


PART = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x" * 2**20})
LONG = [STREAM[0], *[PART] * 14, *STREAM[2:]]
"""More than what sockets take for who doesn't read, and less than what may wait."""


async def test_an_agent_that_doesnt_read_holds_no_turn_and_loses_nothing(gateway, upstream, provider) -> None:
    operator = await one_at_once(gateway, upstream, provider)
    provider.events, client = LONG, gateway.sandbox("p1", "team-a")
    async with client.stream("POST", "/model/v1/messages", json=ask(stream=True)) as answer:
        assert (await asked(gateway, ask())).json() == MESSAGE
        first = answered(await operator.records(), 0).payload
        assert (first["complete"], first["usage"]["output_tokens"]) == (True, 25)
        assert b"".join([chunk async for chunk in answer.aiter_bytes()]) == b"".join(LONG)


async def test_an_agent_that_leaves_too_much_unread_is_cut(gateway, upstream, provider) -> None:
    settings = replace(gateway.deps.settings, max_content_bytes=64 * 1024)
    gateway.deps = replace(gateway.deps, settings=settings)
    gateway.restart()
    operator = await one_at_once(gateway, upstream, provider)
    provider.events, client = LONG, gateway.sandbox("p1", "team-a")
    async with client.stream("POST", "/model/v1/messages", json=ask(stream=True)) as answer:
        assert (await asked(gateway, ask())).json() == MESSAGE
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in answer.aiter_bytes():
                pass
    first = answered(await operator.records(), 0).payload
    assert (first["problem"], first["complete"], first["usage"]["input_tokens"]) == ("TooLarge", False, 11)
