"""N5: a conversation that outgrows the model's context, in each protocol: what is taken, and what never is."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.api.commands import ConsentAnswer
from moorage.api.wire import ResolvedAgent, ResolvedModel
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.answer import Call
from moorage.drivers.builtin.context import (
    CLOSING,
    OPENING,
    Entries,
    Said,
    Stage,
    Turn,
    compacted,
    read_said,
    summarised,
    wants_summary,
)
from moorage.drivers.builtin.driver import CONVERSATIONS, BuiltinDriver
from moorage.drivers.builtin.room import NO_TOOLS
from moorage.drivers.port import Outcome, Recorded
from moorage.drivers.telling import ToolResult
from moorage.runner.host import refusal
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Usage
from moorage.testing.serving import listening

ALL = pytest.mark.parametrize("protocol", CONVERSATIONS)
GOAL = Said("make the tests pass, and never touch the schema")
ORDER = Said("A message from the person whom you work for:\nuse tabs")
WINDOW = 24_000  # tokens: large enough for what the loop always sends
DONE = Reply(text="All done, and checked with the tests; nothing else was touched by any of it.")
Drive = Callable[..., Awaitable[tuple[Outcome, LocalHost, StandIn]]]


def bash(name: str, output: str, *, ok: bool = True) -> tuple[Call, ToolResult]:
    return Call(f"id-{name}", "bash", {"command": f"run {name}"}), ToolResult(ok, output)


def turns(count: int, size: int = 9_000) -> Entries:
    return tuple(Turn(f"step {n}", (bash(str(n), f"begin {'x' * size} end\n[exit code {n}]"),)) for n in range(count))


def size_of(entries: Entries) -> int:
    """A token for every four characters."""
    return len(repr(entries)) // 4


def words(entries: Entries) -> str:
    return repr(entries)


# --- the stages -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("N5")
@pytest.mark.parametrize(
    ("room", "stages"),
    [
        (1_000_000, []),
        (30_000, [Stage.SNIP]),
        (16_000, [Stage.SNIP, Stage.MICRO]),
        (10_000, [Stage.SNIP, Stage.MICRO, Stage.COLLAPSE]),
    ],
)
def test_as_many_stages_are_taken_as_it_needs(room: int, stages: list[Stage]) -> None:
    entries = (GOAL, *turns(10, size=8_000))
    smaller, taken = compacted(entries, size_of, room)
    assert [each.stage for each in taken] == stages
    assert all(each.after < each.before for each in taken)
    assert smaller[-4:] == entries[-4:], "the last turns stay as they are"
    assert smaller[0] == GOAL


REFUSED = refusal(ConsentAnswer(status="rejected", by="ada", reason=f"production is off limits {'for you ' * 40}"))
UNKNOWN = "HTTP 409 EffectUnknown: nobody knows whether the order was placed"


@pytest.mark.rule("N5")
def test_what_was_said_and_effects_of_unknown_end_survive_every_stage() -> None:
    unknown = Turn("", (bash("order", UNKNOWN, ok=False),))
    entries = (GOAL, turns(1)[0], ORDER, unknown, *turns(12))
    smaller, taken = compacted(entries, size_of, 1_000)
    assert [each.stage for each in taken][-1] is Stage.COLLAPSE
    for kept in (smaller, summarised(smaller, "I did things."), summarised(entries, "")):
        assert GOAL in kept
        assert ORDER in kept
        assert unknown in kept
    assert "- bash run 3: exit code 3" in words(smaller)


@pytest.mark.rule("N5")
def test_what_stays_keeps_nothing_else_of_its_turn_large() -> None:
    beside = Turn("Both.", (bash("order", UNKNOWN, ok=False), *turns(1)[0].done))
    smaller, _ = compacted((GOAL, beside, *turns(12)), size_of, 1_000)
    (kept,) = (each for each in smaller if isinstance(each, Turn) and each.pinned)
    assert kept.done[0] == beside.done[0]
    assert len(kept.done[1][1].text) < 200


def writes(answer: str, count: int = 15) -> tuple[Turn, ...]:
    def call(n: int) -> Call:
        return Call("t", "write", {"path": f"{n}.txt", "content": "x" * 40_000})

    return tuple(Turn("", ((call(n), ToolResult(ok=False, text=answer)),)) for n in range(count))


@pytest.mark.rule("N5", "T6")
def test_a_refused_call_becomes_smaller_and_its_refusal_stays() -> None:
    entries = (GOAL, *writes(REFUSED))
    smaller, (taken,) = compacted(entries, size_of, size_of(entries) * 10 // 13)
    assert taken.stage is Stage.MICRO
    assert [each.done[0][1].text for each in smaller if isinstance(each, Turn)] == [REFUSED] * 15
    assert size_of(smaller[:-4]) < size_of(entries[:-4]) // 10


@pytest.mark.rule("N5", "T6")
def test_a_persons_no_is_a_line_after_that_and_outlasts_notes_and_summaries() -> None:
    entries = (GOAL, *writes(REFUSED))
    smaller, taken = compacted(entries, size_of, 1_000, forced=True)
    assert taken[-1].stage is Stage.COLLAPSE
    assert size_of(smaller) < 2_500
    later, _ = compacted((*smaller, *turns(300)), size_of, 1_000)
    summed = summarised((*summarised(later, "I did things."), *turns(3)), "I did more.")
    for kept in (smaller, later, summed, summarised(entries, ""), summarised(smaller, "")):
        (note,) = (each.text for each in kept if isinstance(each, Said) and each.note)
        told = [line for line in note.splitlines() if "refused by ada: production is off limits" in line]
        assert [line.partition(":")[0] for line in told] == [f"- write {n}.txt" for n in range(len(told))]
        assert len(told) == 15 - sum(isinstance(each, Turn) and bool(each.done[0][0].name == "write") for each in kept)
    assert "I did things." not in words(summed)


@pytest.mark.rule("N5")
def test_refusals_and_what_only_begins_like_one_fill_no_context() -> None:
    long, _ = compacted((GOAL, *writes(REFUSED, 500)), size_of, 1_000, forced=True)
    assert size_of(long) < 5_000
    tool, _ = compacted((GOAL, *writes(f"{REFUSED}{'y' * 30_000}", 1)), size_of, 1_000, forced=True)
    assert size_of(tool) < 500, "a tool that says so is a tool"


@pytest.mark.rule("N5")
def test_a_second_note_takes_the_place_of_the_first_and_keeps_what_it_says() -> None:
    once, _ = compacted((GOAL, *turns(9)), size_of, 1_000)
    twice, _ = compacted((*once, *turns(9)), size_of, 1_000)
    notes = [each for each in twice if isinstance(each, Said) and each.note]
    assert len(notes) == 1
    assert notes[0].text.count("- bash run 1: exit code 1") == 2
    summed = summarised(twice, "All in all.")
    assert [each.text for each in summed if isinstance(each, Said) and each.note] == [f"{OPENING}All in all.{CLOSING}"]
    assert summed[-2:] == twice[-2:]


def test_what_is_left_is_kept_once_as_it_was_told_last() -> None:
    left = [Said(f"Left: {n} steps. Bring the work to an end that holds.") for n in (3, 2, 1)]
    entries = (GOAL, left[0], turns(1)[0], left[1], turns(1)[0], left[2], *turns(9))
    smaller, _ = compacted(entries, size_of, 1_000)
    assert [each for each in smaller if isinstance(each, Said) and each.text.startswith("Left")] == [left[2]]


@pytest.mark.rule("N5")
@given(st.integers(0, 30), st.integers(0, 4_000), st.integers(500, 100_000), st.booleans())
def test_no_stage_makes_it_larger_or_loses_the_goal(count: int, size: int, room: int, forced: bool) -> None:
    entries = (GOAL, *turns(count, size))
    smaller, taken = compacted(entries, size_of, room, forced=forced)
    assert size_of(smaller) <= size_of(entries)
    assert smaller[0] == GOAL
    assert (smaller == entries) is (not taken)
    assert wants_summary(9, 10)
    assert not wants_summary(8, 10)


# --- in nobody's words, and back --------------------------------------------------------------------------------------


@pytest.mark.rule("N5")
@ALL
def test_a_conversation_is_read_and_said_again_without_loss(protocol: str) -> None:
    talk = CONVERSATIONS[protocol]()
    note = Said(f"{OPENING}- bash make: exit code 0{CLOSING}")
    two = Turn("Both.", (bash("a", "one"), bash("b", "two")))
    entries = (GOAL, Turn("Half an"), Said("Go on."), two, note, ORDER, Turn("", (bash("c", "three"),)))
    talk.rebuild(entries)
    assert talk.entries() == entries if protocol == "anthropic-messages" else words(talk.entries())
    again = CONVERSATIONS[protocol]()
    again.resume(talk.request("m", []))
    said = json.dumps(again.request("m", []), sort_keys=True)
    assert said == json.dumps(talk.request("m", []), sort_keys=True)
    again.rebuild(again.entries())
    assert json.dumps(again.request("m", []), sort_keys=True) == said


def test_a_note_is_told_apart_from_what_a_protocol_joined_it_with() -> None:
    note = f"{OPENING}- bash make: exit code 0{CLOSING}"
    assert [s.text for s in read_said(f"the goal\n\n{note}\n\nuse tabs")] == ["the goal", note, "use tabs"]


# --- the loop ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    async def driven(
        protocol: str, script: Script, window: int = WINDOW, **more: Any
    ) -> tuple[Outcome, LocalHost, StandIn]:
        tree = tmp_path / "tree"
        tree.mkdir(exist_ok=True)
        (tree / "long.txt").write_text("".join(f"line {n}: {'words ' * 12}\n" for n in range(180)))
        host, stand_in = LocalHost(tree), StandIn(script)
        model = ResolvedModel(
            provider="p", protocol=protocol, base_url="http://unused", name="scripted", context_window=window
        )
        async with listening(Starlette(routes=[Mount("/model", stand_in.app)])) as url:
            agent = ResolvedAgent(driver="builtin", model=model)
            outcome = await BuiltinDriver().run(task_for(host, agent, relay_url=url, **more), host)
        return outcome, host, stand_in

    return driven


def reads(count: int) -> tuple[Reply, ...]:
    """So many decisions to read a file of some thousand tokens, each in another way."""
    return tuple(
        Reply(tools=(ToolCall(name="read", input={"path": "long.txt", "offset": n + 1}),), usage=Usage(output_tokens=5))
        for n in range(count)
    )


def compactions(host: LocalHost) -> list[dict[str, Any]]:
    return [dict(told.payload) for told in host.told if told.type == "CONTEXT_COMPACTED"]


@pytest.mark.rule("N5", "J9")
@ALL
async def test_a_long_run_stays_within_its_context_and_ends(drive: Drive, protocol: str) -> None:
    script = Script(replies=(*reads(30), DONE), by="requests")
    outcome, host, stand_in = await drive(protocol, script)
    assert outcome.outcome == "completed", outcome
    assert [entry.status for entry in stand_in.log] == [200] * len(stand_in.log), "nothing that a provider refuses"
    told = compactions(host)
    assert {each["stage"] for each in told} >= {"snip", "micro"}
    assert all(each["tokens_after"] < each["tokens_before"] for each in told)
    assert all(len(each["context_hash"]) == 64 for each in told)
    sizes = [len(json.dumps(body)) // 3 for body in stand_in.bodies]
    assert max(sizes) <= WINDOW, "never more than the model has room for"
    assert all("make the tests pass" in json.dumps(body) for body in stand_in.bodies)


FILLING = 3  # such decisions leave no room for another one
SUMMED = Reply(text="I read long.txt; lines 1 to 40 matter.", usage=Usage(output_tokens=50))


def huge(count: int) -> tuple[Reply, ...]:
    """Decisions whose own words fill the context: nothing that the other stages take from the last turns."""
    return tuple(
        Reply(text=f"{n} {'thoughts ' * 1_500}", tools=(ToolCall(name="read", input={"path": f"none{n}"}),))
        for n in range(count)
    )


@pytest.mark.rule("N5", "O3")
@ALL
async def test_the_last_stage_asks_the_model_in_an_iteration_of_its_own(drive: Drive, protocol: str) -> None:
    script = Script(replies=(*huge(FILLING), SUMMED, *huge(1), DONE), by="requests")
    outcome, host, stand_in = await drive(protocol, script)
    assert outcome.outcome == "completed", outcome
    assert "auto" in [each["stage"] for each in compactions(host)]
    asked = next(at for at, body in enumerate(stand_in.bodies) if NO_TOOLS in body)
    assert prompt.SUMMARISE in json.dumps(stand_in.bodies[asked], ensure_ascii=False)
    after = json.dumps(stand_in.bodies[asked + 1])
    assert "lines 1 to 40 matter" in after
    assert prompt.SUMMARISE not in after
    assert "make the tests pass" in after
    assert host.iterations == list(range(1, len(stand_in.log) + 1)), "each request is an iteration"


@pytest.mark.rule("N5", "R2")
@ALL
async def test_an_attempt_that_died_at_a_summary_goes_on_from_its_recorded_words(drive: Drive, protocol: str) -> None:
    script = Script(replies=(*huge(FILLING), SUMMED, DONE), by="requests")
    outcome, _, first = await drive(protocol, script)
    assert outcome.outcome == "completed"
    asked = next(at for at, body in enumerate(first.bodies) if NO_TOOLS in body)
    recorded = Recorded(asked + 1, first.bodies[asked])
    script = Script(replies=(SUMMED, DONE), by="requests")
    outcome, host, second = await drive(protocol, script, recorded=recorded, next_iteration=asked + 2)
    assert outcome.outcome == "completed"
    assert [entry.key for entry in second.log] == [entry.key for entry in first.log[asked : asked + 2]], "word by word"
    assert [(t.type, t.turn) for t in host.told] == [("CONTEXT_COMPACTED", asked + 1)]
    assert host.iterations == [asked + 1, asked + 2]


@pytest.mark.rule("N1", "N5")
async def test_a_provider_that_has_no_room_is_asked_again_with_less(drive: Drive) -> None:
    full = Reply(stop_reason="model_context_window_exceeded")
    outcome, host, stand_in = await drive(
        "anthropic-messages", Script(replies=(*reads(3), full, DONE), by="requests"), 200_000
    )
    assert outcome.outcome == "completed", outcome
    assert [each["iteration"] for each in compactions(host)] == [4] * len(compactions(host))
    assert len(json.dumps(stand_in.bodies[4])) < len(json.dumps(stand_in.bodies[3])) / 3
    assert "long.txt" in json.dumps(stand_in.bodies[4])


@pytest.mark.rule("N1")
async def test_a_context_that_is_full_of_the_goal_alone_is_an_end(drive: Drive) -> None:
    full = Reply(stop_reason="model_context_window_exceeded")
    outcome, _, stand_in = await drive("anthropic-messages", Script(replies=(full,), by="requests"))
    assert (outcome.outcome, outcome.reason) == ("failed", "ContextExceeded")
    assert len(stand_in.log) == 1


class NoRoom:
    """What OpenAI says, by a status and a code, where others have a stop reason: once, at that request."""

    def __init__(self, app: ASGIApp, at: int) -> None:
        self._app, self._at, self.asked = app, at, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        told = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}
        await (JSONResponse(told, 400) if self.asked == self._at else self._app)(scope, receive, send)


@pytest.mark.rule("N1", "N5")
@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
async def test_a_refusal_for_want_of_room_is_no_end_either(tmp_path: Path, protocol: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "long.txt").write_text("words " * 2_000)
    host, stand_in = LocalHost(tree), StandIn(Script(replies=(*reads(3), DONE), by="requests"))
    model = ResolvedModel(provider="p", protocol=protocol, base_url="http://unused", name="scripted")
    async with listening(Starlette(routes=[Mount("/model", NoRoom(stand_in.app, at=4))])) as url:
        agent = ResolvedAgent(driver="builtin", model=model)
        outcome = await BuiltinDriver().run(task_for(host, agent, relay_url=url), host)
    assert (outcome.outcome, host.iterations) == ("completed", [1, 2, 3, 4, 5])
    assert {each["iteration"] for each in compactions(host)} == {4}
