"""One table row per thing that a policy may decide. Rows are made by walking a small world there, not by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.property.run_world import START, T, World, a_spec, drive
from tests.run_plans import NO_ACTIONS, kinds, observed, provisioning, records, running, verifying

from moorage.api.wire import ResolvedTimeouts, Role
from moorage.core.run import actions as a
from moorage.core.run.attempts import FIRST_CONTACT_MS
from moorage.core.run.observed import Heartbeat, LeaseView, Problem
from moorage.core.run.phases import IllegalMove, RunPhase, move
from moorage.core.run.plan import decide
from moorage.core.run.reducing.usage import add_usage
from moorage.core.run.state import Usage
from moorage.core.scheduling.explain import Slots

# --- before admission -------------------------------------------------------------------------------------------------


def test_a_free_run_is_admitted_and_begun_in_the_order_of_f2() -> None:
    assert kinds(World().plan()) == ["Admit", "RaiseEpoch", "EnsureVolume", "StartSandbox"]


@pytest.mark.rule("F2")
def test_a_run_that_nobody_has_worked_on_begins_at_once_and_has_its_sandbox_after_that() -> None:
    plan = World(untouched=True).plan()
    assert plan.actions == (a.Begin(World().spec, 1), a.StartSandbox(1, Role.RUNNER))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"suspend": True}, "Suspended"),
        ({"slots": Slots(free=False)}, "Queued"),
        ({"slots": Slots(free=False, place=3)}, "Queued"),
        ({"problem": Problem("UnknownDriver", "m", True)}, "UnknownDriver"),
        ({"problem": Problem("WorkspaceNotFound", "m", False)}, "WorkspaceNotFound"),
        ({"spec": None}, "Unresolved"),
    ],
)
def test_what_keeps_a_run_from_being_admitted_is_told(changes: dict[str, Any], reason: str) -> None:
    plan = decide(observed(World(), **changes), START)
    assert (plan.actions, plan.reason, plan.verdict) == (NO_ACTIONS, reason, None)


def test_a_place_in_the_queue_is_explained() -> None:
    plan = decide(observed(World(), slots=Slots(free=False, place=5, tenant="team-a", live=3, limit=3, held=2)), START)
    assert plan.message == (
        "5th in team-a; all 3 sandboxes of this installation are in use, 2 of them by team-a; next when one of them"
        " ends and it is this namespace's turn"
    )


def test_a_problem_that_others_can_mend_is_waited_for_until_schedule_to_start() -> None:
    lost = Problem("WorkspaceNotFound", "create it", False)
    early = decide(observed(World(), problem=lost, spec=None), START + 1)
    assert early.requeue_ms == 30_000
    late = decide(observed(World(), problem=lost, spec=None), START + 3_600_000)
    assert late.verdict
    assert late.verdict.reason == "ScheduleToStartTimeout"
    theirs = decide(observed(World(), problem=Problem("UnknownDriver", "m", True)), START + 10**9)
    assert (theirs.verdict, theirs.requeue_ms) == (None, None)


@pytest.mark.rule("F5")
def test_the_authors_own_times_count_while_the_run_waits() -> None:
    asked = ResolvedTimeouts(schedule_to_start_ms=5_000, deadline_ms=8_000)
    lost = Problem("WorkspaceNotFound", "create it", False)
    unresolved = observed(World(), problem=lost, spec=None, asked=asked)
    assert decide(unresolved, START + 4_999).verdict is None
    late = decide(unresolved, START + 5_000).verdict
    assert late
    assert late.reason == "ScheduleToStartTimeout"


@pytest.mark.rule("F5")
@pytest.mark.parametrize(
    "waits", [{"suspend": True}, {"slots": Slots(free=False)}, {"problem": Problem("UnknownDriver", "m", True)}, {}]
)
def test_the_deadline_ends_a_run_that_waits_for_whatever(waits: dict[str, Any]) -> None:
    o = observed(World(), asked=ResolvedTimeouts(deadline_ms=8_000), **waits)
    early = decide(o, START + 7_000)
    assert (early.verdict, early.requeue_ms) == (None, 1_000)
    late = decide(o, START + 8_000)
    assert late.verdict
    assert (late.verdict.reason, late.actions) == ("DeadlineExceeded", NO_ACTIONS)


def test_cancelled_before_admission_is_an_end_without_a_journal_and_absorbs() -> None:
    plan = decide(observed(World(), cancel=True), START)
    assert plan.verdict
    assert plan.verdict.phase == RunPhase.CANCELLED
    closed = decide(observed(World(), closed_without_journal=True), START)
    assert closed == a.Plan()


def test_without_the_gateway_nothing_is_decided() -> None:
    plan = decide(observed(running(), journal=None), START)
    assert (plan.actions, plan.reason) == (NO_ACTIONS, "GatewayUnavailable")


# --- ownership --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("F1")
def test_the_epoch_is_above_lease_and_fence() -> None:
    world = World()
    world.raise_lease(7)
    raised = next(x for x in world.plan().actions if isinstance(x, a.RaiseEpoch))
    assert raised.epoch == 8


@pytest.mark.rule("F1")
@pytest.mark.parametrize("epoch", [None, 0])
def test_a_lease_that_is_gone_or_behind_is_put_back(epoch: int | None) -> None:
    world = running()
    world.lease = LeaseView(epoch, "x", world.now, 40_000) if epoch is not None else None
    assert world.plan().actions == (a.EnsureLease(1),)


def test_a_lease_raised_from_outside_costs_the_attempt_but_never_a_result() -> None:
    world = running()
    world.raise_lease(9)
    assert records(world.plan()) == [("ATTEMPT_ENDED", "OwnerChanged")]
    done = verifying()
    done.raise_lease(9)
    assert records(done.plan()) == []


@pytest.mark.rule("F4")
def test_an_owner_is_lost_only_after_a_full_period_in_which_it_could_be_heard() -> None:
    world = running()
    world.now += 39_999
    assert records(world.plan()) == []
    world.now += 1
    assert records(world.plan()) == [("ATTEMPT_ENDED", "OwnerLost")]
    restarted = observed(world, gateway_up_since=world.now - 1_000)
    assert records(decide(restarted, world.now)) == []
    heard = observed(world, heartbeat=Heartbeat(1, 5, world.now - 1_000, world.now - 1_000))
    assert records(decide(heard, world.now)) == []
    stale = observed(world, heartbeat=Heartbeat(0, 5, world.now - 1_000, world.now - 1_000))
    assert records(decide(stale, world.now)) == [("ATTEMPT_ENDED", "OwnerLost")]


def test_a_late_start_is_no_lost_owner() -> None:
    world = provisioning()
    world.now += 100_000
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner)
    assert records(world.plan()) == []
    world.now += FIRST_CONTACT_MS
    assert records(world.plan()) == [("ATTEMPT_ENDED", "OwnerLost")]


@pytest.mark.rule("F4", "F5")
def test_alive_is_not_progress() -> None:
    world = running()
    world.now += 600_000
    alive = Heartbeat(1, 1, world.now, START)
    assert records(decide(observed(world, heartbeat=alive), world.now)) == [("ATTEMPT_ENDED", "NoProgress")]
    moving = Heartbeat(1, 9, world.now, world.now - 1)
    assert records(decide(observed(world, heartbeat=moving), world.now)) == []


@pytest.mark.rule("F5")
def test_a_start_that_the_gateway_prepares_is_no_lack_of_progress() -> None:
    """However long a fetch takes: the gateway bounds it, and the attempt's own time does."""
    world = provisioning()
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner)
    world.note(T.ATTEMPT_STARTED, {"epoch": 1, "pod_uid": runner.uid})
    world.note(T.EFFECT_DEFERRED, {"kind": "git_fetch", "reason": "WorkspaceFetching", "message": "on its way"})
    world.now += 660_000
    alive = Heartbeat(1, 0, world.now, START)
    assert records(decide(observed(world, heartbeat=alive), world.now)) == []


