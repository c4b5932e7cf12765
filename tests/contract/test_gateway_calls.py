"""B3: answers with more tool calls than their run may make. An agent that runs them unasked doesn't get them: fifty
that are decided at once would pass a limit by forty-nine before anybody heard of the first.
"""

import contextlib
import json
from typing import Any

import httpx
import pytest
from tests.gateway_script import ok
from tests.model_place import ANTHROPIC, CHAT, RESPONSES, USAGE, Place, Spoken, gateway, last, place, script

from moorage.api.budget import ResolvedLimits
from moorage.testing.models import Fault, Reply, ToolCall

__all__ = ["gateway", "place", "script"]  # fixtures

ALL = pytest.mark.parametrize("spoken", [ANTHROPIC, RESPONSES, CHAT], ids=lambda spoken: spoken.name)
STREAMING = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def wanting(count: int) -> Reply:
    calls = tuple(ToolCall(name="bash", input={"command": f"echo {number}"}) for number in range(count))
    return Reply(text="I look.", tools=calls, usage=USAGE)


def of(count: int) -> Any:
    return pytest.mark.parametrize("script", [(wanting(count),)], ids=[f"{count} calls"])


async def told(place: Place, spoken: Spoken) -> list[dict[str, Any]]:
    """The events of a streamed answer, as far as they come."""
    came = b""
    with contextlib.suppress(httpx.RemoteProtocolError):
        headers = {"authorization": "Bearer token-of-p1"}
        async with place.client().stream("POST", spoken.path, json=spoken.ask(stream=True), headers=headers) as answer:
            async for piece in answer.aiter_bytes():
                came += piece
    lines = (line[5:].strip() for line in came.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def to_make(spoken: Spoken, events: list[dict[str, Any]]) -> int:
    """Calls that an agent may act on: those that are whole, of a chat those before its finish."""
    if spoken is RESPONSES:
        done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
        return sum(item["type"] == "function_call" for item in done)
    if spoken is ANTHROPIC:
        begun = [each["content_block"] for each in events if each["type"] == "content_block_start"]
        return sum(block["type"] == "tool_use" for block in begun)
    choices = [choice for each in events for choice in each["choices"]]
    calls = {call["index"] for choice in choices for call in choice["delta"].get("tool_calls", ())}
    return len(calls) if any(choice.get("finish_reason") for choice in choices) else 0


@ALL
@of(50)
@pytest.mark.rule("B3", "C2")
async def test_of_fifty_calls_in_one_answer_no_more_are_let_out_than_the_limit(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken, limits=ResolvedLimits(tool_calls_hard=10))
    assert to_make(spoken, await told(place, spoken)) <= 10
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert (payload["complete"], payload["problem"]) == (False, "TooManyCalls")
    assert payload["usage"]["output_tokens"] > 0, "it was paid for"
    pause = (await operator.state())["pause"]
    assert (pause["reason"], pause["limit"], pause["kill"]) == ("BudgetExhausted", "tool_calls_hard", False)


@ALL
@STREAMING
@of(1)
@pytest.mark.rule("B3")
async def test_where_no_call_is_left_none_is_let_out_and_no_further_answer_is_bought(
    place: Place, spoken: Spoken, *, stream: bool
) -> None:
    await place.run(spoken, limits=ResolvedLimits(tool_calls_hard=0))
    if stream:
        assert to_make(spoken, await told(place, spoken)) == 0
    else:
        first = await place.ask(spoken)
        assert (first.status_code, first.headers["x-should-retry"]) == (400, "false")
        assert first.json()["error"]["message"].startswith("BudgetExhausted")
    again = await place.ask(spoken, stream=stream)
    assert (again.status_code, again.headers["x-should-retry"]) == (400, "false")
    assert "tool call limit of 0 is used up" in again.text
    assert len(place.model.log) == 1


@ALL
@STREAMING
@of(3)
async def test_as_many_as_are_left_pass_and_so_does_all_that_is_no_call(
    place: Place, spoken: Spoken, *, stream: bool
) -> None:
    operator = await place.run(spoken, limits=ResolvedLimits(tool_calls_hard=3))
    if stream:
        assert to_make(spoken, await told(place, spoken)) == 3
    else:
        assert (await place.ask(spoken)).status_code == 200
    assert (await last(operator, "MODEL_RESPONSE")).payload["complete"] is True


@of(3)
async def test_a_driver_that_is_asked_before_each_call_has_them_all(place: Place) -> None:
    """It makes those that it may (`test_no_tool_is_called_beyond_its_limit`)."""
    await place.run(ANTHROPIC, limits=ResolvedLimits(tool_calls_hard=1), driver="builtin")
    assert to_make(ANTHROPIC, await told(place, ANTHROPIC)) == 3


def slowly(count: int) -> Any:
    dripping = wanting(count).model_copy(update={"faults": (Fault(kind="drip", seconds=0.05),)})
    return pytest.mark.parametrize("script", [(dripping,)], ids=[f"{count} calls, one after the other"])


async def begun(place: Place, spoken: Spoken) -> int:
    """How many calls an agent has begun that doesn't wait for the end of its answer; each is in the journal then."""
    came, made = b"", 0
    with contextlib.suppress(httpx.RemoteProtocolError):
        headers = {"authorization": "Bearer token-of-p1"}
        async with place.client().stream("POST", spoken.path, json=spoken.ask(stream=True), headers=headers) as answer:
            async for piece in answer.aiter_bytes():
                came += piece
                for number in range(made, whole(spoken, came)):
                    record = {"record_id": f"TOOL_REQUEST:1.{number}", "type": "TOOL_REQUEST", "recorded_at": 7}
                    told = record | {"payload": {"tool": "bash"}, "tool_call_id": f"1.{number}", "turn": 1}
                    await ok(await place.client().post("/v1/self/records", json={"epoch": 1, "records": [told]}))
                    made += 1
    return made


def whole(spoken: Spoken, came: bytes) -> int:
    """Calls in the events that came, of which text is the first part."""
    ends = b"event: response.output_item.done" if spoken is RESPONSES else b"event: content_block_stop"
    return max(0, came.count(ends) - 1)


@pytest.mark.parametrize("spoken", [ANTHROPIC, RESPONSES], ids=lambda spoken: spoken.name)
@slowly(4)
@pytest.mark.rule("B3")
async def test_calls_that_are_begun_while_the_answer_still_comes_count_once(place: Place, spoken: Spoken) -> None:
    operator = await place.run(spoken, limits=ResolvedLimits(tool_calls_hard=4))
    assert await begun(place, spoken) == 4
    payload = (await last(operator, "MODEL_RESPONSE")).payload
    assert (payload["complete"], payload["problem"]) == (True, None)
    assert (await operator.state())["pause"] is None


@slowly(4)
@pytest.mark.rule("B3")
async def test_the_one_too_many_is_not_let_out_though_the_others_have_begun(place: Place) -> None:
    operator = await place.run(RESPONSES, limits=ResolvedLimits(tool_calls_hard=3))
    assert await begun(place, RESPONSES) == 3
    assert (await last(operator, "MODEL_RESPONSE")).payload["problem"] == "TooManyCalls"
    assert (await operator.state())["pause"]["limit"] == "tool_calls_hard"
