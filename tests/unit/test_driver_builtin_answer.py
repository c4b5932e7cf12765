"""A model's answer is not trusted: what comes out of it can be acted on, or is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.journal.canonical import canonical
from moorage.drivers.builtin.answer import Answer, Malformed
from moorage.drivers.builtin.messages import MessagesConversation
from moorage.drivers.telling import journaled


def parse(raw: bytes) -> Answer:
    return MessagesConversation().read(raw)


def sent_back(answer: Answer) -> list[dict[str, Any]]:
    """The answer as the next request has it."""
    talk = MessagesConversation()
    talk.say("go")
    talk.heard(answer)
    _, said = talk.request("m", ())["messages"]
    assert said["role"] == "assistant"
    return list(said["content"])


def body(*content: Any, stop: str = "tool_use", **more: Any) -> bytes:
    return json.dumps({"type": "message", "content": list(content), "stop_reason": stop, **more}).encode()


def call(name: str = "read", call_id: Any = "a", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def test_text_calls_and_usage() -> None:
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 9, "cache_creation_input_tokens": 0}
    answer = parse(body({"type": "text", "text": "I look.\n"}, call(path="x"), usage=usage))
    assert (answer.text, answer.calls[0].arguments) == ("I look.", {"path": "x"})
    assert answer.usage == {"input_tokens": 3, "output_tokens": 2, "cache_read_tokens": 9}
    assert [block["type"] for block in sent_back(answer)] == ["text", "tool_use"]


def test_duplicate_and_missing_ids_become_unique() -> None:
    answer = parse(body(call(call_id="same"), call(call_id="same"), call(call_id=None)))
    ids = [c.id for c in answer.calls]
    assert len(set(ids)) == 3
    assert ids[0] == "same"


def test_the_last_call_of_a_cut_answer_is_none() -> None:
    cut = parse(body(call(call_id="a"), call(call_id="b"), stop="max_tokens"))
    assert [c.id for c in cut.without_cut_call().calls] == ["a"]
    whole = parse(body(call(call_id="a"), call(call_id="b")))
    assert whole.without_cut_call() is whole


def test_an_empty_answer_is_seen_as_such() -> None:
    assert parse(body(stop="end_turn")).empty
    assert parse(body({"type": "text", "text": " \n"}, stop="end_turn")).empty
    assert not parse(body(call())).empty


@pytest.mark.parametrize(
    "raw", [b"", b"nonsense", b"[]", b'{"type": "message"}', b'{"type": "error"}', b"\xff\xfe", b"[" * 100_000]
)
def test_what_is_no_message_is_refused(raw) -> None:
    with pytest.raises(Malformed):
        parse(raw)


def test_depth_is_bounded() -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    with pytest.raises(Malformed, match="deep"):
        parse(body(call(value=deep)))


def test_half_surrogates_and_numbers_past_json_can_still_be_sent_andjournaled() -> None:
    given = b'{"t": "\\ud800", "n": NaN, "big": 123456789012345678901234567890}'
    block = b'{"type": "tool_use", "id": "a", "name": "w", "input": %s}' % given
    arguments = parse(b'{"type": "message", "content": [%s]}' % block).calls[0].arguments
    json.dumps(arguments, ensure_ascii=False).encode()
    assert arguments["n"] is None
    canonical({"arguments": journaled(arguments)})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
BLOCKS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "tool_use", "thinking", ""])},
        optional={"text": JSON_VALUES, "id": JSON_VALUES, "name": JSON_VALUES, "input": JSON_VALUES},
    )
    | JSON_VALUES,
    max_size=5,
)


@given(BLOCKS, JSON_VALUES, JSON_VALUES)
def test_any_message_gives_an_answer_that_can_be_sent_back(content, stop, usage) -> None:
    answer = parse(json.dumps({"type": "message", "content": content, "stop_reason": stop, "usage": usage}).encode())
    ids = [c.id for c in answer.calls]
    assert len(set(ids)) == len(ids)
    assert all(amount > 0 for amount in answer.usage.values())
    if not answer.empty:
        json.dumps(sent_back(answer), ensure_ascii=False).encode()
    for each in answer.calls:
        canonical({"arguments": journaled(each.arguments)})
