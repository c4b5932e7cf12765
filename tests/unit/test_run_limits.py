"""B3: what is spent of a run's limits, and what to do about it."""

from dataclasses import replace

import pytest
from tests.property.run_world import a_spec

from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.core.constraints.limits import DIMENSIONS
from moorage.core.run.limits import how_to_raise, in_force, raises, spent, widens
from moorage.core.run.state import Raise, RunState, Usage, Violation

STATE = RunState(usage=Usage(input_tokens=7, cost_micros=70, tool_calls=3, effects=2, egress_bytes=5), disk_bytes=9)


def refused(name: str) -> RunState:
    return replace(STATE, violations=(Violation(name, "GRACEFUL_EXIT", "Any", "any", 0),))


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (ResolvedLimits(tokens_hard=7), "tokens_hard"),
        (ResolvedLimits(tokens_hard=8, cost_hard_micros=70), "cost_hard_micros"),
        (ResolvedLimits(tokens_hard=0), "tokens_hard"),
        (ResolvedLimits(max_iterations=2), "max_iterations"),
        (ResolvedLimits(wall_clock_ms=1_000), "wall_clock_ms"),
        (ResolvedLimits(disk_hard_bytes=8), "disk_hard_bytes"),
    ],
)
def test_what_leaves_nothing_for_another_decision_is_spent(limits: ResolvedLimits, limit: str) -> None:
    found = spent(limits, STATE, iterations=2, lived_ms=1_000)
    assert found is not None
    assert found.limit == limit


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("toolCalls", ResolvedLimits(tool_calls_hard=3)),
        ("effects", ResolvedLimits(effects_hard=2)),
        ("egress", ResolvedLimits(egress_hard_bytes=5)),
    ],
)
def test_what_was_used_up_counts_once_more_was_asked_for(name: str, limits: ResolvedLimits) -> None:
    assert spent(limits, STATE) is None
    found = spent(limits, refused(name))
    assert found is not None
    assert getattr(limits, found.limit) is not None
    higher = in_force(limits, [Raise(found.limit, getattr(limits, found.limit) + 1, 1)])
    assert spent(higher, refused(name)) is None


@pytest.mark.parametrize("limit", sorted(each.limit for each in DIMENSIONS.values()))
def test_each_limit_has_words_for_raising_it(limit: str) -> None:
    spec = a_spec(limits=ResolvedLimits(**{limit: 2_000}))
    assert 'kubectl patch ar fix -n team-a --type=merge -p \'{"spec": {"constraints": {' in how_to_raise(spec, limit)


def test_what_isnt_a_number_isnt_raised() -> None:
    mine = ResolvedLimits(tokens_hard=5, custom=(ResolvedConstraint(name="a", cel="tokens < 5"),))
    other = ResolvedLimits(tokens_hard=6)
    assert raises(mine, other) == {"tokens_hard": 6}
    assert not widens(mine, other), "it is another run"
    assert widens(mine, mine.model_copy(update={"tokens_hard": 6}))
