"""P6: which of an agent's requests end an iteration, by what they carry; with a program that only these tests know."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent
from moorage.core.models.protocol import Carried
from moorage.drivers import jsonlines
from moorage.drivers.facts import Answered, Asked, Ended, Fact, Settled
from moorage.drivers.jsonlines import AgentListener, Launch, Line, Speech
from moorage.drivers.port import Kind, Message
from moorage.drivers.program import Spent
from moorage.drivers.telling import ToolResult
from moorage.testing.host import LocalHost, task_for

MESSAGES = "/model/v1/messages"
DID = ToolResult(ok=True, text="")


class Lines:
    """Implements Dialect: `{"ask": ID}`, `{"did": ID}`, `{"settled": ""}` and `{"end": ""}`."""

    def facts(self, event: Mapping[str, Any]) -> Sequence[Fact] | None:
        if "ask" in event:
            return [Asked(event["ask"], "tool", {})]
        if "settled" in event:
            return [Settled({}, more=False)]
        if "end" in event:
            return [Settled({}, more=False), Ended()]
        return [Answered(event["did"], "tool", {}, DID)] if "did" in event else None

    def telling(self, results: Sequence[Carried]) -> int:
        return len(results)


def carrying(*calls: str, title: str = "") -> bytes:
    results = [{"type": "tool_result", "tool_use_id": call, "content": "x"} for call in calls]
    return json.dumps({"messages": [{"role": "user", "content": results}], "system": title}).encode()


def talk(*said: str, tools: bool = True) -> bytes:
    """A conversation without calls: a person, or a hook, and the model, in turn."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": words} for at, words in enumerate(said)]
    return json.dumps({"messages": messages, "tools": [{"name": "bash"}] if tools else []}).encode()


