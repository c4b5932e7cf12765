"""What a stand-in says next follows from the conversation alone."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from moorage.testing.models import Fault, Reply, Script, ToolCall, load
from moorage.testing.models.anthropic import done, opening, problem

TWO_TOOLS = Reply(text="look", tools=(ToolCall(name="read"), ToolCall(name="read")))
CUT = Reply(text="I was say", stop_reason="max_tokens")
END = Reply(text="done")


def test_replies_follow_answered_tools_and_plain_answers() -> None:
    script = Script(replies=(TWO_TOOLS, CUT, END))
    chosen = [script.choose("", step)[0] for step in range(6)]
    assert chosen == [0, 0, 1, 2, 2, 2]


def test_a_conversation_is_chosen_by_its_opening() -> None:
    script = Script.model_validate(
        {"replies": [{"text": "other"}], "conversations": [{"when": "slugify", "replies": [{"text": "slug"}]}]}
    )
    assert script.choose("mend slugify", 0)[1].text == "slug"
    assert script.choose("write docs", 0)[1].text == "other"


def test_faults_come_in_their_order_and_pass() -> None:
    reply = Reply(text="x", faults=(Fault(kind="status", status=429, times=2), Fault(kind="cut")))
    kinds = [fault.kind if (fault := reply.fault(attempt)) else None for attempt in range(4)]
    assert kinds == ["status", "status", "cut", None]


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(ValidationError, match="stop_raeson"):
        Script.model_validate({"replies": [{"text": "x", "stop_raeson": "end_turn"}]})


def test_the_place_in_a_conversation() -> None:
    asked = {
        "model": "m",
        "max_tokens": 10,
        "messages": [
            {"role": "user", "content": "mend it"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]},
            {"role": "assistant", "content": "half"},
            {"role": "user", "content": "go on"},
        ],
    }
    assert problem(asked) is None
    assert (opening(asked), done(asked)) == ("mend it", 2)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "at least one"),
        ([{"role": "assistant", "content": "x"}], "first message"),
        ([{"role": "user", "content": []}], "empty"),
        (
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]},
                {"role": "user", "content": "and?"},
            ],
            "tool_use ids",
        ),
        (
            [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}, {"type": "tool_use", "id": "a"}]},
            ],
            "unique",
        ),
    ],
)
def test_what_a_provider_refuses_is_refused(messages, told) -> None:
    assert told in str(problem({"model": "m", "max_tokens": 10, "messages": messages}))


def test_the_demo_script_is_read() -> None:
    script = load(Path(__file__).parents[2] / "e2e" / "manifests" / "model-script.yaml")
    assert [tool.name for reply in script.replies for tool in reply.tools] == ["bash", "read", "edit", "edit", "bash"]
    assert script.replies[-1].stop == "end_turn"
