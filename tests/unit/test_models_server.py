"""The stand-in over HTTP: whole answers, events, faults, and its memory of what was asked."""

import json
import time
from typing import Any

import httpx
import pytest

from moorage.testing.models import Fault, Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Usage

USAGE = Usage(input_tokens=12, output_tokens=7, cache_read_input_tokens=100, cache_creation_input_tokens=5)
CALL = ToolCall(name="bash", input={"command": "ls " + "x" * 200})


def ask(text: str = "mend it", **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


async def post(model: StandIn, body: dict[str, Any], patience: float = 40.0) -> httpx.Response:
    async with httpx.AsyncClient(
        base_url=model.url, headers={"x-api-key": "k-1"}, timeout=httpx.Timeout(40.0, read=patience)
    ) as client:
        return await client.post("/v1/messages", json=body)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_a_whole_answer_and_the_log() -> None:
    async with StandIn(Script(replies=(Reply(text="I look.", tools=(CALL,), usage=USAGE),))).serving() as model:
        answer = (await post(model, ask())).json()
        async with httpx.AsyncClient() as client:
            log = (await client.get(f"{model.url}/_log")).json()
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]
    assert answer["content"][1]["input"] == CALL.input
    assert (answer["stop_reason"], answer["usage"]) == (
        "tool_use",
        USAGE.model_dump(exclude={"reasoning_tokens"}),
    )
    assert [(e["protocol"], e["api_key"], e["status"]) for e in log] == [("anthropic-messages", "k-1", 200)]
    assert len(log[0]["key"]) == 64


async def test_the_key_is_of_the_decision_and_not_of_its_spelling() -> None:
    async with StandIn(Script(replies=(Reply(text="x"),))).serving() as model:
        await post(model, ask())
        await post(model, dict(reversed(ask().items())))
        await post(model, ask("something else"))
        keys = [entry.key for entry in model.log]
    assert keys[0] == keys[1] != keys[2]


async def test_a_streamed_answer_says_the_same() -> None:
    async with StandIn(Script(replies=(Reply(text="word " * 50, tools=(CALL,), usage=USAGE),))).serving() as model:
        answer = await post(model, ask(stream=True))
    told = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    deltas = [e["delta"] for e in told if e["type"] == "content_block_delta"]
    assert "".join(d.get("text", "") for d in deltas) == "word " * 50
    assert json.loads("".join(d.get("partial_json", "") for d in deltas)) == CALL.input
    assert told[0]["message"]["usage"]["cache_read_input_tokens"] == 100
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    assert told[-2]["usage"] == {"output_tokens": 7}
    assert told[-1]["type"] == "message_stop"


async def test_refusals_carry_status_shape_and_retry_after_and_then_pass() -> None:
    faults = (Fault(kind="status", status=429, retry_after_s=2), Fault(kind="status", status=529))
    async with StandIn(Script(replies=(Reply(text="x", faults=faults),))).serving() as model:
        first, second, third = [await post(model, ask()) for _ in range(3)]
    assert (first.status_code, first.headers["retry-after"]) == (429, "2")
    assert first.json()["error"]["type"] == "rate_limit_error"
    assert (second.status_code, second.json()["error"]["type"]) == (529, "overloaded_error")
    assert third.json()["content"][0]["text"] == "x"
    assert [entry.fault for entry in model.log] == ["status", "status", None]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_breaks_the_connection(stream) -> None:
    script = Script(replies=(Reply(text="word " * 50, faults=(Fault(kind="cut", after=2),)),))
    async with StandIn(script).serving() as model:
        with pytest.raises(httpx.RemoteProtocolError):
            await post(model, ask(stream=stream))
        assert (await post(model, ask(stream=stream))).status_code == 200


async def test_a_stall_says_nothing_after_its_headers() -> None:
    async with StandIn(Script(replies=(Reply(text="x", faults=(Fault(kind="stall"),)),))).serving() as model:
        with pytest.raises(httpx.ReadTimeout):
            await post(model, ask(), patience=0.3)


async def test_a_slow_drip_comes_whole_in_the_end() -> None:
    drip = Fault(kind="drip", seconds=0.02)
    async with StandIn(Script(replies=(Reply(text="word " * 50, faults=(drip,)),))).serving() as model:
        begun = time.monotonic()
        answer = await post(model, ask())
        assert time.monotonic() - begun > 0.1
    assert answer.json()["content"][0]["text"] == "word " * 50


async def test_an_empty_message_a_length_stop_and_duplicate_ids() -> None:
    twice = (ToolCall(name="read", id="same"), ToolCall(name="read", id="same"))
    half = Reply(tools=(CALL.model_copy(update={"cut": True}),), stop_reason="max_tokens")
    replies = (Reply(tools=twice, faults=(Fault(kind="empty"),)),)
    async with StandIn(Script(replies=replies)).serving() as model:
        assert (await post(model, ask())).json()["content"] == []
        ids = [block["id"] for block in (await post(model, ask())).json()["content"]]
    assert ids == ["same", "same"]
    async with StandIn(Script(replies=(half,))).serving() as model:
        told = events((await post(model, ask(stream=True))).text)
    arguments = "".join(e["delta"]["partial_json"] for e in told if e["type"] == "content_block_delta")
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)
    assert told[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_huge_arguments() -> None:
    call = ToolCall(name="write", input={"path": "big"}, fill={"content": 3_000_000})
    async with StandIn(Script(replies=(Reply(tools=(call,)),))).serving() as model:
        block = (await post(model, ask())).json()["content"][0]
    assert len(block["input"]["content"]) == 3_000_000


async def test_a_bad_request_is_refused_as_a_provider_does() -> None:
    async with StandIn(Script(replies=(Reply(text="x"),))).serving() as model:
        answer = await post(model, {"model": "m"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert model.log[0].status == 400
