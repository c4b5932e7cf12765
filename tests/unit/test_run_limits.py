"""B3: what is spent of a run's limits, and what to do about it."""

from dataclasses import replace

import pytest
from tests.property.run_world import T, a_spec
from tests.run_plans import records, running

from moorage.api.budget import ResolvedConstraint, ResolvedLimits
from moorage.core.approvals.consent import Consent
from moorage.core.constraints.context import lived_ms
from moorage.core.constraints.limits import DIMENSIONS
from moorage.core.run.conditions import conditions
from moorage.core.run.limits import NUMBERS, WRITTEN, how_to_raise, in_force, ineffective, raises, spent, widens
from moorage.core.run.observed import SandboxPhase
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Raise, RunState, Usage, Violation

STATE = RunState(
    usage=Usage(input_tokens=7, cost_micros=70, tool_calls=3, effects=2, egress_bytes=5, human_approvals=2),
    disk_bytes=9,
    consents=(
        Consent("a", "shell", "ToolCall", "s", "pending", 0),
        Consent("b", "shell", "ToolCall", "s", "approved", 0),
    ),
)


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
        ("humanApprovals", ResolvedLimits(human_approvals_hard=3)),
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


def test_each_number_has_its_words() -> None:
    assert set(NUMBERS) == set(WRITTEN)


@pytest.mark.rule("B3")
def test_a_limit_that_comes_too_late_to_count_is_told_and_one_that_counts_isnt() -> None:
    world = running(limits=ResolvedLimits(cost_hard_micros=70, disk_soft_bytes=9, effects_hard=2))
    world.wanted = ResolvedLimits(cost_hard_micros=90, disk_soft_bytes=8, effects_hard=2, tokens_hard=5)
    assert records(world.plan()) == [("LIMITS_RAISED", "")]
    world.step()
    o = world.observed()
    assert o.spec
    assert ineffective(o.spec.limits, o.wanted) == ("constraints.disk.soft", "constraints.tokens.hard")
    (within,) = (c for c in conditions(o, world.plan(), "Running", ()) if c.type == "WithinBudget")
    assert (within.status, within.reason) == ("True", "WithinLimits")
    assert within.message.startswith("without effect: constraints.disk.soft, constraints.tokens.hard: ")
    world.wanted = None
    (within,) = (c for c in conditions(world.observed(), world.plan(), "Running", ()) if c.type == "WithinBudget")
    assert within.message == ""


def test_a_paused_run_says_why_and_that_what_was_added_lets_it_not_go_on() -> None:
    world = running(limits=ResolvedLimits(max_iterations=0))
    world.note(T.PAUSE_REQUESTED, {"reason": "BudgetExhausted", "by": "limits", "limit": "max_iterations"})
    world.note(T.PAUSED, {})
    world.wanted = ResolvedLimits(tokens_hard=5)
    (within,) = (c for c in conditions(world.observed(), world.plan(), "Paused", ()) if c.type == "WithinBudget")
    assert (within.status, within.reason) == ("False", "IterationsExhausted")
    assert "limit of 0" in within.message
    assert "; without effect: constraints.tokens.hard: " in within.message


@pytest.mark.rule("C2", "F5")
def test_time_runs_out_during_a_tool_call_too_and_isnt_given_back() -> None:
    """Elapsed time that only counts between the steps, or anew after a resume, is a public failure of a neighbour."""
    world = running(limits=ResolvedLimits(wall_clock_ms=50_000))
    world.report("asked", T.TOOL_REQUEST, {"tool": "bash"})
    world.now = (world.state.admitted_at or 0) + 50_000
    assert records(world.plan()) == [("PAUSE_REQUESTED", "BudgetExhausted")]
    world.step()
    assert world.state.pause is not None
    assert world.state.pause.kill, "nobody waits for the call's end"
    for _ in range(6):
        world.step()
    assert world.state.phase is RunPhase.PAUSED
    assert "RESUMED" not in dict(records(world.plan()))
    world.wanted = world.spec.limits.model_copy(update={"wall_clock_ms": 60_000})
    for _ in range(4):
        world.step()
    assert world.state.phase is not RunPhase.PAUSED
    assert lived_ms(world.state, world.now) >= 50_000, "what was lived stays so"


@pytest.mark.rule("C3", "B3")
def test_a_refused_effect_holds_the_run_until_its_limit_is_raised() -> None:
    world = running(limits=ResolvedLimits(effects_hard=0))
    said = {"constraint": "effects", "holds": False, "action": "GRACEFUL_EXIT", "reason": "EffectsExhausted"}
    world.report("judged", T.CONSTRAINT_EVALUATED, {"validations": [said | {"message": "no more"}]})
    ask = {"reason": "BudgetExhausted", "by": "limits", "message": "no more", "limit": "effects_hard"}
    world.report("ask", T.PAUSE_REQUESTED, ask)
    world.report("end", T.AGENT_FINISHED, {"outcome": "paused", "reason": "Paused"})
    view = world.sandbox("runner")
    assert view
    world.set_pod(view, phase=SandboxPhase.ENDED)
    for _ in range(6):
        world.step()
    plan = world.plan()
    assert (world.state.phase, plan.reason) == (RunPhase.PAUSED, "BudgetExhausted")
    assert '{"spec": {"constraints": {"effects": {"hard": 2}}}}' in plan.message
    world.wanted = world.spec.limits.model_copy(update={"effects_hard": 2})
    world.step()
    assert [kind for kind, _ in records(world.plan())] in [["RESUMED"], ["LIMITS_RAISED", "RESUMED"], []]
    for _ in range(4):
        world.step()
    assert world.state.phase is not RunPhase.PAUSED