@pytest.mark.rule("F5")
def test_an_attempt_has_a_time_of_its_own() -> None:
    world = running()
    world.spec = a_spec(timeouts=ResolvedTimeouts(attempt_ms=1_000))
    world.now += 1_000
    assert records(world.plan()) == [("ATTEMPT_ENDED", "AttemptTimeout")]


@pytest.mark.rule("F5")
def test_a_run_at_work_is_looked_at_again_when_its_first_limit_is_over() -> None:
    world = running()
    world.now += 600_000
    moving = Heartbeat(1, 9, world.now, world.now - 1_000)
    for limits, left in (
        (ResolvedTimeouts(), 40_000),
        (ResolvedTimeouts(no_progress_ms=15_000), 14_000),
        (ResolvedTimeouts(no_progress_ms=15_000, attempt_ms=world.now - START + 5_000), 5_000),
    ):
        world.spec = a_spec(timeouts=limits)
        plan = decide(observed(world, heartbeat=moving), world.now)
        assert records(plan) == []
        assert 0 < (plan.requeue_ms or 0) <= left


# --- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("C2", "F5")
@pytest.mark.parametrize("there", [provisioning, running, verifying])
def test_an_absolute_limit_ends_a_run_wherever_it_stands(there: Callable[[], World]) -> None:
    world = there()
    world.spec = world.spec.model_copy(update={"timeouts": ResolvedTimeouts(deadline_ms=50_000)})
    world.now = START + 10_000
    assert (world.plan().requeue_ms or 10**9) <= 40_000
    world.now = START + 50_000
    assert records(world.plan()) == [("RUN_FAILED", "DeadlineExceeded")]


# --- the table of moves and the reducer -------------------------------------------------------------------------------


@pytest.mark.rule("S2", "S3")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (RunPhase.RUNNING, RunPhase.SUCCEEDED),
        (RunPhase.QUEUED, RunPhase.RUNNING),
        (RunPhase.CANCELLING, RunPhase.SUCCEEDED),
        (RunPhase.CANCELLING, RunPhase.RECOVERING),
        (RunPhase.SUCCEEDED, RunPhase.RUNNING),
        (RunPhase.FAILED, RunPhase.CANCELLED),
        (RunPhase.CANCELLED, RunPhase.CANCELLED),
    ],
)
def test_illegal_moves_are_typed(old: RunPhase, new: RunPhase) -> None:
    with pytest.raises(IllegalMove):
        move(old, new, "test")


@pytest.mark.rule("S3")
def test_success_without_its_evidence_is_refused() -> None:
    world = verifying()
    world.judge(passed=False)
    with pytest.raises(IllegalMove):
        world.apply(a.Report("end", T.RUN_SUCCEEDED, {"reason": "Completed"}))


@pytest.mark.rule("I4")
def test_usage_only_grows() -> None:
    assert add_usage(Usage(input_tokens=3), {"input_tokens": 2, "unheard_of": 9}).input_tokens == 5
    with pytest.raises(ValueError, match="negative"):
        add_usage(Usage(), {"output_tokens": -1})


@pytest.mark.rule("I6")
def test_nothing_leaves_an_end() -> None:
    world = World()
    drive(world)
    before = world.state
    assert not world.report("late", T.AGENT_STARTED, {})
    assert not world.report("late", T.ITERATION_COMPLETE, {"iteration": 99})
    assert world.state == before
    assert Role.RUNNER.value == "runner"
