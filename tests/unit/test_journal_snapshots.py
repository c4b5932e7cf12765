"""When a snapshot is due, and what can't be read back as a state."""

from dataclasses import dataclass

import pytest

from moorage.core.journal.plain import NotPlain, plain, restored
from moorage.core.journal.snapshots import Grown, Limits, due
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect, RunState

LIMITS = Limits(records=100, size=1000)
TURN, HANDOFF, OTHER = {"ITERATION_COMPLETE"}, {"EPOCH_RAISED"}, {"TOOL_RESPONSE"}


@pytest.mark.rule("P1")
@pytest.mark.parametrize(
    ("grown", "kinds", "wanted"),
    [
        (Grown(100, 0), TURN, True),
        (Grown(99, 999), TURN, False),
        (Grown(1, 1000), TURN, True),
        (Grown(100, 1000), OTHER, False),
        (Grown(200, 0), OTHER, True),
        (Grown(1, 2000), OTHER, True),
        (Grown(7, 0), HANDOFF, True),
        (Grown(6, 62), HANDOFF, False),
        (Grown(1, 63), HANDOFF, True),
        (Grown(200, 0), set(), True),
        (Grown(), set(), False),
    ],
)
def test_it_is_taken_by_records_or_bytes_at_the_end_of_a_turn_and_before_a_handoff(grown, kinds, wanted):
    assert due(grown, kinds, LIMITS) is wanted


@dataclass(frozen=True)
class Pair:
    names: tuple[str, int]
    more: tuple[str, ...] = ()


def test_states_of_all_kinds_come_back():
    state = RunState(
        phase=RunPhase.RUNNING, effects=(Effect("e", "git_push", "k", "t", "unknown"),), verifier_key=("a", "b")
    )
    assert restored(RunState, plain(state)) == state
    assert type(restored(RunState, plain(state)).phase) is RunPhase
    assert restored(Pair, plain(Pair(("x", 1), ("y", "z")))) == Pair(("x", 1), ("y", "z"))


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        (None, "RunState"),
        ({"phase": "Elsewhere"}, "RunState.phase"),
        ({"offset": "1"}, "RunState.offset"),
        ({"offset": True}, "RunState.offset"),
        ({"of_a_newer_version": 1}, "RunState"),
        ({"effects": [{"effect_id": "e"}]}, "RunState.effects[0]"),
        ({"effects": {}}, "RunState.effects"),
        ({"verifier_key": ["only one"]}, "RunState.verifier_key"),
        ({"usage": None}, "RunState.usage"),
    ],
)
def test_what_is_no_state_of_this_version_is_refused_by_its_place(raw, where):
    with pytest.raises(NotPlain) as caught:
        restored(RunState, raw)
    assert str(caught.value).startswith(where)


def test_a_field_at_its_default_is_left_out_and_comes_back():
    assert plain(RunState()) == {}
    assert plain(RunState(offset=3)) == {"offset": 3}
    assert restored(RunState, {}) == RunState()
