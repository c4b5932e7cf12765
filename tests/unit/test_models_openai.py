"""The stand-in as OpenAI: Responses and Chat Completions, whole and streamed, from the same script."""

import json
import time
from typing import Any

import httpx
import pytest

from moorage.testing.models import Fault, Reply, Script, StandIn, ToolCall, chat, responses
from moorage.testing.models.script import Usage

USAGE = Usage(input_tokens=12, output_tokens=7, cache_read_input_tokens=100, cache_creation_input_tokens=5)
CALL = ToolCall(name="exec_command", input={"cmd": "ls " + "x" * 200})
REPLY = Reply(text="word " * 50, tools=(CALL, CALL), usage=USAGE)
PATHS = {responses: "/v1/responses", chat: "/v1/chat/completions"}
USER = {"role": "user", "content": "mend it"}


def ask(speaker: Any, *conversation: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "input" if speaker is responses else "messages": [USER, *conversation], **more}


async def post(model: StandIn, speaker: Any, body: dict[str, Any], patience: float = 40.0) -> httpx.Response:
    headers = {"authorization": "Bearer k-1"}
    timeout = httpx.Timeout(40.0, read=patience)
    async with httpx.AsyncClient(base_url=model.url, headers=headers, timeout=timeout) as client:
        return await client.post(PATHS[speaker], json=body)


def streamed(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_responses_whole_and_streamed_say_the_same() -> None:
    async with StandIn(Script(replies=(REPLY,))).serving() as model:
        whole = (await post(model, responses, ask(responses))).json()
        events = streamed(await post(model, responses, ask(responses, stream=True)))
    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "function_call"]
    assert json.loads(whole["output"][1]["arguments"]) == CALL.input
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    assert events[-1]["response"] == whole
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == REPLY.text
    finished = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert finished == whole["output"]
    arguments = [e for e in events if e["type"] == "response.function_call_arguments.delta" and e["output_index"] == 2]
    assert json.loads("".join(e["delta"] for e in arguments)) == CALL.input


async def test_chat_whole_and_streamed_say_the_same() -> None:
    async with StandIn(Script(replies=(REPLY,))).serving() as model:
        whole = (await post(model, chat, ask(chat))).json()
        answer = await post(model, chat, ask(chat, stream=True, stream_options={"include_usage": True}))
        silent = await post(model, chat, ask(chat, stream=True))
    choice = whole["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (REPLY.text, "tool_calls")
    assert answer.text.endswith("data: [DONE]\n\n")
    *chunks, last = streamed(answer)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("content") or "" for d in deltas) == REPLY.text
    parts = [part for d in deltas for part in d.get("tool_calls", ()) if part["index"] == 1]
    assert (
        "".join(p["function"]["arguments"] for p in parts)
        == choice["message"]["tool_calls"][1]["function"]["arguments"]
    )
    assert parts[0]["id"] == choice["message"]["tool_calls"][1]["id"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert streamed(silent) == chunks, "no usage where nobody asks for it"


async def test_cached_tokens_are_part_of_the_input() -> None:
    async with StandIn(Script(replies=(REPLY,))).serving() as model:
        usage = (await post(model, responses, ask(responses))).json()["usage"]
        counted = (await post(model, chat, ask(chat))).json()["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (117, 100)
    assert (usage["output_tokens"], usage["total_tokens"]) == (7, 124)
    assert (counted["prompt_tokens"], counted["prompt_tokens_details"]["cached_tokens"]) == (117, 100)
    assert (counted["completion_tokens"], counted["total_tokens"]) == (7, 124)


def reasoning() -> dict[str, Any]:
    return {"type": "reasoning", "summary": []}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def called(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "exec_command", "arguments": "{}"}


def output(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "x"}


@pytest.mark.parametrize(
    ("conversation", "steps"),
    [
        ([], 0),
        ([called("a"), output("a")], 1),
        ([said("I look."), called("a"), output("a")], 1),
        ([said("I look."), called("a"), called("b"), output("a"), output("b")], 2),
        ([reasoning(), said("half"), {"role": "user", "content": "go on"}], 1),
        ([called("a"), output("a"), said("done"), {"role": "user", "content": "and?"}], 2),
        ([said("half"), said("whole")], 2),
    ],
)
def test_steps_of_a_responses_conversation(conversation, steps) -> None:
    assert responses.problem(ask(responses, *conversation)) is None
    assert responses.done(ask(responses, *conversation)) == steps


def test_steps_of_a_chat_conversation() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = ask(
        chat,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "assistant", "content": "half"},
        {"role": "user", "content": "go on"},
    )
    assert chat.problem(asked) is None
    assert (chat.opening(asked), chat.done(asked)) == ("mend it", 2)


def test_the_opening_is_all_that_the_user_said_before_the_first_answer() -> None:
    goal = {"role": "user", "content": [{"type": "input_text", "text": "mend slugify"}]}
    asked = ask(responses, {"role": "developer", "content": "rules"}, goal, said("I look."), USER)
    assert responses.opening(asked) == "mend it\nmend slugify"
    assert responses.opening({"model": "m", "input": "in one string"}) == "in one string"


@pytest.mark.parametrize("speaker", [responses, chat])
async def test_the_script_goes_on_with_the_conversation_whatever_the_protocol(speaker) -> None:
    done = {
        responses: [called("a"), output("a")],
        chat: [
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "x"},
        ],
    }
    async with StandIn(Script(replies=(Reply(tools=(CALL,)), Reply(text="All done.")))).serving() as model:
        await post(model, speaker, ask(speaker))
        answer = await post(model, speaker, ask(speaker, *done[speaker]))
    assert "All done." in answer.text
    assert [(e.protocol, e.reply, e.api_key) for e in model.log] == [(speaker.PROTOCOL, n, "k-1") for n in (0, 1)]


