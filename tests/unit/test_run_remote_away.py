"""How long a run waits for a remote that is away: at its start, and at its delivery."""

from dataclasses import replace

import pytest
from tests.property.run_world import HEAD, START, T, World
from tests.unit.test_run_effects import at_delivery, intent, told, until_end

from moorage.api.wire import ResolvedTimeouts
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Deferral
from moorage.core.run.waiting import SHORTEST_WAIT_MS, due, next_try

MINUTE = 60_000

# --- a remote that is away at delivery --------------------------------------------------------------------------------


def test_nothing_is_meant_before_the_remote_could_be_asked() -> None:
    world = at_delivery()
    world.remote.away = True
    world.step()
    assert (world.state.phase, world.state.effects) == (RunPhase.DELIVERING, ())
    assert world.state.deferral == Deferral("GitUnreachable", "no answer", 1, START, START)


def test_a_run_that_waits_for_its_remote_says_why_and_until_when() -> None:
    world = at_delivery()
    world.remote.away = True
    world.step()
    status = told(world)
    delivered = next(c for c in status.conditions if c.type == "Delivered")
    assert (status.phase, status.reason) == ("Delivering", "GitUnreachable")
    assert (delivered.status, delivered.reason) == ("False", "GitUnreachable")
    assert delivered.message == status.message
    for part in ("no answer", "tried 1 times", "next try at 2027-01-15T08:00:0", "given up at 2027-01-15T08:30:00Z"):
        assert part in (status.message or "")


def test_tries_grow_apart_and_end_after_their_time_with_the_work_kept() -> None:
    world = at_delivery()
    world.remote.away = True
    until_end(world)
    end, waited = world.state.end, world.state.deferral
    assert end
    assert waited
    assert (world.state.phase, end.reason, end.commit) == (RunPhase.FAILED, "GitUnreachable", HEAD)
    assert 30 * MINUTE <= world.now - START < 31 * MINUTE
    assert 8 <= waited.tries <= 40
    assert len(world.gateway.history) < 60
    for part in (HEAD, "within 1800 s", "no answer", "kubectl moorage diff", "timeouts.delivery"):
        assert part in end.message
    assert world.state.effects == ()


@pytest.mark.parametrize("after", [1, 5, 20])
def test_a_remote_that_comes_back_in_time_gets_the_push(after: int) -> None:
    world = at_delivery()
    world.remote.away = True
    while world.now - START < after * MINUTE:
        world.step()
    world.remote.away = False
    until_end(world)
    assert (world.state.phase, world.remote.pushes, world.state.deferral) == (RunPhase.SUCCEEDED, 1, None)


@pytest.mark.rule("E4")
def test_a_push_that_stays_unknown_is_called_neither_success_nor_failure_of_the_push() -> None:
    world = at_delivery()
    world.remote.mood = "loses"
    world.step()
    world.remote.away = True
    until_end(world)
    end = world.state.end
    assert end
    assert (world.state.phase, end.reason) == (RunPhase.FAILED, "EffectUnknown")
    assert [e.status for e in world.state.effects] == ["unknown"]
    assert "not known whether the git push to origin b happened" in end.message
    assert "Nothing was pushed" not in end.message


def test_its_time_is_the_runs_own() -> None:
    world = at_delivery(timeouts=ResolvedTimeouts(delivery_ms=MINUTE))
    world.remote.away = True
    until_end(world)
    assert MINUTE <= world.now - START < 2 * MINUTE


def test_a_restart_forgets_no_try() -> None:
    """All of it is in the journal: another world over the same history plans the same."""
    world = at_delivery()
    world.remote.away = True
    while world.now - START < 5 * MINUTE:
        world.step()
    again = replace(world, gateway=replace(world.gateway), beat=None, started={})
    assert again.plan() == world.plan()
    assert world.state.deferral
    assert world.state.deferral.since == START


def test_pauses_double_are_spread_and_have_a_floor() -> None:
    waits = [next_try(f"r{i}", Deferral("", "", 5, 0, 0)) for i in range(300)]
    assert SHORTEST_WAIT_MS <= min(waits) < 2_000
    assert 14_000 < max(waits) < 16_000
    early = Deferral("", "", 1, 0, 1_000_000)
    assert not due("r", early, 1_000_001)
    assert due("r", early, 1_001_000)
    assert due("r", early, 999_999)  # the clock was put back


def test_a_deadline_closes_what_is_open() -> None:
    world = at_delivery(timeouts=ResolvedTimeouts(deadline_ms=10 * MINUTE))
    world.note(T.EFFECT_INTENT, intent("push", kind="git_push", level="conditional"))
    world.note(T.EFFECT_DISPATCHED, {"effect_id": "push"})
    world.now = START + 10 * MINUTE
    world.step()
    assert world.state.end
    assert (world.state.end.reason, world.state.effects[0].status) == ("DeadlineExceeded", "unknown")


# --- a repository that is away at the start ---------------------------------------------------------------------------


def starting() -> World:
    world = World()
    world.step()
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner)
    return world


def test_a_start_that_waits_for_its_repository_says_why() -> None:
    world = starting()
    world.note(T.EFFECT_DEFERRED, {"kind": "git_fetch", "reason": "GitUnreachable", "message": "no answer"})
    status = told(world)
    truths = {c.type: (c.status, c.reason) for c in status.conditions}
    assert (status.phase, status.reason, status.message) == ("Provisioning", "GitUnreachable", "no answer")
    assert (truths["WorkspaceReady"], truths["Delivered"]) == (("False", "GitUnreachable"), ("False", "NotDelivered"))


def test_nothing_of_that_is_left_once_the_worktree_stands() -> None:
    world = starting()
    world.note(T.EFFECT_DEFERRED, {"kind": "git_fetch", "reason": "WorkspaceFetching", "message": "on its way"})
    world.note(T.WORKSPACE_READY, {"base": "b" * 40, "branch": "moorage/fix"})
    assert world.state.deferral is None
    world.note(T.EFFECT_DEFERRED, {"kind": "http", "reason": "NoAnswer", "message": ""})
    world.note(T.WORKSPACE_READY, {"base": "b" * 40, "branch": "moorage/fix"})
    assert world.state.deferral, "an effect that waits isn't settled by a worktree"


def test_a_run_that_is_being_cancelled_waits_for_no_repository() -> None:
    world = starting()
    world.note(T.CANCEL_REQUESTED, {"reason": "user"})
    world.note(T.EFFECT_DEFERRED, {"kind": "git_fetch", "reason": "GitUnreachable", "message": "no answer"})
    assert world.state.deferral is None
