"""How answers of three protocols are read while they pass by, and which of their bytes wait for the record."""

import gc
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moorage.core.models.anthropic import MESSAGES
from moorage.core.models.chat import CHAT, without_usage
from moorage.core.models.passing import Passing
from moorage.core.models.protocol import Carried, Protocol, replied
from moorage.core.models.reading import Reading
from moorage.core.models.responses import KEPT, RESPONSES
from moorage.core.models.spoken import PROTOCOLS


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    body = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(body)}\n\n".encode()


ANTHROPIC = sse(
    {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "ping"},
    {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "schön\u2028"}},
    {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 40}},
    {"type": "message_stop"},
)
DONE = {"object": "response", "status": "completed", "usage": {"input_tokens": 3, "output_tokens": 40}}
RESPONSE = sse(
    {"type": "response.created", "response": {"status": "in_progress", "usage": None}},
    {"type": "response.output_text.delta", "delta": "schön\u2028"},
    {"type": "response.function_call_arguments.delta", "delta": '{"a":'},
    {"type": "response.completed", "response": DONE},
)
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 40}}\n\n'
CALL = {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}
CHAT_BEGUN = chunk({"content": "schön\u2028"}) + chunk(CALL)
CHAT_END = chunk({}, "tool_calls") + USAGE + b"data: [DONE]\n\n"
STREAMS = {
    MESSAGES.name: (ANTHROPIC, "max_tokens"),
    RESPONSES.name: (RESPONSE, "completed"),
    CHAT.name: (CHAT_BEGUN + CHAT_END, "tool_calls"),
}


@pytest.mark.parametrize("name", PROTOCOLS)
@given(cuts=st.lists(st.integers(min_value=1, max_value=500), max_size=12))
def test_a_stream_reads_the_same_however_it_is_cut(name: str, cuts: list[int]) -> None:
    stream, reason = STREAMS[name]
    reader, ends = PROTOCOLS[name].reader(), [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    told = [reader.feed(stream[a:b]) for a, b in itertools.pairwise(ends)]
    assert told[-1] is True
    reading = reader.reading
    assert (reading.usage, reading.stop_reason) == ({"input_tokens": 3, "output_tokens": 40}, reason)
    assert reading.characters == 11
    assert reading.settled(4_000) == ({"input_tokens": 3, "output_tokens": 40}, False)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda each: each.name)
@given(junk=st.binary(max_size=300))
def test_any_bytes_may_pass_by(protocol: Protocol, junk: bytes) -> None:
    assume(not protocol.end or protocol.end not in junk)  # that is no junk, but the end
    reader = protocol.reader()
    reader.feed(b"data: 7\ndata: {\ndata: []\ndata: {}\n" + junk.replace(b"\n", b"") + b"\n")
    assert not reader.reading.complete
    assert not protocol.read(junk).complete


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["response.completed", "response"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "message",
                    "usage",
                    "delta",
                    "choices",
                    "tool_calls",
                    "function",
                    "response",
                    "object",
                    "status",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda each: each.name)
@given(told=JSON)
def test_any_shape_may_pass_by(protocol: Protocol, told: Any) -> None:
    body = json.dumps(told).encode()
    protocol.read(body).settled()
    protocol.reader().feed(b"data: " + body + b"\n")


@pytest.mark.rule("B2")
@pytest.mark.parametrize(
    ("protocol", "begun", "settled"),
    [
        (MESSAGES, ANTHROPIC[: ANTHROPIC.index(b"event: message_delta")], {"input_tokens": 3, "output_tokens": 3}),
        (
            RESPONSES,
            RESPONSE[: RESPONSE.index(b"event: response.completed")],
            {"input_tokens": 250, "output_tokens": 3},
        ),
        (CHAT, CHAT_BEGUN, {"input_tokens": 250, "output_tokens": 3}),
        (CHAT, CHAT_BEGUN + chunk({}, "tool_calls"), {"input_tokens": 250, "output_tokens": 3}),
    ],
)
def test_a_cut_stream_is_settled_by_what_was_streamed(
    protocol: Protocol, begun: bytes, settled: dict[str, int]
) -> None:
    reader = protocol.reader()
    reader.feed(begun)
    assert reader.reading.settled(999) == (settled, True)  # 11 characters came, 999 bytes went


