"""T6: a person's word on a call that a program decides on anew: found where it comes to it, and used once."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import T, World
from tests.unit.test_run_approvals import answer, asked, at_work
from tests.unit.test_run_approvals_attempts import next_attempt

from moorage.api.approvals import Approval
from moorage.api.wire import ResolvedAgent, ResolvedModel
from moorage.core.approvals.consent import KEPT_CALLS, KEPT_UNUSED, TIMEOUT, about, asked_in, identity
from moorage.core.approvals.resolving import unenforceable
from moorage.core.run.phases import RunPhase
from moorage.gateway.answered import answered
from moorage.runner.numbers import Numbers


def call(world: World, key: str = "tool:1.0", number: int = 0, **more: Any) -> None:
    asked(world, key, call=f"c:{number}", **more)


def safe_point(world: World, iteration: int) -> None:
    world.note(T.ITERATION_COMPLETE, {"iteration": iteration})


def open_calls(world: World) -> list[tuple[str, str, int]]:
    """Those whose word is still good, with the attempt that came to them last."""
    return [(each.call, each.status, each.epoch) for each in world.state.consents if each.call]


@pytest.mark.rule("T6")
@pytest.mark.parametrize("outcome", ["approved", "rejected"])
def test_an_answer_waits_for_the_attempt_that_comes_to_its_call_and_is_used_up_there(outcome: str) -> None:
    world = at_work()
    call(world)
    answer(world, outcome)
    next_attempt(world)
    safe_point(world, 2)  # it has looked at the files first
    assert open_calls(world) == [("c:0", outcome, 1)]
    assert asked_in(world.state.consents, "tool:1.0", 2) is None, "this attempt has to say that it came to it"
    call(world)
    assert open_calls(world) == [("c:0", outcome, 2)]
    assert (world.state.phase, world.state.usage.human_approvals) == (RunPhase.RUNNING, 1), "nobody is asked"
    assert about(world.state.consents, "c:0") is not None
    safe_point(world, 3)
    assert open_calls(world) == []
    assert about(world.state.consents, "c:0") is None, "the same call is another question from here"


@pytest.mark.rule("T6")
def test_an_answer_is_used_up_where_its_own_attempt_goes_on() -> None:
    world = at_work()
    call(world)
    answer(world, "approved")
    safe_point(world, 1)
    assert open_calls(world) == []
    assert [each.status for each in world.state.consents] == ["approved"]


@pytest.mark.rule("T6")
def test_a_lost_attempt_uses_nothing_up() -> None:
    world = at_work()
    call(world)
    answer(world, "approved")
    for epoch in (2, 3):
        next_attempt(world)
        call(world)
        assert open_calls(world) == [("c:0", "approved", epoch)]


@pytest.mark.rule("T6")
def test_an_answer_that_is_not_used_is_not_forgotten_for_others_that_are() -> None:
    world = at_work()
    call(world)
    answer(world, "approved")
    next_attempt(world)
    for n in range(KEPT_CALLS + 1):
        call(world, f"tool:{n + 2}.0", n + 1)
        answer(world, "approved", f"tool:{n + 2}.0")
        safe_point(world, n + 2)
    assert open_calls(world) == [("c:0", "approved", 1)]
    assert len(world.state.consents) == KEPT_CALLS + 1


@pytest.mark.rule("T6")
@pytest.mark.parametrize("number", [KEPT_CALLS, KEPT_UNUSED])
def test_an_answer_is_there_once_it_is_given_however_many_were_given_since_it_was_asked(number: int) -> None:
    world = at_work()
    call(world)
    for n in range(1, number + 1):
        call(world, f"tool:1.{n}", n)
        answer(world, "approved", f"tool:1.{n}")
    answer(world, "approved", "tool:1.0")
    assert ("c:0", "approved", 1) in open_calls(world)
    assert len(open_calls(world)) == min(number + 1, KEPT_UNUSED)


@pytest.mark.rule("T6")
def test_a_call_that_its_agent_has_given_up_is_withdrawn_at_the_safe_point() -> None:
    world = at_work()
    call(world)
    call(world, "tool:1.1", 1)
    answer(world, "approved", "tool:1.1")
    assert world.state.phase is RunPhase.AWAITING_APPROVAL
    safe_point(world, 1)
    assert [each.key for each in world.state.consents] == ["tool:1.1"]
    assert world.state.phase is RunPhase.RUNNING


def test_calls_alike_are_told_apart_by_their_number_since_the_last_safe_point() -> None:
    numbers = Numbers()
    with numbers.asking("c") as first, numbers.asking("c") as second, numbers.asking("d") as other:
        assert (first, second, other) == ("c:0", "c:1", "d:0")
    with numbers.asking("c") as third:
        assert third == "c:2", "an answered one was asked for all the same"
        numbers.made()
        with numbers.asking("c") as next_one:
            assert next_one == "c:0"
        with numbers.asking("c") as beside:
            assert beside == "c:1", "whoever waits over a safe point keeps its number"
    numbers.made()
    with numbers.asking("c") as anew:
        assert anew == "c:0"


def test_one_call_is_no_other() -> None:
    named = identity("bash", {"command": "make", "cwd": "/tree"})
    assert named == identity("bash", {"cwd": "/tree", "command": "make"})
    others = [("bash", {"command": "make"}), ("sh", {"command": "make", "cwd": "/tree"}), ("bash", {})]
    assert len({named, *(identity(tool, arguments) for tool, arguments in others)}) == 4
    assert len(named) == 64


@pytest.mark.parametrize(
    ("driver", "able"),
    [("acp", True), ("builtin", True), ("claude-code", True), ("codex", False), ("command", False), ("pi", False)],
)
def test_who_holds_up_no_call_is_refused_by_name(driver: str, able: bool) -> None:
    model = ResolvedModel(provider="p", protocol="anthropic", base_url="http://p", name="m")
    why = unenforceable(
        [Approval.model_validate({"name": "shell", "before": "ToolCall"})], ResolvedAgent(driver=driver, model=model)
    )
    assert (why is None) is able
    assert (
        why is None or f"the driver {driver} holds up no tool call for an answer; acp, builtin, claude-code do" in why
    )


@pytest.mark.rule("T6", "R4")
def test_whoever_decides_anew_hears_what_was_said_of_its_call() -> None:
    world = at_work()
    call(world)
    call(world, "tool:1.1", 1, subject="the tool write is to run")
    answer(world, "approved", "tool:1.0")
    answer(world, "rejected", "tool:1.1")
    told = [answered(each) for each in world.state.consents]
    assert told == [
        "ada was asked whether the tool bash is to run, and allows that very call once. Make it again as it was.",
        "ada was asked whether the tool write is to run, and refused it. Find another way.",
    ]
    late = replace(world.state.consents[-1], by=TIMEOUT)
    assert (
        answered(late) == "nobody said in time whether the tool write is to run, so it was refused. Find another way."
    )
