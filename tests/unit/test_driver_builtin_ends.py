"""The builtin agent says that it is done, goes in circles, or only repeats itself (N1, N2, N4, N6)."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedContinuation, ResolvedModel
from moorage.core.continuation.chain import MOST
from moorage.drivers.builtin.driver import BuiltinDriver
from moorage.drivers.port import EndCheck, Outcome
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.serving import listening

MODEL = ResolvedModel(provider="p", protocol="anthropic-messages", base_url="http://unused", name="scripted")
DONE = Reply(text="All done.")
TOLD = EndCheck("Acceptance `tests` failed: read line 7.")
PROVED = EndCheck(proved=True)
Drive = Callable[..., Awaitable[tuple[Outcome, LocalHost, StandIn]]]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    async def driven(
        *replies: Reply, ends: tuple[EndCheck, ...] = (), plan: bool = False, nudges: bool = True, **more: Any
    ) -> tuple[Outcome, LocalHost, StandIn]:
        (tmp_path / "tree").mkdir()
        host, stand_in = LocalHost(tmp_path / "tree", ends=[*ends]), StandIn(Script(replies=replies))
        async with listening(Starlette(routes=[Mount("/model", stand_in.app)])) as url:
            asked = ResolvedContinuation(nudges=nudges, plan=plan)
            agent = ResolvedAgent(driver="builtin", model=MODEL, continuation=asked)
            outcome = await BuiltinDriver().run(task_for(host, agent, relay_url=url, **more), host)
        assert [entry.status for entry in stand_in.log].count(400) == 0, "a request that a provider refuses"
        return outcome, host, stand_in

    return driven


def write(name: str, content: str = "x") -> Reply:
    return Reply(tools=(ToolCall(name="write", input={"path": name, "content": content}),))


def todo(*items: tuple[str, str]) -> Reply:
    given = [{"text": text, "status": status} for text, status in items]
    return Reply(tools=(ToolCall(name="todo", input={"items": given}),))


def bash(command: str) -> Reply:
    return Reply(tools=(ToolCall(name="bash", input={"command": command}),))


def last_said(stand_in: StandIn, request: int) -> str:
    return str(stand_in.bodies[request]["messages"][-1]["content"])


def decisions(host: LocalHost) -> list[tuple[str, str]]:
    return [(t.payload["decision"], t.payload["kind"]) for t in host.told if t.type == "CONTINUATION_DECIDED"]


@pytest.mark.rule("N4")
async def test_an_end_that_facts_stand_against_is_no_end(drive: Drive) -> None:
    replies = (write("a"), DONE, write("b"), DONE)
    outcome, host, stand_in = await drive(*replies, ends=(TOLD, PROVED), judged=True)
    assert (outcome.outcome, outcome.reason, host.iterations) == ("completed", "Completed", [1, 2, 3, 4])
    assert "Acceptance `tests` failed: read line 7." in last_said(stand_in, 2)
    assert "All done." in str(stand_in.bodies[2]["messages"][-2]), "its own words stay in the conversation"
    assert decisions(host) == [("nudge", "PreComplete")]
    assert host.checked == 2


@pytest.mark.rule("N2")
@pytest.mark.parametrize(("judged", "outcome"), [(True, "completed"), (False, "failed")])
async def test_a_loop_that_only_repeats_its_summary_ends(drive: Drive, judged: bool, outcome: str) -> None:
    ended, host, stand_in = await drive(write("a"), DONE, ends=(TOLD,) * 9, judged=judged)
    assert (ended.outcome, ended.reason) == (outcome, "NoProgress")
    assert "read line 7" in ended.message
    assert len(stand_in.log) == 4, "told twice"
    assert decisions(host)[-1] == ("terminate", "NoProgress")


@pytest.mark.rule("N2")
async def test_one_that_always_changes_something_is_put_off_so_often_and_no_more(drive: Drive) -> None:
    steps = [step for n in range(30) for step in (write("a", str(n)), DONE)]
    ended, host, _ = await drive(*steps, ends=(TOLD,) * 99, judged=True)
    assert (ended.outcome, ended.reason) == ("completed", "Completed")
    assert len(decisions(host)) == MOST


@pytest.mark.rule("N1")
async def test_open_items_of_its_own_plan_are_told(drive: Drive) -> None:
    replies = (todo(("mend", "done"), ("test it", "pending")), DONE, todo(("test it", "done")), DONE)
    outcome, host, stand_in = await drive(*replies)
    assert outcome.outcome == "completed"
    assert "Your plan still has open: test it." in last_said(stand_in, 2)
    assert decisions(host) == [("nudge", "PendingTodo")]


@pytest.mark.rule("N1")
async def test_few_words_after_much_work_are_asked_about_once(drive: Drive) -> None:
    outcome, host, stand_in = await drive(*[write("a", str(n)) for n in range(3)], DONE)
    assert (outcome.outcome, len(stand_in.log)) == ("completed", 5)
    assert decisions(host) == [("nudge", "RecentToolActivity")]


@pytest.mark.rule("N1")
@pytest.mark.parametrize("how", [{"ends": (PROVED,)}, {"nudges": False}, {"plan": True}])
async def test_nobody_is_asked_whose_work_is_proved_or_who_is_to_be_left_alone(
    drive: Drive, how: dict[str, Any]
) -> None:
    outcome, host, stand_in = await drive(*[write("a", str(n)) for n in range(3)], DONE, **how)
    assert (outcome.outcome, len(stand_in.log), decisions(host)) == ("completed", 4, [])


@pytest.mark.rule("N1", "N4")
async def test_a_plan_and_a_spent_budget_are_not_checked(drive: Drive) -> None:
    outcome, host, _ = await drive(DONE, ends=(TOLD,) * 3, plan=True)
    assert (outcome.outcome, host.checked) == ("completed", 0)


@pytest.mark.rule("B3", "N1")
async def test_the_last_end_that_the_budget_allows_is_taken_as_it_is(drive: Drive) -> None:
    limits = ResolvedLimits(max_iterations=2)
    outcome, host, _ = await drive(write("a"), DONE, ends=(TOLD,) * 3, limits=limits)
    assert (outcome.outcome, host.checked, host.iterations) == ("completed", 0, [1, 2])


@pytest.mark.rule("N6")
async def test_the_same_call_again_and_again_is_told_and_then_ended(drive: Drive) -> None:
    outcome, host, stand_in = await drive(*[bash("true")] * 30, DONE)
    assert (outcome.outcome, outcome.reason) == ("failed", "NoProgress")
    assert "`bash true` was called 10 times" in outcome.message
    assert "`bash true` was called 5 times" in last_said(stand_in, 5)
    assert decisions(host) == [("nudge", "RepeatedCall"), ("terminate", "RepeatedCall")]
    assert host.iterations == list(range(1, 11)), "its last safe point is taken"


@pytest.mark.rule("N6")
async def test_whoever_leaves_the_circle_is_not_ended(drive: Drive) -> None:
    steps = [bash("true")] * 5 + [write("a")] + [bash("true")] * 4
    outcome, host, _ = await drive(*steps, Reply(text="Mended: " + "words " * 50))
    assert outcome.outcome == "completed"
    assert decisions(host) == [("nudge", "RepeatedCall")]
