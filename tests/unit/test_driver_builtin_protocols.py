"""One loop, three protocols: what is asked, what is understood, and where a recovered attempt goes on."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount

from moorage.api.wire import ResolvedAgent, ResolvedModel
from moorage.core.continuation import chain
from moorage.core.journal.canonical import canonical
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import Answer, Call, Malformed
from moorage.drivers.builtin.conversation import MAX_OUTPUT_TOKENS, Conversation
from moorage.drivers.builtin.driver import CONVERSATIONS, BuiltinDriver
from moorage.drivers.builtin.openai import ChatConversation, ResponsesConversation
from moorage.drivers.builtin.tools import Definition
from moorage.drivers.port import Outcome
from moorage.drivers.telling import ToolResult, journaled
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Usage
from moorage.testing.serving import listening

USAGE = Usage(input_tokens=10, output_tokens=7, cache_read_input_tokens=100)
DONE = Reply(text="All done.", usage=USAGE)
TOOL = Definition("read", "Reads.", {"type": "object"})
ALL = pytest.mark.parametrize("protocol", CONVERSATIONS)
OPENAI = pytest.mark.parametrize("talk", [ResponsesConversation, ChatConversation])
Drive = Callable[..., Awaitable[tuple[Outcome, LocalHost, StandIn]]]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    async def driven(protocol: str, *replies: Reply) -> tuple[Outcome, LocalHost, StandIn]:
        (tmp_path / "tree").mkdir()
        host, stand_in = LocalHost(tmp_path / "tree"), StandIn(Script(replies=replies))
        model = ResolvedModel(provider="p", protocol=protocol, base_url="http://unused", name="scripted")
        async with listening(Starlette(routes=[Mount("/model", stand_in.app)])) as url:
            agent = ResolvedAgent(driver="builtin", model=model)
            outcome = await BuiltinDriver().run(task_for(host, agent, relay_url=url), host)
        return outcome, host, stand_in

    return driven


def write(name: str, **more: Any) -> ToolCall:
    return ToolCall(name="write", input={"path": name, "content": "x"}, **more)


@pytest.mark.rule("N1", "M6")
@ALL
async def test_the_loop_is_the_same_in_each_protocol(drive, protocol: str) -> None:
    calls = (write("a"), ToolCall(name="read", input={"path": "a"}), ToolCall(name="read", input={"path": "none"}))
    cut = Reply(tools=(write("whole"), write("half", cut=True)), stop_reason="max_tokens", usage=USAGE)
    outcome, host, stand_in = await drive(
        protocol,
        Reply(text="Three things.", tools=calls, usage=USAGE),
        Reply(text="I was say", stop_reason="max_tokens", usage=USAGE),
        cut,
        DONE,
    )
    assert (outcome.outcome, outcome.summary, host.iterations) == ("completed", "All done.", [1, 2, 3, 4])
    assert [entry.status for entry in stand_in.log] == [200] * 4, "nothing that a provider refuses"
    run = [t.payload["arguments"]["path"] for t in host.told if t.type == "TOOL_REQUEST"]
    assert run == ["a", "a", "none", "whole"]
    assert host.usage == [{"input_tokens": 10, "output_tokens": 7, "cache_read_tokens": 100}] * 4
    second, third, fourth = [json.dumps(body) for body in stand_in.bodies[1:]]
    assert "Three things." in second
    assert r"1\tx" in second
    assert chain.CUT_TEXT in third
    assert chain.CUT_CALL in fourth
    assert all(prompt.SYSTEM.splitlines()[0] in body for body in (second, third, fourth))


@ALL
async def test_an_empty_answer_is_asked_for_in_each_protocol(drive, protocol: str) -> None:
    outcome, _, stand_in = await drive(protocol, Reply())
    assert outcome.reason == "EmptyAnswer"
    assert chain.EMPTY in json.dumps(stand_in.bodies[1])


async def test_a_protocol_that_nobody_speaks_is_told(drive) -> None:
    outcome, _, stand_in = await drive("smoke-signals", DONE)
    assert (outcome.outcome, outcome.reason, stand_in.log) == ("failed", "ProtocolNotSupported", [])


# --- conversations ----------------------------------------------------------------------------------------------------


def begun(protocol: str) -> Conversation:
    talk = CONVERSATIONS[protocol]()
    talk.say("mend it")
    decide(talk, "1")
    talk.say("little is left")
    return talk


def decide(talk: Conversation, name: str) -> None:
    """Two calls, and their results."""
    asked = tuple(Call(f"{name}.{index}", "read", {"path": name}) for index in range(2))
    talk.heard(Answer("I look.", asked, "", {}))
    talk.results([(asked[0], ToolResult(True, "")), (asked[1], ToolResult(False, "no such file"))])


@pytest.mark.rule("R2")
@ALL
def test_a_conversation_goes_on_from_its_request(protocol: str) -> None:
    first, second = begun(protocol), CONVERSATIONS[protocol]()
    second.resume(json.loads(json.dumps(first.request("m", [TOOL]))))
    for talk in (first, second):
        decide(talk, "2")
        talk.say("the worktree is as it was")
    assert first.request("m", [TOOL]) == second.request("m", [TOOL])


@ALL
def test_a_request_can_be_counted_and_names_its_tools(protocol: str) -> None:
    talk = begun(protocol)
    request = talk.request("m", [TOOL])
    assert (request["model"], talk.spoken.cap(request)) == ("m", MAX_OUTPUT_TOKENS)
    assert talk.spoken.elsewhere(request) is None
    (tool,) = request["tools"]
    assert tool.get("function", tool)["name"] == "read"
    assert json.dumps(request).count('"I look."') == 1
    assert talk.request("m", [TOOL]) == request, "asking changes nothing"


@OPENAI
def test_the_user_never_speaks_twice_in_a_row(talk: Callable[[], Conversation]) -> None:
    made = talk()
    for said in ("mend it", "and this", "and that"):
        made.say(said)
    request = made.request("m", ())
    (asked,) = [m for m in request.get("input", request.get("messages")) if m["role"] == "user"]
    assert asked["content"] == "mend it\n\nand this\n\nand that"


def response(*output: Any, **more: Any) -> bytes:
    return json.dumps({"object": "response", "status": "completed", "output": list(output), **more}).encode()


def message(*parts: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


def function(arguments: Any = "{}", call_id: Any = "a") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "read", "arguments": arguments}


def chat(finish: str = "stop", **said: Any) -> bytes:
    return json.dumps({"choices": [{"message": said, "finish_reason": finish}]}).encode()


def test_a_response_is_read() -> None:
    said = message({"type": "output_text", "text": "I "}, {"type": "output_text", "text": "look.\n"})
    answer = ResponsesConversation().read(
        response({"type": "reasoning", "content": [{"text": "hm"}]}, said, function('{"path": "x"}'))
    )
    assert (answer.text, [call.arguments for call in answer.calls]) == ("I look.", [{"path": "x"}])


@pytest.mark.parametrize(
    ("talk", "body", "stop"),
    [
        (
            ResponsesConversation,
            response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            "max_tokens",
        ),
        (
            ResponsesConversation,
            response(status="incomplete", incomplete_details={"reason": "content_filter"}),
            "refusal",
        ),
        (ResponsesConversation, response(message({"type": "refusal", "refusal": "No."})), "refusal"),
        (ResponsesConversation, response(function()), "completed"),
        (ChatConversation, chat("length", content="I wa"), "max_tokens"),
        (ChatConversation, chat("content_filter", content=""), "refusal"),
        (ChatConversation, chat(refusal="No."), "refusal"),
        (ChatConversation, chat(content="Done."), "stop"),
    ],
)
def test_ends_have_one_name_whatever_the_protocol(talk: Callable[[], Conversation], body: bytes, stop: str) -> None:
    assert talk().read(body).stop == stop


@pytest.mark.parametrize("arguments", ["", "{", "[]", "7", None, {"path": "x"}, "[" * 100_000, '{"n": NaN'])
def test_arguments_that_are_none_are_empty(arguments: Any) -> None:
    (call,) = ResponsesConversation().read(response(function(arguments))).calls
    (other,) = ChatConversation().read(chat(tool_calls=[{"function": function(arguments)}])).calls
    assert call.arguments == other.arguments == {}


@pytest.mark.parametrize(
    ("talk", "body", "why"),
    [
        (ResponsesConversation, response(status="failed", error={"message": "it broke"}), "it broke"),
        (ResponsesConversation, response(status="queued"), "no response that has ended"),
        (ResponsesConversation, response(status={}), "no response that has ended"),
        (ResponsesConversation, b'{"object": "error"}', "no response"),
        (ChatConversation, b'{"choices": []}', "no chat completion"),
        (ChatConversation, b'{"choices": [{"message": "x"}]}', "no chat completion"),
        (ChatConversation, b"[]", "no object"),
        (ChatConversation, b"<html>", "Expecting value"),
    ],
)
def test_what_is_no_answer_is_refused(talk: Callable[[], Conversation], body: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        talk().read(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just('{"a": 1}'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "text", "refusal", "function", "id", "name", "arguments"]), inner
        )
    ),
    max_leaves=12,
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message", "function_call", "reasoning"])},
        optional={"call_id": JSON, "name": JSON, "arguments": JSON, "content": JSON},
    )
    | JSON,
    max_size=4,
)


@given(ITEMS, JSON, JSON, JSON)
def test_any_answer_can_be_acted_on_and_sent_back(output: list[Any], said: Any, calls: Any, usage: Any) -> None:
    answers: list[tuple[ResponsesConversation | ChatConversation, bytes]] = [
        (ResponsesConversation(), response(*output, usage=usage)),
        (ChatConversation(), chat(content=said, tool_calls=calls)),
    ]
    for talk, body in answers:
        answer = talk.read(body)
        ids = [call.id for call in answer.calls]
        assert len(set(ids)) == len(ids)
        for call in answer.calls:
            canonical({"arguments": journaled(call.arguments)})
        talk.heard(answer)
        json.dumps(talk.request("m", ()), ensure_ascii=False).encode()
