"""X2, B3, O2: how a child ends: with its parent, with its share, and when it may go."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import BASE, T, World, a_spec
from tests.run_plans import kinds, observed, proposed, records, running
from tests.unit.test_run_children import RESERVE, child_ends, exhausted, with_child

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import (
    ResolvedParent,
    ResolvedRetention,
)
from moorage.core.run import actions as a
from moorage.core.run.ending import OWED_MS, STOP_POLL_MS
from moorage.core.run.phases import RunPhase
from moorage.core.run.plan import decide
from moorage.core.run.state import Pause, PauseStage

PARENT = ResolvedParent(uid="u-0", name="elder", commit=BASE)


@pytest.mark.rule("X2")
def test_a_child_is_cancelled_with_its_parent() -> None:
    world = running(parent=PARENT)
    assert records(decide(observed(world, orphaned=True), world.now)) == [("CANCEL_REQUESTED", "ParentEnded")]
    waiting = World(spec=a_spec(parent=PARENT))
    plan = decide(observed(waiting, orphaned=True), waiting.now)
    assert plan.verdict is not None
    assert (plan.verdict.phase, plan.verdict.reason) == (RunPhase.CANCELLED, "ParentEnded")


@pytest.mark.rule("B3")
def test_a_child_whose_share_is_used_up_has_ended() -> None:
    world = running(parent=PARENT)
    pause = Pause("BudgetExhausted", "limits", "no tokens are left", world.now, PauseStage.PAUSED, "tokens_hard")
    state = replace(world.state, phase=RunPhase.PAUSED, pause=pause)
    assert records(decide(observed(world, journal=state), world.now)) == [("RUN_FAILED", "BudgetExhausted")]
    alone = observed(world, journal=state, spec=a_spec())
    assert ("RUN_FAILED", "BudgetExhausted") not in records(decide(alone, world.now))


@pytest.mark.rule("B3", "C3")
def test_a_child_that_gave_its_share_away_waits_for_its_own_children() -> None:
    world = exhausted(with_child(running(parent=PARENT, limits=ResolvedLimits(tokens_hard=500))))
    assert records(world.plan()) == []
    assert world.plan().reason == "BudgetExhausted"
    child_ends(world)
    assert "RESUMED" in [kind for kind, _ in records(world.plan())]
    world = exhausted(with_child(running(parent=PARENT, limits=ResolvedLimits(tokens_hard=500))))
    payload = {"uid": "u-9", "name": "run-u-9", "outcome": "Failed", "used": RESERVE, "commit": None}
    world.report("over u-9", T.CHILD_ENDED, payload)
    assert records(world.plan()) == [("RUN_FAILED", "BudgetExhausted")]


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("pause", "fails", "why"),
    [
        ({"limit": "wall_clock_ms"}, True, "a child's limits aren't raised"),
        ({"by": "driver", "limit": None}, True, "its share of the budget"),
        ({"by": "approvals", "limit": None}, False, ""),
    ],
)
def test_a_child_ends_only_where_nothing_could_make_it_go_on(pause: dict[str, Any], fails: bool, why: str) -> None:
    world = exhausted(running(parent=PARENT), **pause)
    ends = [each for each in world.plan().actions if isinstance(each, a.Report) and each.type == "RUN_FAILED"]
    assert [each.payload["message"].startswith(why) for each in ends] == ([True] if fails else [])


@pytest.mark.rule("B2", "W7")
def test_an_ended_child_is_kept_until_its_parent_has_settled_it_or_for_a_while() -> None:
    world = running(parent=PARENT, retention=ResolvedRetention(ttl_ms=0))
    world.report("end", T.RUN_FAILED, {"reason": "AgentFailed", "message": "", "commit": None})
    runner = world.sandbox("runner")
    assert runner
    del world.pods[runner.name]
    assert "ReleaseRun" in kinds(decide(observed(world), world.now))
    for gone in (False, True):
        held = decide(observed(world, owed=True, gone=gone), world.now)
        assert "ReleaseRun" not in kinds(held)
        assert held.requeue_ms == STOP_POLL_MS
    assert "ReleaseRun" in kinds(decide(observed(world, owed=True), world.now + OWED_MS))


def test_a_parent_that_has_proposed_before_its_child_ends_is_judged_after_it() -> None:
    world = with_child(proposed())
    assert world.plan().reason == "ChildrenRunning"