WHOLE: dict[str, dict[str, object]] = {
    MESSAGES.name: {"type": "message", "stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 4}},
    RESPONSES.name: {
        "object": "response",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "usage": {"input_tokens": 3, "output_tokens": 4},
    },
    CHAT.name: {
        "object": "chat.completion",
        "choices": [{"finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    },
}
REASONS = {MESSAGES.name: "end_turn", RESPONSES.name: "max_output_tokens", CHAT.name: "length"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_whole_answer(name: str) -> None:
    reading = PROTOCOLS[name].read(json.dumps(WHOLE[name]).encode())
    assert (reading.complete, reading.stop_reason) == (True, REASONS[name])
    assert reading.settled() == ({"input_tokens": 3, "output_tokens": 4}, False)
    silent = PROTOCOLS[name].read(json.dumps(WHOLE[name] | {"usage": None}).encode())
    assert silent.settled(40)[1] is True, "whole, and without its usage: an estimate"


@pytest.mark.parametrize("status", ["failed", "queued", "in_progress", "cancelled"])
def test_a_response_that_is_no_decision_isnt_complete(status: str) -> None:
    whole = {"object": "response", "status": status, "usage": None}
    assert not RESPONSES.read(json.dumps(whole).encode()).complete
    reader = RESPONSES.reader()
    assert not reader.feed(sse({"type": "response.failed", "response": whole}))


@pytest.mark.parametrize(
    ("status", "goes_on"),
    [("queued", True), ("in_progress", True), ("completed", False), ("incomplete", False), ("failed", False)],
)
def test_a_response_that_the_provider_goes_on_with_is_known(status: str, goes_on: bool) -> None:
    whole = {"object": "response", "status": status, "usage": None}
    assert RESPONSES.read(json.dumps(whole).encode()).unfinished is goes_on


@pytest.mark.rule("B2")
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"background": True}, "background"),
        *[({name: value}, name) for name in KEPT for value in ("id_1", {"id": "id_1"})],
        ({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "m_1"}]}, "item_reference"),
        ({"input": [{"id": "m_1"}]}, "item_reference"),
    ],
)
def test_what_a_providers_memory_would_lengthen_isnt_passed_on(asked: dict[str, Any], named: str) -> None:
    assert (RESPONSES.elsewhere(asked) or "").startswith(f"{named}: ")


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda each: each.name)
def test_what_a_request_says_itself_is_passed_on(protocol: Protocol) -> None:
    message = {"role": "user", "content": "x", "id": None}
    said = {"type": "message", "id": "m_1", "role": "assistant", "content": []}
    without = dict.fromkeys((*KEPT, "background")) | {"store": False, "prompt_cache_key": "k"}
    assert protocol.elsewhere({"input": [message, said, {"type": "reasoning", "id": "r_1"}, 7], **without}) is None
    assert protocol.elsewhere({"input": "in one string", "background": False}) is None


# --- what waits -------------------------------------------------------------------------------------------------------


def passed(passing: Passing, *chunks: bytes) -> list[bytes]:
    return [passing.feed(chunk) for chunk in chunks]


@pytest.mark.rule("R2")
def test_from_its_finish_reason_on_a_chat_waits_for_its_end() -> None:
    passing = Passing(CHAT, 10_000, altered=False)
    end = chunk({}, "stop")
    assert passed(passing, CHAT_BEGUN, end[:20], end[20:], USAGE) == [CHAT_BEGUN, end[:20], b"", b""]
    assert not passing.reading.complete
    assert passing.feed(b"data: [DONE]\n\n") == end[20:] + USAGE + b"data: [DONE]\n\n"
    assert passing.reading.complete
    assert passed(passing, b"\n") == [b"\n"]


def test_a_chat_without_the_last_event_ends_with_its_stream() -> None:
    passing = Passing(CHAT, 10_000, altered=False)
    assert passed(passing, CHAT_BEGUN, chunk({}, "stop")) == [CHAT_BEGUN, b""]
    assert passing.close() == chunk({}, "stop")
    assert passing.reading.complete
    begun = Passing(CHAT, 10_000, altered=False)
    begun.feed(CHAT_BEGUN)
    assert (begun.close(), begun.reading.complete) == (b"", False)


def test_more_than_may_wait_is_told() -> None:
    passing = Passing(CHAT, 200, altered=False)
    passed(passing, chunk({}, "stop"))
    assert not passing.over
    passed(passing, *[chunk({"content": "more"})] * 3)
    assert passing.over


@pytest.mark.parametrize("stream", [ANTHROPIC, RESPONSE])
def test_what_has_its_end_in_one_event_waits_for_nothing_else(stream: bytes) -> None:
    protocol = MESSAGES if stream is ANTHROPIC else RESPONSES
    passing = Passing(protocol, 10_000, altered=False)
    chunks = [stream[at : at + 40] for at in range(0, len(stream), 40)]
    assert passed(passing, *chunks) == chunks


