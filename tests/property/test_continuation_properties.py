"""N2: there is no loop of nudges, whatever an agent does; and the loop detector remembers little and ends."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.core.continuation.chain import FRUITLESS, IDLE, MOST, Finish, Given, Policy, Stopped, decide, worked
from moorage.core.continuation.decisions import CompactAndRetry, Nudge, Terminate
from moorage.core.continuation.loops import (
    KEPT_CALLS,
    Called,
    Event,
    Finding,
    Stood,
    Thresholds,
    Verified,
    Watched,
    watch,
)

TREES = st.sampled_from(["", "a", "b", "c"])
STOPS = st.builds(
    Stopped,
    finish=st.sampled_from(Finish),
    said=st.integers(0, 400),
    busy=st.integers(0, 5),
    tree=TREES,
    open_todos=st.sampled_from([(), ("one",), ("one", "two")]),
    planning=st.booleans(),
    spent=st.sampled_from([None, None, None, "used up"]),
    objection=st.sampled_from([None, "it fails"]),
    proved=st.booleans(),
)
POLICIES = st.builds(Policy, nudges=st.booleans(), judged=st.booleans())
MOVES = st.lists(st.one_of(st.none(), STOPS), max_size=200)
"""None: a turn that calls tools."""


def extra_turns(moves: list[Stopped | None], policy: Policy) -> tuple[list[Stopped], bool]:
    """The stops that were answered by another turn, and whether something else than that came."""
    memory, answered = Given(), []
    for at in moves:
        if at is None:
            memory = worked(memory)
            continue
        decision, memory = decide(at, memory, policy)
        if not isinstance(decision, Nudge | CompactAndRetry):
            return answered, True
        answered.append(at)
    return answered, False


@pytest.mark.rule("N1", "N2")
@settings(max_examples=300)
@given(MOVES, POLICIES)
def test_the_extra_turns_of_an_attempt_are_bounded_by_what_is_new_in_its_tree(moves, policy) -> None:
    answered, _ = extra_turns(moves, policy)
    new = len({at.tree for at in moves if at is not None and at.tree})
    assert len(answered) <= FRUITLESS * (1 + new)
    assert sum(at.finish is Finish.DONE for at in answered) <= MOST


@pytest.mark.rule("N2")
@given(STOPS, POLICIES)
def test_the_same_end_said_again_and_again_is_an_end_soon(at, policy) -> None:
    answered, ended = extra_turns([at] * 30, policy)
    assert ended
    assert len(answered) <= max(IDLE, 3)


@pytest.mark.rule("N1")
@given(MOVES, POLICIES)
def test_neither_a_plan_nor_a_spent_budget_is_put_off(moves, policy) -> None:
    for changes in ({"planning": True, "finish": Finish.DONE}, {"spent": "used up"}):
        stops = [replace(at, **changes) for at in moves if at is not None]
        assert extra_turns(stops, policy)[0] == []


@given(MOVES, POLICIES)
def test_what_acceptance_judges_is_never_lost_by_an_end_for_want_of_progress(moves, policy) -> None:
    memory = Given()
    for at in (at for at in moves if at is not None):
        decision, memory = decide(at, memory, policy)
        if isinstance(decision, Terminate) and decision.reason == "NoProgress":
            assert decision.judged is policy.judged


EVENTS = st.lists(
    st.one_of(
        st.builds(
            Called, tool=st.sampled_from(["bash", "read"]), digest=st.text(max_size=2), shown=st.text(max_size=9)
        ),
        st.builds(Verified, failing=st.frozensets(st.sampled_from(["a", "b", "c"]))),
        st.builds(Stood, tree=st.sampled_from(["x", "y", "z"]), used=st.integers(0, 100)),
    ),
    max_size=300,
)


def found(events: list[Event], at: Thresholds) -> tuple[Watched, list[Finding]]:
    seen, findings = Watched(), []
    for event in events:
        seen, finding = watch(seen, event, at)
        findings += [finding] if finding else []
    return seen, findings


@pytest.mark.rule("N6")
@given(EVENTS)
def test_facts_come_before_the_end_and_little_is_remembered(events) -> None:
    seen, findings = found(events, Thresholds())
    first: set[str] = set()
    for finding in findings:
        assert finding.facts
        assert not finding.last or finding.kind in first
        first.add(finding.kind)
    assert len(seen.calls) <= KEPT_CALLS


@pytest.mark.rule("N6")
@given(st.integers(2, 9))
def test_whoever_only_repeats_a_call_is_told_and_then_ended(k) -> None:
    at = Thresholds(calls=k)
    _, findings = found([Called("bash", "d", "bash make")] * (2 * k), at)
    assert [(f.kind, f.last) for f in findings] == [("RepeatedCall", False), ("RepeatedCall", True)]
    _, alternating = found([Called("bash", d, "bash") for d in "xy" * (2 * k)], at)
    assert any(f.last for f in alternating)


@pytest.mark.rule("N6")
@given(st.integers(2, 9), st.integers(1, 60))
def test_whoever_changes_something_is_never_told_of_its_calls(k, turns) -> None:
    events: list[Event] = []
    for turn in range(turns):
        events += [Called("bash", "d", "bash make")] * (k - 1) + [Stood(f"t{turn}", 0)]
    assert found(events, Thresholds(calls=k))[1] == []
