"""What an ACP agent's messages mean: as opencode and codex-acp were seen to tell their calls, and in any shape."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.models.protocol import Carried
from moorage.drivers.acp.events import AcpEvents
from moorage.drivers.facts import Answered, Asked, Ended, Fact, Permission, Reply, Said, Settled, Wanted

OPTIONS = [
    {"optionId": "always", "kind": "allow_always"},
    {"optionId": "once", "kind": "allow_once"},
    {"optionId": "never", "kind": "reject_always"},
    {"optionId": "no", "kind": "reject_once"},
]


def prompting(*, load: bool = False) -> AcpEvents:
    """In the middle of its first turn."""
    events = AcpEvents(Path("/volume/tree"), lambda resumed: f"goal {resumed}", "old" if load else None)
    events.facts({"id": 0, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": load}}})
    events.facts({"id": 1 if load else 2, "result": {"sessionId": "s"}})
    return events


def update(update: str, /, **told: Any) -> Mapping[str, Any]:
    return {"method": "session/update", "params": {"update": {"sessionUpdate": update, **told}}}


def permission(**call: Any) -> Mapping[str, Any]:
    return {"id": 7, "method": "session/request_permission", "params": {"toolCall": call, "options": OPTIONS}}


def reply(facts: Sequence[Fact] | None) -> Mapping[str, Any]:
    (found,) = (json.loads(fact.data) for fact in facts or () if isinstance(fact, Reply))
    return dict(found)


def without_words(facts: Sequence[Fact] | None) -> list[type]:
    return [type(fact) for fact in facts or ()]


def test_the_conversation_begins_and_ends_by_its_numbers() -> None:
    events = AcpEvents(Path("/volume/tree"), lambda resumed: f"goal {resumed}", None)
    assert json.loads(events.hello())["params"]["clientCapabilities"]["terminal"] is True
    greeted = events.facts({"id": 0, "result": {"protocolVersion": 1}})
    assert reply(greeted)["params"] == {"cwd": "/volume/tree", "mcpServers": []}
    assert reply(events.facts({"id": 2, "result": {"sessionId": "s"}}))["params"] == {
        "sessionId": "s",
        "prompt": [{"type": "text", "text": "goal False"}],
    }
    assert events.facts({"id": 9, "result": {"stopReason": "end_turn"}}) is None, "nobody asked that"
    assert events.facts({"id": 3, "result": {"stopReason": "end_turn"}}) == [Settled({}, more=False), Ended(None)]
    assert events.facts({"id": 3, "result": {"stopReason": "end_turn"}}) is None, "it was answered"


@pytest.mark.rule("O2")
def test_an_agent_that_takes_tools_over_http_is_given_their_server() -> None:
    able = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True, "mcpCapabilities": {"http": True}}}
    for earlier, method in ((None, "session/new"), ("old", "session/load")):
        events = AcpEvents(Path("/t"), str, earlier, "http://127.0.0.1:7/mcp")
        asked = reply(events.facts({"id": 0, "result": able}))
        (server,) = asked["params"]["mcpServers"]
        assert (asked["method"], server["type"], server["url"]) == (method, "http", "http://127.0.0.1:7/mcp")


@pytest.mark.parametrize("able", [{}, {"mcpCapabilities": {"http": False, "sse": True}}, {"mcpCapabilities": 7}])
def test_an_agent_that_takes_none_is_not_begun_without_them(able: dict[str, Any]) -> None:
    events = AcpEvents(Path("/t"), str, None, "http://127.0.0.1:7/mcp")
    (end,) = events.facts({"id": 0, "result": {"protocolVersion": 1, "agentCapabilities": able}}) or ()
    assert isinstance(end, Ended)
    assert "agent.children" in str(end.failure)


def test_an_earlier_conversation_is_loaded_only_where_the_agent_can() -> None:
    events = AcpEvents(Path("/t"), str, "old")
    assert reply(events.facts({"id": 0, "result": {"protocolVersion": 1}}))["method"] == "session/new"
    events = AcpEvents(Path("/t"), str, "old")
    able = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
    assert reply(events.facts({"id": 0, "result": able}))["params"]["sessionId"] == "old"
    assert events.facts(update("tool_call", toolCallId="a", status="completed")) == []


def test_a_call_that_is_told_empty_at_first_is_asked_for_with_what_it_is() -> None:
    """As opencode tells it."""
    events = prompting()
    assert events.facts(update("tool_call", toolCallId="a", kind="execute", title="bash", status="pending")) == []
    asked = events.facts(permission(toolCallId="a", title="cat a.txt", rawInput={"command": "cat a.txt"}))
    assert asked is not None
    assert asked[0] == Asked("a", "execute", {"command": "cat a.txt"}), "as a person is asked, whatever its title"
    (waits,) = (fact for fact in asked if isinstance(fact, Permission))
    assert (waits.call, waits.tool, waits.arguments) == ("a", "execute", {"command": "cat a.txt"})
    for said, option in ((waits.yes, "once"), (waits.no("never"), "no")):
        chosen = {"outcome": {"outcome": "selected", "optionId": option}}
        assert json.loads(said) == {"jsonrpc": "2.0", "id": 7, "result": chosen}
    assert waits.mute, "there is no room for the reason"
    assert events.facts(update("tool_call_update", toolCallId="a", status="in_progress")) == [], "asked for once"
    output = {"output": "one\n", "metadata": {"exit": 3}}
    done, settled = events.facts(update("tool_call_update", toolCallId="a", status="completed", rawOutput=output)) or ()
    assert isinstance(done, Answered)
    assert (done.result.ok, done.result.exit_code, done.result.text) == (False, 3, "one\n")
    assert settled == Settled({}, more=True)
    assert events.facts(update("tool_call_update", toolCallId="a", status="in_progress")) == [], "it is over"


def test_a_call_that_asks_before_it_is_told_is_one_call() -> None:
    """As codex-acp tells it, with another one beside it that doesn't ask."""
    events = prompting()
    assert without_words(events.facts(permission(toolCallId="a", rawInput={"command": ["sh"]}))) == [Asked, Permission]
    assert without_words(events.facts(update("tool_call", toolCallId="b", status="in_progress"))) == [Asked]
    assert without_words(events.facts(update("tool_call_update", toolCallId="b", status="completed"))) == [Answered]
    assert events.facts(update("tool_call", toolCallId="a", status="in_progress")) == []
    output = {"exit_code": 3, "aggregated_output": "no"}
    facts = events.facts(update("tool_call_update", toolCallId="a", status="failed", rawOutput=output))
    assert without_words(facts) == [Answered, Settled]


