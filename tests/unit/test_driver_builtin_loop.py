"""The builtin agent's loop against a stand-in that checks each request as a provider does."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from moorage.api.budget import Budget, ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedModel
from moorage.core.continuation import chain
from moorage.drivers.builtin import prompt
from moorage.drivers.builtin.driver import BuiltinDriver
from moorage.drivers.port import Outcome
from moorage.drivers.telling import MAX_ARGUMENTS
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Fault, Reply, Script, StandIn, ToolCall
from moorage.testing.models.script import Usage
from moorage.testing.serving import listening

DONE = Reply(text="All done.")
MODEL = ResolvedModel(provider="p", protocol="anthropic-messages", base_url="http://unused", name="scripted")
Drive = Callable[..., Awaitable[tuple[Outcome, LocalHost, StandIn]]]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    async def driven(*replies: Reply, model: ResolvedModel | None = MODEL, budget: Budget | None = None, **more: Any):
        (tmp_path / "tree").mkdir()
        host, stand_in = LocalHost(tmp_path / "tree", budget=budget or Budget()), StandIn(Script(replies=replies))
        async with listening(Starlette(routes=[Mount("/model", stand_in.app)])) as url:
            agent = ResolvedAgent(driver="builtin", model=model)
            outcome = await BuiltinDriver().run(task_for(host, agent, relay_url=url, **more), host)
        assert [entry.status for entry in stand_in.log].count(400) == 0, "a request that a provider refuses"
        return outcome, host, stand_in

    return driven


def write(name: str, content: str = "x", **more: Any) -> ToolCall:
    return ToolCall(name="write", input={"path": name, "content": content}, **more)


def last_said(stand_in: StandIn, request: int) -> str:
    return str(stand_in.bodies[request]["messages"][-1]["content"])


async def test_without_a_model_there_is_nothing_to_ask(drive) -> None:
    outcome, _, _ = await drive(DONE, model=None)
    assert (outcome.outcome, outcome.reason) == ("failed", "NoModel")


async def test_calls_of_one_answer_run_in_order_and_their_results_go_back_together(drive) -> None:
    calls = (write("a"), ToolCall(name="read", input={"path": "a"}), ToolCall(name="read", input={"path": "none"}))
    outcome, host, stand_in = await drive(Reply(text="Three things.", tools=calls), DONE)
    assert (outcome.outcome, outcome.summary, host.iterations) == ("completed", "All done.", [1, 2])
    assert [t.tool_call_id for t in host.told if t.type == "TOOL_RESPONSE"] == ["1.0", "1.1", "1.2"]
    assert [t.type for t in host.told] == ["TOOL_REQUEST", "TOOL_RESPONSE"] * 3
    results = stand_in.bodies[1]["messages"][-1]["content"]
    assert [block.get("is_error", False) for block in results] == [False, False, True]
    assert results[1]["content"] == "1\tx"


async def test_the_request_names_model_tools_and_what_may_be_cached(drive) -> None:
    _, _, stand_in = await drive(Reply(tools=(write("a"),)), DONE, handoff="attempt 2 of the same work")
    first, second = stand_in.bodies
    assert first["model"] == "scripted"
    assert [tool["name"] for tool in first["tools"]] == ["read", "write", "edit", "bash", "todo"]
    assert first["system"][0]["cache_control"] == {"type": "ephemeral"}
    marked = [b for m in second["messages"] for b in m["content"] if "cache_control" in b]
    assert marked == [second["messages"][-1]["content"][-1]]
    assert "attempt 2 of the same work" in str(first["messages"])


@pytest.mark.rule("N1")
async def test_an_answer_cut_by_its_length_goes_on_from_there(drive) -> None:
    cut = Reply(text="I was say", stop_reason="max_tokens")
    outcome, host, stand_in = await drive(cut, cut, cut, DONE)
    assert outcome.outcome == "completed"
    assert host.iterations == [1, 2, 3, 4]
    assert chain.CUT_TEXT in last_said(stand_in, 1)


@pytest.mark.rule("N1")
async def test_the_fourth_cut_in_a_row_is_the_end(drive) -> None:
    cut = Reply(text="I was say", stop_reason="max_tokens")
    outcome, host, stand_in = await drive(*[cut] * 9)
    assert (outcome.outcome, outcome.reason) == ("failed", "OutputLimit")
    assert (len(stand_in.log), host.iterations) == (4, [1, 2, 3, 4])


async def test_a_call_that_was_cut_does_not_run(drive) -> None:
    cut = Reply(tools=(write("whole"), write("half", cut=True)), stop_reason="max_tokens")
    outcome, host, stand_in = await drive(cut, Reply(tools=(write("half"),)), DONE)
    assert outcome.outcome == "completed"
    assert [t.payload["arguments"]["path"] for t in host.told if t.type == "TOOL_REQUEST"] == ["whole", "half"]
    assert chain.CUT_CALL in last_said(stand_in, 1)


async def test_a_call_that_was_cut_alone_is_asked_for_again(drive) -> None:
    cut = Reply(tools=(write("half", cut=True),), stop_reason="max_tokens")
    outcome, host, stand_in = await drive(cut, *[cut] * 8)
    assert outcome.reason == "OutputLimit"
    assert {t.type for t in host.told} == {"CONTINUATION_DECIDED"}
    assert chain.CUT_CALL in last_said(stand_in, 1)


async def test_an_empty_answer_is_no_end(drive) -> None:
    outcome, _, stand_in = await drive(Reply(text="All done.", faults=(Fault(kind="empty"),)))
    assert (outcome.outcome, outcome.summary) == ("completed", "All done.")
    assert chain.EMPTY in last_said(stand_in, 1)


async def test_nothing_but_empty_answers_is_a_failure(drive) -> None:
    outcome, _, stand_in = await drive(Reply())
    assert (outcome.outcome, outcome.reason) == ("failed", "EmptyAnswer")
    assert len(stand_in.log) == 3


async def test_duplicate_ids_are_told_apart(drive) -> None:
    calls = (write("a", id="same"), write("b", id="same"))
    outcome, _, stand_in = await drive(Reply(tools=calls), DONE)
    assert outcome.outcome == "completed"
    ids = [block["tool_use_id"] for block in stand_in.bodies[1]["messages"][-1]["content"]]
    assert len(set(ids)) == 2


async def test_arguments_that_no_record_can_hold_do_not_run(drive) -> None:
    outcome, host, _ = await drive(Reply(tools=(write("big", fill={"content": MAX_ARGUMENTS}),)), DONE)
    assert outcome.outcome == "completed"
    assert not (host.tree / "big").exists()
    request, response = [told for told in host.told if told.type.startswith("TOOL_")]
    assert (request.payload["arguments"], response.payload["ok"]) == (None, False)
    assert "in parts" in response.payload["content"]


@pytest.mark.parametrize(
    ("stop", "reason"), [("refusal", "ModelDeclined"), ("model_context_window_exceeded", "ContextExceeded")]
)
async def test_ends_that_are_no_answer_have_their_names(drive, stop, reason) -> None:
    outcome, _, _ = await drive(Reply(text="I can't.", stop_reason=stop))
    assert (outcome.outcome, outcome.reason) == ("failed", reason)


@pytest.mark.rule("B3", "C7")
async def test_the_model_is_told_what_is_left_when_little_is(drive) -> None:
    replies = [Reply(tools=(write("a", str(n)),), usage=Usage(input_tokens=10)) for n in range(9)]
    outcome, host, stand_in = await drive(*replies, limits=ResolvedLimits(max_iterations=5))
    assert (outcome.outcome, outcome.reason) == ("exhausted", "BudgetExhausted")
    assert host.iterations == [1, 2, 3, 4, 5]
    said = [last_said(stand_in, request) for request in range(5)]
    assert ["Left: " in text for text in said] == [False, False, True, True, True]
    assert "Left: 1 steps" in said[4]


@pytest.mark.rule("B3", "I4")
async def test_tokens_of_earlier_attempts_count(drive) -> None:
    reply = Reply(tools=(write("a"),), usage=Usage(input_tokens=100, cache_read_input_tokens=100))
    limits = ResolvedLimits(tokens_hard=1_000, tokens_soft=700)
    outcome, host, stand_in = await drive(reply, tokens_used=500, next_iteration=4, limits=limits)
    assert (outcome.reason, host.iterations) == ("BudgetExhausted", [4, 5, 6])
    assert "Left: 300 tokens" in last_said(stand_in, 1)


class Pausing(LocalHost):
    """It is told to pause while its first iteration is under way."""

    async def safe_point(self, *args: Any, **more: Any) -> str:
        self.pausing.set()
        return await super().safe_point(*args, **more)


@pytest.mark.rule("Q5")
@pytest.mark.parametrize(
    ("replies", "outcome"),
    [((Reply(tools=(ToolCall(name="bash", input={"command": "true"}),)), DONE), "paused"), ((DONE,), "completed")],
)
async def test_a_pause_ends_it_between_two_decisions_and_takes_back_no_end(
    tmp_path: Path, replies: tuple[Reply, ...], outcome: str
) -> None:
    (tmp_path / "tree").mkdir()
    host, stand_in = Pausing(tmp_path / "tree"), StandIn(Script(replies=replies))
    async with listening(Starlette(routes=[Mount("/model", stand_in.app)])) as url:
        agent = ResolvedAgent(driver="builtin", model=MODEL)
        ended = await BuiltinDriver().run(task_for(host, agent, relay_url=url), host)
    assert (ended.outcome, host.iterations, len(stand_in.log)) == (outcome, [1], 1)


async def test_a_stop_before_the_first_answer_is_obeyed_at_once(tmp_path) -> None:
    (tmp_path / "tree").mkdir()
    host, stand_in = LocalHost(tmp_path / "tree"), StandIn(Script(replies=(Reply(faults=(Fault(kind="stall"),)),)))
    async with listening(Starlette(routes=[Mount("/model", stand_in.app)])) as url:
        agent = ResolvedAgent(driver="builtin", model=MODEL)
        task = asyncio.create_task(BuiltinDriver().run(task_for(host, agent, relay_url=url), host))
        async with asyncio.timeout(40):
            while not stand_in.log:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        host.stopping.set()
        outcome = await asyncio.wait_for(task, 40)
    assert outcome.outcome == "cancelled"


@pytest.mark.rule("B3", "C7")
@pytest.mark.parametrize(
    ("left", "limits", "said"),
    [
        ({"cost": 7_500_000}, ResolvedLimits(cost_hard_micros=8_000_000), None),
        ({"cost": 500_000}, ResolvedLimits(cost_hard_micros=8_000_000), "Left: 0.50 dollars"),
        (
            {"cost": 3_000_000},
            ResolvedLimits(cost_soft_micros=5_000_000, cost_hard_micros=8_000_000),
            "Left: 3.00 dollars",
        ),
        ({"toolCalls": 1}, ResolvedLimits(tool_calls_hard=5), "Left: 1 tool calls"),
        ({"effects": 0}, ResolvedLimits(effects_hard=0), "Left: 0 effects"),
    ],
)
async def test_the_model_is_told_what_may_still_be_spent(
    drive, left: dict[str, int], limits: ResolvedLimits, said: str | None
) -> None:
    _, _, stand_in = await drive(Reply(tools=(write("a"),)), DONE, limits=limits, budget=Budget(left=left))
    told = last_said(stand_in, 1)
    assert said in told if said else "Left" not in told


@pytest.mark.rule("B3")
async def test_a_warning_is_told_once(drive) -> None:
    reply = Reply(tools=(write("a"),), usage=Usage(input_tokens=100))
    budget = Budget(warnings=("the soft token limit of 150 is passed (200)",))
    outcome, _, stand_in = await drive(reply, reply, DONE, budget=budget)
    assert outcome.outcome == "completed"
    said = [prompt.warned(budget.warnings[0]) in last_said(stand_in, request) for request in range(3)]
    assert said == [False, True, False]


@pytest.mark.rule("B3")
async def test_a_call_that_may_not_be_made_is_not_run(drive) -> None:
    budget = Budget(left={"toolCalls": 0}, exhausted="the run's tool call limit of 0 is used up (0)")
    outcome, host, stand_in = await drive(Reply(tools=(write("a"),)), budget=budget)
    assert (outcome.outcome, outcome.message) == ("exhausted", budget.exhausted)
    assert stand_in.log == [], "0 left means 0"
    assert not (host.tree / "a").exists()