@dataclass
class Play:
    """A listener at work on what the test has its program say and ask. `kept` is what its conversation holds."""

    host: LocalHost
    listener: AgentListener
    attending: asyncio.Task[None]
    kept: set[str]
    words: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    async def say(self, **event: str) -> None:
        await self.words.put(json.dumps(event).encode() + b"\n")

    async def did(self, *calls: str) -> None:
        """Calls, from their beginning to their end, told and kept."""
        for call in calls:
            await self.say(ask=call)
            await self.say(did=call)
        self.kept.update(calls)

    async def ask(self, *calls: str, path: str = MESSAGES, body: bytes | None = None) -> bytes:
        return await self.host.hold.ask(path, body or carrying(*calls))

    async def until(self, there: Callable[[], bool]) -> None:
        """Let it work until something is there."""
        async with asyncio.timeout(30):
            while not there():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def said(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.words.get()


Playing = Callable[..., Play]


@pytest.fixture
async def playing(tmp_path: Path) -> AsyncIterator[Playing]:
    (tmp_path / "tree").mkdir()
    host, tasks = LocalHost(tmp_path / "tree"), list[asyncio.Task[None]]()
    held = host.held()
    requests = held.__enter__()

    def begin(*before: str, limits: ResolvedLimits | None = None, line: Line | None = None, **more: Any) -> Play:
        kept = set(before)
        launch = replace(Launch((), {}, b"", Lines(), lambda _: None, results=lambda: frozenset(kept)), **more)
        task = task_for(host, ResolvedAgent(driver="mine"), limits=limits)
        listener = AgentListener(task, host, launch, requests, line)
        play = Play(host, listener, asyncio.create_task(listener.attend()), kept)
        tasks.extend([play.attending, asyncio.create_task(listener.hear(play.said()))])
        return play

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    held.__exit__(None, None, None)


@pytest.mark.rule("P6")
async def test_a_decision_with_all_its_calls_is_one_iteration(playing: Playing) -> None:
    play = playing()
    assert await play.ask() == b""
    assert play.host.iterations == []
    await play.did("a", "b")
    await play.ask("a", "b")
    await play.did("c")
    await play.ask("a", "b", "c")
    assert play.host.iterations == [1, 2]
    assert [told.tool_call_id for told in play.host.told if told.type == "TOOL_REQUEST"] == ["1.0", "1.1", "2.0"]


@pytest.mark.rule("P6")
async def test_what_carries_no_new_result_ends_nothing(playing: Playing) -> None:
    play = playing()
    await play.ask()
    await play.did("a")
    await play.ask("a")
    for again in (play.ask("a"), play.ask("a"), play.ask(), play.ask("a", body=carrying("a", title="a title"))):
        await again
    await play.ask("zz", path="/model/v1/messages/count_tokens")
    await play.ask("zz", path="/model/v1/models")
    await play.ask(path=MESSAGES, body=b"{no json")
    assert play.host.iterations == [1]


async def test_a_query_behind_the_path_makes_no_other_door(playing: Playing) -> None:
    play = playing()
    await play.ask(path=f"{MESSAGES}?beta=true")
    await play.did("a")
    await play.ask("a", path=f"{MESSAGES}?beta=true")
    assert play.host.iterations == [1]


@pytest.mark.rule("R1")
async def test_what_a_conversation_brings_along_is_of_earlier_attempts(playing: Playing) -> None:
    play = playing("old-1", "old-2")
    await play.ask("old-1", "old-2")
    assert play.host.iterations == []
    await play.did("new")
    await play.ask("old-1", "old-2", "new")
    assert play.host.iterations == [1]


async def test_where_nobody_knows_what_it_brings_along_only_what_was_told_counts(playing: Playing) -> None:
    play = playing(results=None)
    await play.ask("old-1")
    assert play.host.iterations == []
    await play.did("new")
    await play.ask("old-1", "new")
    assert play.host.iterations == [1]


@pytest.mark.rule("P6", "B3")
async def test_a_result_that_is_brought_before_its_call_is_told_ends_its_iteration_too(playing: Playing) -> None:
    play = playing(results=None)
    await play.ask(body=talk("do it"))
    asked = asyncio.create_task(play.ask("new"))
    done, _ = await asyncio.wait({asked}, timeout=0.1)
    assert not done
    await play.did("new")
    await asked
    assert play.host.iterations == [1]
    assert [told.tool_call_id for told in play.host.told] == ["1.0", "1.0"]


@pytest.mark.rule("P6")
async def test_it_waits_for_what_is_told_and_kept_a_moment_later(playing: Playing) -> None:
    play = playing()
    await play.ask()
    await play.say(ask="a")
    asked = asyncio.create_task(play.ask("a"))
    await asyncio.sleep(0)
    await play.say(did="a")
    assert not asked.done()
    play.kept.add("a")
    await asked
    assert play.host.conversations == [True]
    assert [told.type for told in play.host.told] == ["TOOL_REQUEST", "TOOL_RESPONSE"]


@pytest.mark.rule("P2")
async def test_a_conversation_that_lags_is_left_out_rather_than_kept_at_another_moment(
    playing: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonlines, "LAG_S", 0.01)
    play = playing()
    await play.ask()
    await play.say(ask="a")
    await play.say(did="a")
    await play.ask("a")
    assert (play.host.iterations, play.host.conversations) == ([1], [False])


@pytest.mark.rule("P6")
async def test_what_a_helper_asks_within_a_call_ends_nothing(playing: Playing) -> None:
    play = playing(nested=True)
    await play.ask()
    await play.say(ask="helper")
    await play.did("inner")
    await play.until(lambda: len(play.host.told) == 3)
    await play.ask("inner")
    assert play.host.iterations == []
    await play.say(did="helper")
    play.kept.add("helper")
    await play.ask("helper")
    assert play.host.iterations == [1]


async def test_of_a_body_that_nobody_reads_what_was_told_decides(playing: Playing) -> None:
    play = playing()
    await play.host.hold.ask(MESSAGES, None)
    assert play.host.iterations == []
    await play.did("a")
    await play.until(lambda: len(play.host.told) == 2)
    await play.host.hold.ask(MESSAGES, None)
    assert (play.host.iterations, play.host.conversations) == ([1], [False])


@pytest.mark.rule("X2")
async def test_an_agent_that_is_to_stop_buys_no_further_decision(playing: Playing) -> None:
    play = playing()
    play.host.stopping.set()
    told = json.loads(await play.ask("a"))
    assert told["error"]["message"].startswith("Stopping: ")
    assert play.host.iterations == []


@pytest.mark.rule("X2")
async def test_one_that_is_told_to_stop_at_its_safe_point_hears_so(playing: Playing, monkeypatch) -> None:
    play = playing()
    await play.ask()
    await play.did("a")
    before = play.host.safe_point

    async def stopped_meanwhile(iteration: int, usage: Mapping[str, int] | None = None, **more: Any) -> str:
        play.host.stopping.set()
        return await before(iteration, usage, **more)

    monkeypatch.setattr(play.host, "safe_point", stopped_meanwhile)
    assert b"Stopping: " in await play.ask("a")
    assert play.host.iterations == [1]


@pytest.mark.rule("E2")
async def test_an_end_that_is_told_during_a_safe_point_is_an_iteration_after_it(playing: Playing, monkeypatch) -> None:
    play, going = playing(), asyncio.Event()
    await play.ask()
    await play.did("a")
    before = play.host.safe_point

    async def slow(iteration: int, usage: Mapping[str, int] | None = None, **more: Any) -> str:
        await going.wait()
        return await before(iteration, usage, **more)

    monkeypatch.setattr(play.host, "safe_point", slow)
    asked = asyncio.create_task(play.ask("a"))
    await play.say(end="")
    await asyncio.sleep(0)
    going.set()
    await asked
    await play.until(play.listener.final.is_set)
    assert play.host.iterations == [1, 2]


@pytest.mark.rule("M3")
async def test_what_is_said_as_an_interrupted_agent_ends_is_heard_before_its_end(playing: Playing, monkeypatch) -> None:
    heard, going = asyncio.Queue[bytes](), asyncio.Event()
    speech = Speech(message=str.encode, steer=str.encode, interrupts=True)
    play = playing(line=Line(heard.put, speech, None))
    await play.ask()
    await play.did("a")
    before = play.host.messages.take

    async def slow(*kinds: Kind, turn: int, fresh: bool = False) -> tuple[Message, ...]:
        await going.wait()
        return await before(*kinds, turn=turn, fresh=fresh)

    monkeypatch.setattr(play.host.messages, "take", slow)
    await play.host.messages.say("Steer", "Use tabs.")
    asked = asyncio.create_task(play.ask("a"))
    await play.until(lambda: play.host.iterations == [1])
    await play.say(end="")
    await play.until(lambda: play.host.iterations == [1, 2])
    going.set()
    assert b"Steered" in await asked
    assert await heard.get() == b"Use tabs."
    await play.say(end="")
    await play.until(play.listener.final.is_set)
    assert play.host.iterations == [1, 2, 3], "its first end was none"


@pytest.mark.rule("M3")
async def test_an_interrupted_turn_keeps_no_later_message_out(playing: Playing) -> None:
    heard = asyncio.Queue[bytes]()
    speech = Speech(message=str.encode, steer=str.encode, interrupts=True)
    play = playing(line=Line(heard.put, speech, None))
    await play.ask()
    for result, words in (("a", "Use tabs."), ("b", "And short lines.")):
        await play.did(result)
        await play.host.messages.say("Steer", words)
        assert b"Steered" in await play.ask(result)
        assert await heard.get() == words.encode()
    await play.host.messages.say("FollowUp", "Now the docs.")
    await play.say(end="")
    assert await heard.get() == b"Now the docs."
    assert not play.listener.final.is_set()
    await play.say(end="")
    await play.until(play.listener.final.is_set)


@pytest.mark.rule("Q5", "P6")
async def test_an_agent_that_is_to_pause_is_held_at_its_safe_point_and_passes_until_then(playing: Playing) -> None:
    play = playing()
    play.host.pausing.set()
    assert await play.ask() == b""
    await play.did("a")
    asked = asyncio.create_task(play.ask("a"))
    await asyncio.sleep(0)
    assert await play.ask() == b"", "which comes later, so that the other one has had its turn"
    assert (play.host.iterations, asked.done()) == ([1], False)
    asked.cancel()


@pytest.mark.rule("P6", "B3")
async def test_an_agent_whose_hook_wont_let_it_stop_uses_up_its_iterations(playing: Playing) -> None:
    """It calls nothing, says the same each time, and is told the same each time."""
    play = playing(limits=ResolvedLimits(max_iterations=3))
    said = ["do it"]
    for _ in range(3):
        assert await play.ask(body=talk(*said)) == b""
        said += ["Done.", "You are not done: go on."]
    assert play.host.iterations == [1, 2]
    asked = asyncio.create_task(play.ask(body=talk(*said)))
    with pytest.raises(Spent):
        await play.attending
    assert play.host.iterations == [1, 2, 3]
    assert not asked.done()
    asked.cancel()


@pytest.mark.rule("P6")
async def test_words_that_are_answered_once_end_one_iteration(playing: Playing) -> None:
    play = playing()
    said = ("do it", "Done.", "You are not done: go on.")
    await play.ask(body=talk("do it"))
    for again in (talk(*said), talk(*said), talk("do it"), talk(*said, tools=False)):
        await play.ask(body=again)
    assert play.host.iterations == [1]


@pytest.mark.rule("P6", "M3")
async def test_an_end_that_was_told_is_counted_once_though_somebody_answers_it(playing: Playing) -> None:
    play = playing()
    await play.ask(body=talk("do it"))
    await play.say(end="")
    await play.until(lambda: play.host.iterations == [1])
    await play.ask(body=talk("do it", "Done.", "and now that"))
    assert play.host.iterations == [1]
    await play.ask(body=talk("do it", "Done.", "and now that", "Done.", "go on"))
    assert play.host.iterations == [1, 2]


@pytest.mark.rule("B3")
async def test_who_answers_the_end_of_the_last_iteration_gets_no_other_one(playing: Playing) -> None:
    play = playing(limits=ResolvedLimits(max_iterations=1), settles=True)
    await play.ask(body=talk("do it"))
    await play.say(settled="")
    await play.until(lambda: play.host.iterations == [1])
    asked = asyncio.create_task(play.ask(body=talk("do it", "Done.", "go on")))
    with pytest.raises(Spent):
        await play.attending
    assert not asked.done()
    asked.cancel()


@pytest.mark.rule("B3", "N4")
async def test_an_end_that_is_told_after_the_request_that_answers_it_counts_before_it(playing: Playing) -> None:
    play = playing(limits=ResolvedLimits(max_iterations=1), settles=True)
    await play.ask(body=talk("do it"))
    asked = asyncio.create_task(play.ask(body=talk("do it", "Done.", "go on")))
    done, _ = await asyncio.wait({asked, play.attending}, timeout=0.2)
    assert not done
    await play.say(settled="")
    with pytest.raises(Spent):
        await play.attending
    assert (play.host.iterations, asked.done()) == ([1], False)
    asked.cancel()


@pytest.mark.rule("P6", "N5")
async def test_a_conversation_that_is_made_shorter_ends_nothing_by_that(playing: Playing) -> None:
    play = playing()
    await play.ask(body=talk("do it"))
    await play.ask(body=talk("do it", "Done 1", "go on", "Done 2", "go on"))
    assert play.host.iterations == [1]
    await play.ask(body=talk("sum it up", tools=False))
    await play.ask(body=talk("in short", "Done 2", "go on"))
    assert play.host.iterations == [1]
    await play.ask(body=talk("in short", "Done 2", "go on", "Done 2", "go on"))
    assert play.host.iterations == [1, 2]


@pytest.mark.rule("P6")
@pytest.mark.parametrize("odd", [[], {}, None, 3])
async def test_a_body_of_another_shape_passes(playing: Playing, odd: Any) -> None:
    play = playing()
    body = {"messages": [{"role": odd, "content": [{"type": odd, "text": odd}]}, odd], "tools": odd}
    assert await play.ask(body=json.dumps(body).encode()) == b""
    assert play.host.iterations == []


@pytest.mark.rule("P6")
async def test_words_of_an_earlier_attempt_end_nothing_whatever_is_asked_before(playing: Playing) -> None:
    play = playing()
    await play.ask(body=talk("name this", tools=False))
    await play.ask(body=talk("do it", "Done.", "go on from there"))
    assert play.host.iterations == []


@pytest.mark.rule("P6")
@pytest.mark.parametrize("how", ["it tells each end itself", "it is an agent within a call"])
async def test_answered_words_that_end_nothing(playing: Playing, how: str, monkeypatch) -> None:
    monkeypatch.setattr(jsonlines, "LAG_S", 0.2)
    play = playing(settles=how.startswith("it tells"), nested=True)
    await play.ask(body=talk("do it"))
    if how.endswith("a call"):
        await play.say(ask="helper")
        await play.until(lambda: bool(play.listener._open))
    await play.ask(body=talk("do it", "Done.", "go on"))
    assert play.host.iterations == []


@pytest.mark.rule("B3")
async def test_the_request_after_the_last_iteration_is_never_passed_on(playing: Playing) -> None:
    play = playing(limits=ResolvedLimits(max_iterations=1))
    await play.ask()
    await play.did("a")
    asked = asyncio.create_task(play.ask("a"))
    with pytest.raises(Spent):
        await play.attending
    assert not asked.done()
    asked.cancel()