def test_what_is_under_way_at_the_end_of_a_turn_has_ended_too() -> None:
    events = prompting()
    events.facts(update("tool_call", toolCallId="a", status="in_progress"))
    events.facts(update("tool_call", toolCallId="b", status="pending"))
    facts = events.facts({"id": 3, "result": {"stopReason": "end_turn"}})
    assert without_words(facts) == [Answered, Settled, Ended]


def test_who_tells_of_its_calls_is_waited_for_and_who_tells_nothing_once() -> None:
    events, brought = prompting(), [Carried("a"), Carried("b")]
    assert events.telling(brought[:1]) == 1, "it may be behind"
    events.facts(update("tool_call", toolCallId="a", status="completed"))
    assert events.telling(brought) == 2
    events.facts(update("tool_call", toolCallId="b", status="in_progress"))
    assert events.telling(brought) == 1, "of two that it brought then nothing was told"
    assert events.telling(brought) == 0


@pytest.mark.parametrize("options", [[], None, "x", [{"optionId": "no", "kind": "reject_once"}], [7]])
def test_where_no_yes_is_offered_nothing_is_chosen(options: object) -> None:
    asked = {"id": 7, "method": "session/request_permission", "params": {"toolCall": {}, "options": options}}
    *_, waits = prompting().facts(asked) or ()
    assert isinstance(waits, Permission)
    assert json.loads(waits.yes)["result"] == {"outcome": {"outcome": "cancelled"}}


def test_a_no_is_never_one_for_good() -> None:
    """The next call of that kind is another question."""
    options = [{"optionId": "never", "kind": "reject_always"}, {"optionId": "once", "kind": "allow_once"}]
    asked = {"id": 7, "method": "session/request_permission", "params": {"toolCall": {}, "options": options}}
    *_, waits = prompting().facts(asked) or ()
    assert isinstance(waits, Permission)
    assert json.loads(waits.no("never"))["result"] == {"outcome": {"outcome": "cancelled"}}


def test_words_that_come_in_pieces_are_one_line_of_the_log() -> None:
    events = prompting()
    for piece in ("All ", "done", "."):
        assert events.facts(update("agent_message_chunk", content={"type": "text", "text": piece})) == []
    assert events.facts(update("plan", entries=[])) == []
    facts = events.facts({"id": 3, "result": {"stopReason": "end_turn"}})
    assert facts is not None
    assert facts[0] == Said("All done.")


def test_words_without_an_end_are_told_in_parts() -> None:
    events, told = prompting(), 0
    for _ in range(64):
        facts = events.facts(update("agent_message_chunk", content={"text": "x" * 4096})) or ()
        told += sum(len(fact.text) for fact in facts if isinstance(fact, Said))
    assert told >= 3 * 64 * 1024


