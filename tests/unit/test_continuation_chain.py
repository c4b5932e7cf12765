"""What is decided where an agent has stopped (N1, N2, N4)."""

from dataclasses import replace

import pytest

from moorage.core.continuation import chain
from moorage.core.continuation.chain import Finish, Given, Policy, Stopped, decide, with_circle, worked
from moorage.core.continuation.decisions import CompactAndRetry, Decision, Escalate, Nudge, Pass, Terminate
from moorage.core.continuation.loops import Finding

DONE = Stopped(Finish.DONE, said=500, tree="t0")
NATIVE, PROGRAM = Policy(nudges=True), Policy(nudges=False)
TODO = replace(DONE, open_todos=("write the test",))
SHORT = replace(DONE, said=10, busy=3)
OBJECTED = replace(DONE, objection="Acceptance `tests` failed")


def told(*stops: Stopped, policy: Policy = NATIVE) -> list[Decision]:
    given, decisions = Given(), []
    for at in stops:
        decision, given = decide(at, given, policy)
        decisions.append(decision)
    return decisions


def kinds(*stops: Stopped, policy: Policy = NATIVE) -> list[str]:
    return [d.kind if isinstance(d, Nudge) else type(d).__name__ for d in told(*stops, policy=policy)]


@pytest.mark.rule("N1")
@pytest.mark.parametrize(
    ("at", "decision"),
    [
        (DONE, "Pass"),
        (TODO, "PendingTodo"),
        (SHORT, "RecentToolActivity"),
        (replace(SHORT, said=200), "Pass"),
        (replace(SHORT, busy=2), "Pass"),
        (replace(SHORT, proved=True), "Pass"),
        (OBJECTED, "PreComplete"),
        (replace(OBJECTED, open_todos=("a",)), "PreComplete"),
        (replace(DONE, finish=Finish.CUT), "FinishReasonRecovery"),
        (replace(DONE, finish=Finish.CUT_CALL), "FinishReasonRecovery"),
        (replace(DONE, finish=Finish.EMPTY), "EmptyAnswer"),
        (replace(DONE, finish=Finish.NO_ROOM), "CompactAndRetry"),
        (replace(DONE, finish=Finish.DECLINED), "Escalate"),
    ],
)
def test_each_link_has_its_say(at: Stopped, decision: str) -> None:
    assert kinds(at) == [decision]


@pytest.mark.rule("N6")
@pytest.mark.parametrize("at", [TODO, SHORT])
def test_signs_alone_say_nothing_where_nobody_asked_for_them(at: Stopped) -> None:
    assert kinds(at, policy=PROGRAM) == ["Pass"]
    assert kinds(replace(at, objection="no change"), policy=PROGRAM) == ["PreComplete"]


@pytest.mark.rule("N1")
@pytest.mark.parametrize("at", [TODO, SHORT, OBJECTED])
def test_a_plan_ends_as_its_agent_says(at: Stopped) -> None:
    assert kinds(replace(at, planning=True)) == ["Pass"]
    assert kinds(replace(at, planning=True, finish=Finish.CUT)) == ["FinishReasonRecovery"]


@pytest.mark.rule("N1", "B3")
@pytest.mark.parametrize("finish", Finish)
def test_a_spent_budget_ends_it(finish: Finish) -> None:
    spent = replace(OBJECTED, open_todos=("a",), finish=finish, spent="all 3 iterations are used up")
    (decision,) = told(spent)
    if finish is Finish.DONE:
        assert decision == Pass()
    else:
        assert decision == Terminate("BudgetExhausted", "all 3 iterations are used up")


@pytest.mark.rule("N1")
def test_three_cuts_in_a_row_are_gone_on_with_and_a_turn_that_works_ends_the_row() -> None:
    cut = replace(DONE, finish=Finish.CUT)
    assert kinds(*[cut] * 4) == ["FinishReasonRecovery"] * 3 + ["Terminate"]
    given = Given()
    for _ in range(3):
        _, given = decide(cut, given, NATIVE)
    assert isinstance(decide(cut, worked(given), NATIVE)[0], Nudge)


def test_empty_answers_and_a_full_context_have_their_ends() -> None:
    empty, full = replace(DONE, finish=Finish.EMPTY), replace(DONE, finish=Finish.NO_ROOM)
    assert told(*[empty] * 3)[-1] == Terminate("EmptyAnswer", "3 answers in a row were empty")
    assert told(*[full] * 3)[:2] == [CompactAndRetry()] * 2
    assert isinstance(told(*[full] * 3)[-1], Escalate)


@pytest.mark.rule("N2")
@pytest.mark.parametrize(("at", "kind"), [(TODO, "PendingTodo"), (OBJECTED, "PreComplete")])
@pytest.mark.parametrize("judged", [True, False])
def test_a_nudge_that_brings_nothing_new_is_not_repeated_more_than_twice(at: Stopped, kind: str, judged: bool) -> None:
    *nudges, last = told(at, at, at, policy=Policy(judged=judged))
    assert [n.kind for n in nudges if isinstance(n, Nudge)] == [kind] * 2
    assert isinstance(last, Terminate)
    assert (last.reason, last.judged) == (chain.NO_PROGRESS, judged)


@pytest.mark.rule("N2")
def test_a_tree_that_was_there_before_is_nothing_new() -> None:
    there_and_back = [replace(OBJECTED, tree=tree) for tree in ("a", "b", "a", "b", "a")]
    assert kinds(*there_and_back) == ["PreComplete"] * 3 + ["Terminate"] * 2
    new = [replace(OBJECTED, tree=f"t{n}") for n in range(9)]
    assert kinds(*new) == ["PreComplete"] * chain.MOST + ["Pass"]


@pytest.mark.rule("N6")
def test_a_circle_is_told_beside_a_nudge_and_is_the_last_word_the_second_time() -> None:
    nudge = Nudge("PreComplete", "Acceptance failed.")
    first, second = (Finding("FailingSet", "nothing shrank", last=last) for last in (False, True))
    assert with_circle(nudge, None, NATIVE) == nudge
    assert with_circle(nudge, first, NATIVE) == Nudge("PreComplete", "Acceptance failed.\n\nnothing shrank")
    for judged in (True, False):
        ended = with_circle(nudge, second, Policy(judged=judged))
        assert ended == Terminate(chain.NO_PROGRESS, "nothing shrank", judged=judged)
    assert with_circle(Pass(), second, NATIVE) == Pass(), "an end that is taken needs no facts"
