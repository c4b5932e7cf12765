"""S1: there is one reducer. Replaying in place comes to the states, and the refusals, that it comes to step by step."""

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.property.run_world import BASE, HEAD, record

from moorage.core.journal.record import Record, RecordType
from moorage.core.run.phases import IllegalMove
from moorage.core.run.reducer import HANDLERS, Replay, reduce, replay
from moorage.core.run.state import RunState, changed, settled, working

small = st.integers(0, 3)
words = st.sampled_from(["p1", "p2"])
SHARES = st.fixed_dictionaries({}, optional={"tokens": small, "cost_micros": small})
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "spec_hash": words,
    "epoch": small,
    "attempt": small,
    "pod_uid": words,
    "pod_name": words,
    "role": st.sampled_from(["runner", "verifier"]),
    "node": st.none() | words,
    "base": st.just(BASE),
    "branch": words,
    "commit": st.sampled_from([BASE, HEAD]),
    "tree": st.just("t"),
    "iteration": small,
    "usage": st.fixed_dictionaries({}, optional={"input_tokens": small, "cost_micros": small, "tokens": small}),
    "replayed": st.booleans(),
    "outcome": st.sampled_from(["completed", "failed", "confirmed", "unknown", "approved", "rejected"]),
    "name": words,
    "before": st.sampled_from(["Delivery", "ToolCall", "Egress"]),
    "validations": st.lists(
        st.fixed_dictionaries(
            {
                "constraint": words,
                "holds": st.booleans(),
                "action": st.sampled_from(["ALLOW", "WARN_CONTINUE"]),
                "reason": words,
                "message": words,
            }
        ),
        max_size=2,
    ),
    "reason": words | st.just("AcceptanceFailed"),
    "failing": st.lists(words, max_size=3),
    "command_id": words,
    "type": st.sampled_from(["Steer", "Cancel", "Checkpoint"]),
    "digest": words,
    "empty": st.booleans(),
    "files": small,
    "key_sha256": words,
    "environment": words,
    "passed": st.booleans(),
    "isolated": st.booleans(),
    "effect_id": words,
    "kind": st.sampled_from(["git_push", "http"]),
    "key": words,
    "target": words,
    "generation": small,
    "why": words,
    "by": words,
    "kill": st.booleans(),
    "limits": st.fixed_dictionaries({}, optional={"tokens_hard": small, "max_iterations": small}),
    "status": st.sampled_from(["RUNNING", "PAUSED", "COMPLETED"]),
    "uid": words,
    "reserve": SHARES,
    "used": SHARES,
    "account": SHARES,
    "effects": st.lists(
        st.fixed_dictionaries({"effect_id": words, "kind": words, "key": words, "target": words}), max_size=2
    ),
}
USUAL = ["RUN_ADMITTED", "EPOCH_RAISED", "AGENT_STARTED", "AGENT_FINISHED", "RESULT_PROPOSED", "EFFECT_INTENT"]
USUAL += ["PAUSE_REQUESTED", "PAUSED", "RESUMED"]
kinds = st.sampled_from(USUAL) | st.sampled_from([*HANDLERS, RecordType.AGENT_OUTPUT, RecordType.TOMBSTONE])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Record], list[tuple[int, Record]], list[RunState]]:
    """Records that follow from each other, those refused between them, and the state after each, by `reduce` alone."""
    taken: list[Record] = []
    refused: list[tuple[int, Record]] = []
    states = [RunState()]
    for kind in draw(st.lists(kinds, max_size=40)):
        tried = record(len(taken), str(kind), draw(st.fixed_dictionaries(FIELDS)), epoch=draw(small), at=draw(small))
        try:
            states.append(reduce(states[-1], tried))
        except IllegalMove:
            refused.append((len(taken), tried))
        else:
            taken.append(tried)
    return taken, refused, states


@pytest.mark.rule("S1")
@given(histories(), st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_replay_is_reduce_from_record_to_record(
    history: tuple[list[Record], list[tuple[int, Record]], list[RunState]], at: int
) -> None:
    taken, _, states = history
    event(f"ends {states[-1].phase}")
    at = min(at, len(taken))
    start = states[at]
    before = changed(start)
    assert [replay(taken[:n]) for n in range(len(states))] == states
    assert replay(taken[at:], start) == states[-1]
    assert start == before, "a replay altered the state that it was given"
    assert type(replay(taken).usage) is type(start.usage)


@pytest.mark.rule("S1")
@given(histories())
@settings(max_examples=150, deadline=None)
def test_replay_refuses_what_reduce_refuses(
    history: tuple[list[Record], list[tuple[int, Record]], list[RunState]],
) -> None:
    taken, refused, states = history
    for at, tried in refused:
        with pytest.raises(IllegalMove) as step_by_step:
            reduce(states[at], tried)
        replayed = Replay(states[at])
        with pytest.raises(IllegalMove) as in_place:
            replayed.feed(tried)
        assert str(in_place.value) == str(step_by_step.value)
    assert replay(taken) == states[-1]


@pytest.mark.rule("S1", "B1")
@pytest.mark.parametrize(
    ("said", "counted"),
    [({"usage": {"human_approvals": 1}}, 1), ({}, 1), ({"by": "timeout"}, 0), ({"key": "other"}, 0)],
)
def test_a_persons_word_is_counted_once_however_it_is_replayed(said: dict[str, Any], counted: int) -> None:
    question = {"key": "host:h", "name": "shop", "before": "Egress"}
    answer = {"key": "host:h", "outcome": "approved", "by": "ada"} | said
    told = [record(0, "APPROVAL_REQUESTED", question), record(1, "APPROVAL_DECIDED", answer)]
    state = reduce(reduce(RunState(), told[0]), told[1])
    assert state.usage.human_approvals == counted
    assert replay(told) == state


def test_a_state_has_the_fields_that_it_has_however_it_is_changed() -> None:
    for state in (RunState(), working(RunState())):
        with pytest.raises(AttributeError, match="no field later, more"):
            changed(state, offset=1, later=1, more=2)
    held = working(RunState())
    given = settled(held)
    vars(held).update(strikes=3)
    held.usage.plus("tool_calls", 3)
    assert (given.strikes, given.usage.tool_calls) == (0, 0)
    assert (settled(held).strikes, settled(held).usage.tool_calls) == (3, 3)
    vars(held).update(later=1)
    with pytest.raises(AttributeError, match="no field later"):
        settled(held)