DRIPS = {
    MESSAGES.name: sse({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "word " * 9}}),
    RESPONSES.name: sse({"type": "response.output_text.delta", "delta": "word " * 9}),
    CHAT.name: chunk({"content": "word " * 9}),
}


def held() -> int:
    gc.collect()  # also what the interpreter keeps of freed objects for new ones
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.rule("M4")
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("altered", [False, True])
def test_what_is_known_of_a_stream_does_not_grow_with_it(name: str, altered: bool) -> None:
    """An hour of an event a second: not even a reference is kept of each."""
    passing, event = Passing(PROTOCOLS[name], 10**9, altered=altered), DRIPS[name]
    tracemalloc.start()
    try:
        for second in range(3_600):
            assert passing.feed(event[:30]) + passing.feed(event[30:]) == event
            if second == 60:
                begun = held()
        kept = held() - begun
    finally:
        tracemalloc.stop()
    assert passing.reading.characters == 3_600 * 45
    assert kept < 3_500 * 8


# --- what leaves of a chat --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_obfuscation": False}])
def test_a_streamed_chat_is_asked_for_its_usage(options: dict[str, Any] | None) -> None:
    asked = {"model": "m", "stream": True, "messages": [], "stream_options": options}
    sent = json.loads(CHAT.sent(asked, b"as it came"))
    assert sent["stream_options"] == {**(options or {}), "include_usage": True}
    assert sent | {"stream_options": options} == asked


@pytest.mark.parametrize("asked", [{"stream": False}, {}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_a_chat_that_needs_no_change_leaves_as_it_came(asked: dict[str, Any]) -> None:
    body = b"as it came"
    assert CHAT.sent(asked, body) is body


@given(cut=st.integers(min_value=0, max_value=len(CHAT_END)), crlf=st.booleans())
def test_who_asked_for_no_usage_gets_what_would_have_come_without(cut: int, crlf: bool) -> None:
    """Whichever way the stream is cut, and with either kind of line end."""
    stream, usage = CHAT_BEGUN + CHAT_END, USAGE
    if crlf:
        stream, usage = stream.replace(b"\n", b"\r\n"), usage.replace(b"\n", b"\r\n")
    passing, at = Passing(CHAT, 10_000, altered=True), len(CHAT_BEGUN) + cut
    got = b"".join([*passed(passing, stream[:at], stream[at:]), passing.close()])
    assert got == stream.replace(usage, b"")
    assert passing.reading.settled() == ({"input_tokens": 3, "output_tokens": 40}, False)


def test_chunks_that_carry_a_choice_keep_their_usage() -> None:
    both = (
        b'data: {"choices": [{"delta": {}}], "usage": {"prompt_tokens": 3}}\n\ndata: {"choices": [], "usage": null}\n\n'
    )
    assert without_usage(both) == both


# --- caps, errors, lists ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "asked", "cap"),
    [
        (MESSAGES, {"max_tokens": 10}, 10),
        (MESSAGES, {"max_tokens": True}, None),
        (RESPONSES, {"max_output_tokens": 10}, 10),
        (RESPONSES, {}, None),
        (CHAT, {"max_tokens": 10}, 10),
        (CHAT, {"max_tokens": 10, "max_completion_tokens": 20, "n": 3}, 60),
        (CHAT, {"max_tokens": 20, "max_completion_tokens": 10}, 20),
        (CHAT, {"max_completion_tokens": 10}, 10),
        (CHAT, {"max_tokens": -1}, None),
    ],
)
def test_the_most_output_that_a_request_allows(protocol: Protocol, asked: dict[str, Any], cap: int | None) -> None:
    assert protocol.cap(asked) == cap


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda each: each.name)
def test_every_protocol_has_errors_and_a_list(protocol: Protocol) -> None:
    error = json.loads(protocol.error(400, "BudgetExhausted", "it is used up"))["error"]
    assert (error["type"], error["message"]) == ("invalid_request_error", "BudgetExhausted: it is used up")
    listed = json.loads(protocol.listed(("a", "b")))["data"]
    assert [each["id"] for each in listed] == ["a", "b"]
    assert json.loads(protocol.entry("b")) == listed[1]
    assert json.loads(protocol.listed(()))["data"] == []


def test_readings_dont_share_their_usage() -> None:
    Reading().grown({"input_tokens": 3})
    Reading().counted({"input_tokens": 3})
    assert Reading().usage == {}