@pytest.mark.parametrize("answer", [{"result": {"stopReason": "cancelled"}}, {"error": {"message": "aborted"}}])
def test_a_turn_that_was_cancelled_for_a_message_goes_on_with_it(answer: Mapping[str, Any]) -> None:
    events = prompting()
    assert json.loads(events.steer("Use tabs."))["method"] == "session/cancel"
    facts = events.facts({"id": 3, **answer})
    assert without_words(facts) == [Reply]
    assert reply(facts)["params"]["prompt"][0]["text"] == "Use tabs."
    assert without_words(events.facts({"id": 4, "result": {"stopReason": "end_turn"}})) == [Settled, Ended]


@pytest.mark.rule("M3")
def test_all_that_is_said_before_the_cancelled_turn_is_over_is_said_next() -> None:
    events = prompting()
    assert json.loads(events.steer("Use tabs."))["method"] == "session/cancel"
    assert events.steer("And no semicolons.") == b"", "it is told to stop once"
    facts = events.facts({"id": 3, "result": {"stopReason": "cancelled"}})
    assert reply(facts)["params"]["prompt"][0]["text"] == "Use tabs.\n\nAnd no semicolons."
    assert json.loads(events.steer("And an end."))["method"] == "session/cancel", "of the next turn"


@pytest.mark.rule("M3")
@pytest.mark.parametrize("answer", [{"result": {"stopReason": "end_turn"}}, {"error": {"message": "no"}}])
def test_who_has_stopped_meanwhile_is_prompted_at_once(answer: Mapping[str, Any]) -> None:
    events = prompting()
    events.facts({"id": 3, **answer})
    assert json.loads(events.steer("Use tabs."))["params"]["prompt"][0]["text"] == "Use tabs."
    assert without_words(events.facts({"id": 4, "result": {"stopReason": "end_turn"}})) == [Settled, Ended]


@pytest.mark.rule("M3")
def test_who_has_not_begun_hears_of_it_with_the_goal() -> None:
    events = AcpEvents(Path("/t"), lambda resumed: f"goal {resumed}", None)
    events.facts({"id": 0, "result": {"protocolVersion": 1}})
    assert events.steer("Use tabs.") == b""
    assert reply(events.facts({"id": 2, "result": {"sessionId": "s"}}))["params"]["prompt"] == [
        {"type": "text", "text": "goal False\n\nUse tabs."}
    ]


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "refusal", "cancelled", "", "new", None, 7])
def test_any_other_reason_to_stop_is_no_success(reason: object) -> None:
    *_, last = prompting().facts({"id": 3, "result": {"stopReason": reason}}) or ()
    assert isinstance(last, Ended)
    assert last.failure
    assert last.cut is (reason == "max_tokens")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ({"message": "Internal error", "data": {"message": "status 401 Unauthorized"}}, "401"),
        ({"message": "Internal error: no way", "data": {"service": "session"}}, "no way"),
        ({}, "error"),
        (None, "error"),
    ],
)
def test_an_error_is_told_with_its_details(error: object, says: str) -> None:
    *_, last = prompting().facts({"id": 3, "error": error}) or ()
    assert isinstance(last, Ended)
    assert says in (last.failure or "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("toolCallId", "status", "kind", "title", "rawInput", "rawOutput", "content", "toolCall", "options", "update")
METHODS = ("session/update", "session/request_permission", "fs/read_text_file", "terminal/create", "new/one")
UPDATES = ("tool_call", "tool_call_update", "agent_message_chunk", "plan", "new_one")
ODD = st.dictionaries(st.sampled_from(NAMES), JSON | st.sampled_from(("a", "completed", "in_progress")), max_size=5)
MESSAGES = st.one_of(
    st.fixed_dictionaries({"method": st.sampled_from(METHODS), "params": ODD}, optional={"id": JSON}),
    st.builds(lambda kind, told: update(kind, **told), st.sampled_from(UPDATES), ODD),
    st.fixed_dictionaries({"id": st.integers(0, 4) | JSON}, optional={"result": JSON, "error": JSON}),
    st.dictionaries(st.sampled_from(("id", "method", "params", "result", "error")), JSON, max_size=5),
)


@given(st.lists(MESSAGES, max_size=8), st.booleans())
def test_no_message_is_too_strange(messages: list[dict[str, Any]], load: bool) -> None:
    events = prompting(load=load)
    for message in messages:
        for fact in events.facts(message) or ():
            if isinstance(fact, Reply):
                assert json.loads(fact.data)["jsonrpc"] == "2.0"
            if isinstance(fact, Permission):
                assert json.loads(fact.yes)["id"] == json.loads(fact.no("why"))["id"] == message["id"]
            if isinstance(fact, Asked | Answered | Permission):
                json.dumps(fact.arguments)
            if isinstance(fact, Wanted):
                assert fact.request == message["id"]