@pytest.mark.parametrize("speaker", [responses, chat])
async def test_faults_come_in_the_providers_shape(speaker) -> None:
    faults = (
        Fault(kind="status", status=401, message="no such key"),
        Fault(kind="status", status=429, retry_after_s=2),
        Fault(kind="status", status=503),
        Fault(kind="cut", after=2),
    )
    async with StandIn(Script(replies=(Reply(text="x" * 500, faults=faults),))).serving() as model:
        refused, slow, broken = [await post(model, speaker, ask(speaker)) for _ in range(3)]
        with pytest.raises(httpx.RemoteProtocolError):
            await post(model, speaker, ask(speaker))
        assert (await post(model, speaker, ask(speaker))).status_code == 200
    assert refused.json()["error"] == {
        "message": "no such key",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert (slow.headers["retry-after"], slow.json()["error"]["code"]) == ("2", "rate_limit_exceeded")
    assert broken.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("speaker", [responses, chat])
async def test_what_is_slow_or_silent_is_so_in_each_protocol(speaker, stream: bool) -> None:
    faults = (Fault(kind="stall"), Fault(kind="drip", seconds=0.02), Fault(kind="overloaded"))
    async with StandIn(Script(replies=(Reply(text="word " * 50, faults=faults),))).serving() as model:
        with pytest.raises(httpx.ReadTimeout):
            await post(model, speaker, ask(speaker, stream=stream), patience=0.3)
        begun = time.monotonic()
        dripped = await post(model, speaker, ask(speaker, stream=stream))
        assert time.monotonic() - begun > 0.1
        overloaded = await post(model, speaker, ask(speaker, stream=stream))
        plain = await post(model, speaker, ask(speaker, stream=stream))
    assert dripped.content == plain.content, "it comes whole in the end"
    assert overloaded.status_code == (200 if stream else 529)
    (told,) = streamed(overloaded) if stream else (overloaded.json(),)
    assert "error" in told


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("speaker", [responses, chat])
async def test_empty_answers_duplicate_ids_and_huge_arguments_in_each_protocol(speaker, stream: bool) -> None:
    twice = tuple(ToolCall(name="read", id="same") for _ in range(2))
    huge = ToolCall(name="write", id="big", input={"path": "big"}, fill={"content": 3_000_000})
    replies = (Reply(tools=(*twice, huge), faults=(Fault(kind="empty"),)),)
    async with StandIn(Script(replies=replies)).serving() as model:
        empty, whole = [await post(model, speaker, ask(speaker, stream=stream)) for _ in range(2)]
    assert "same" not in empty.text
    calls = spoken_calls(whole, stream=stream)
    assert [name for name, _ in calls] == ["same", "same", "big"]
    assert len(json.loads(calls[-1][1])["content"]) == 3_000_000


def spoken_calls(answer: httpx.Response, *, stream: bool) -> list[tuple[str, str]]:
    """The id and the arguments of each call, in either protocol."""
    told = streamed(answer) if stream else [answer.json()]
    if "choices" not in told[0]:
        last = told[-1]["response"] if stream else told[0]
        return [(item["call_id"], item["arguments"]) for item in last["output"] if item["type"] == "function_call"]
    if not stream:
        return [(call["id"], call["function"]["arguments"]) for call in told[0]["choices"][0]["message"]["tool_calls"]]
    parts = [part for chunk in told for choice in chunk["choices"] for part in choice["delta"].get("tool_calls", ())]
    found: dict[int, tuple[str, str]] = {}
    for part in parts:
        name, arguments = found.get(part["index"], ("", ""))
        found[part["index"]] = part.get("id") or name, arguments + part["function"].get("arguments", "")
    return [found[index] for index in sorted(found)]


async def test_a_length_stop_ends_the_arguments_in_the_middle() -> None:
    half = Reply(tools=(CALL.model_copy(update={"cut": True}),), stop_reason="max_tokens")
    async with StandIn(Script(replies=(half,))).serving() as model:
        whole = (await post(model, responses, ask(responses))).json()
        events = streamed(await post(model, responses, ask(responses, stream=True)))
        choice = (await post(model, chat, ask(chat))).json()["choices"][0]
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events[-1]["type"] == "response.incomplete"
    assert choice["finish_reason"] == "length"
    for text in (whole["output"][0]["arguments"], choice["message"]["tool_calls"][0]["function"]["arguments"]):
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)


@pytest.mark.parametrize(
    ("speaker", "body", "told"),
    [
        (responses, {"input": "x"}, "model"),
        (responses, {"model": "m", "input": []}, "nobody"),
        (responses, {"model": "m", "input": "x", "previous_response_id": "resp_1"}, "whole input"),
        (responses, ask(responses, called("a")), "No tool output found for function call a"),
        (responses, ask(responses, output("a")), "No tool call found"),
        (chat, {"messages": [USER]}, "model"),
        (chat, {"model": "m", "messages": []}, "at least one"),
        (chat, {"model": "m", "messages": [{"role": "system", "content": "x"}]}, "nobody"),
        (chat, ask(chat, {"role": "assistant", "tool_calls": [{"id": "a"}]}), "No tool output"),
    ],
)
async def test_what_a_provider_refuses_is_refused(speaker, body, told) -> None:
    async with StandIn(Script(replies=(Reply(text="x"),))).serving() as model:
        answer = await post(model, speaker, body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