CARRIED: dict[str, dict[str, Any]] = {
    "anthropic-messages": {
        "messages": [
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "done"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c2", "content": [{"text": "x"}]}]},
        ]
    },
    "openai-responses": {
        "input": [
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"text": "x"}]},
        ]
    },
    "openai-chat": {
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "bash", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"text": "x"}]},
        ]
    },
}


@pytest.mark.rule("P6")
@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_results_that_a_request_carries_are_told_by_their_calls(name: str) -> None:
    assert [*PROTOCOLS[name].carried(CARRIED[name])] == [Carried("c1", "bash", "done"), Carried("c2")]


@pytest.mark.parametrize("name", PROTOCOLS)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_a_request_of_any_shape_carries_what_can_be_told_of_it(name: str, value: Any) -> None:
    for field in ("messages", "input"):
        inner = {"type": "tool_result", "tool_use_id": value, "call_id": value, "role": "tool", "content": value}
        odd = {"type": value, "role": value, "content": [{"type": value, "text": value}]}
        for asked in ({field: value}, {field: [inner]}, {field: [odd, {"content": [inner], "tool_calls": value}]}):
            assert all(each.call for each in PROTOCOLS[name].carried(asked))
            assert len(PROTOCOLS[name].replied(asked)) <= 1


GO, DONE_1, DONE_2 = "go on", "Done.", "Done. Really."
REPLIED: dict[str, dict[str, Any]] = {
    "anthropic-messages": {
        "messages": [
            {"role": "user", "content": "do it"},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": DONE_1, "cache_control": {"type": "ephemeral"}}],
            },
            {"role": "user", "content": [{"type": "text", "text": GO}]},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "c1"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}, {"type": "text", "text": "x"}]},
            {"role": "assistant", "content": DONE_2},
            {"role": "user", "content": GO},
            {"role": "assistant", "content": "and"},
        ]
    },
    "openai-responses": {
        "input": [
            {"role": "user", "content": "do it"},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": DONE_1}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": GO}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "done"},
            {"type": "message", "role": "user", "content": "x"},
            {"type": "message", "role": "assistant", "content": DONE_2},
            {"type": "message", "role": "user", "content": GO},
            {"type": "message", "role": "user", "content": GO},
            {"type": "message", "role": "assistant", "content": "and"},
        ]
    },
    "openai-chat": {
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": DONE_1},
            {"role": "user", "content": [{"type": "text", "text": GO}]},
            {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c1", "function": {"name": "bash"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": DONE_2},
            {"role": "user", "content": GO},
            {"role": "assistant", "content": "and"},
        ]
    },
}


def test_decisions_without_calls_that_were_answered_are_named_alike_in_all_protocols() -> None:
    named = [PROTOCOLS[name].replied(asked) for name, asked in REPLIED.items()]
    assert len(named[0]) == 2
    assert (
        named[0]
        == named[1]
        == named[2]
        == replied([("decided", DONE_1), ("words", GO), ("decided", DONE_2), ("words", "x")])
    )


def test_the_same_words_said_again_are_another_decision() -> None:
    once, twice = (replied([("decided", "Done."), ("words", "go on")] * times) for times in (1, 2))
    assert once < twice
    assert len(twice) == 2


@pytest.mark.parametrize("asked", [{}, {"messages": 3, "input": 3}, {"messages": [{}, 3], "input": [{}, {"type": 3}]}])
def test_nothing_is_answered_where_there_is_no_conversation(asked: dict[str, Any]) -> None:
    assert [each.replied(asked) for each in PROTOCOLS.values()] == [frozenset()] * 3


def part(index: int | None, name: str | None = None, choice: int = 0) -> bytes:
    call = {"index": index, "id": name, "function": {"arguments": "{"}}
    told = {"choices": [{"index": choice, "delta": {"tool_calls": [{k: v for k, v in call.items() if v is not None}]}}]}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ([part(0, "a"), part(0), part(1, "b"), part(1)], 2),
        ([part(0, "a"), part(0, "b"), part(0, "c")], 3),
        ([part(None, "a"), part(None, "b")], 2),
        ([part(0, "a"), part(0, "a")], 1),
        ([part(1, "a"), part(1)], 1),
        ([part(0), part(0), part(1)], 2),
        ([part(0, "a"), part(0, "b", choice=1), part(0, choice=1)], 2),
    ],
)
def test_calls_of_a_chat_are_counted_however_a_server_tells_them_apart(parts: list[bytes], calls: int) -> None:
    passing = Passing(CHAT, 1 << 20, altered=False)
    for each in parts:
        passing.feed(each)
    assert passing.reading.calls == calls
