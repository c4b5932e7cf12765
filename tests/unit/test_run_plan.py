"""One table row per thing that a policy may decide. Rows are made by walking a small world there, not by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import HEAD, START, T, World, a_spec, drive

from moorage.api.wire import ResolvedLimits, ResolvedRetention, ResolvedTimeouts, Role
from moorage.core.run import actions as a
from moorage.core.run.attempts import FIRST_CONTACT_MS
from moorage.core.run.backoff import BACKOFF_CAP_MS, backoff_ms
from moorage.core.run.observed import Heartbeat, LeaseView, Observed, Problem, SandboxPhase, Slots
from moorage.core.run.phases import IllegalMove, RunPhase, move
from moorage.core.run.plan import decide
from moorage.core.run.reducer import add_usage
from moorage.core.run.state import Usage

NO_ACTIONS: tuple[a.Action, ...] = ()
WHERE = {"node": "n", "runtime": "gvisor", "environment": "sha256:e3"}


def observed(world: World, **changes: Any) -> Observed:
    return replace(world.observed(), **changes)


def kinds(plan: a.Plan) -> list[str]:
    return [type(action).__name__ for action in plan.actions]


def records(plan: a.Plan) -> list[tuple[str, str]]:
    """Type and reason of the records that the plan reports."""
    return [(r.type, str(r.payload.get("reason", ""))) for r in plan.actions if isinstance(r, a.Report)]


def provisioning() -> World:
    world = World()
    world.step()
    return world


def running() -> World:
    world = provisioning()
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner)
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    world.report("agent", T.AGENT_STARTED, {})
    return world


def proposed(**spec: Any) -> World:
    world = running()
    world.spec = world.spec.model_copy(update=spec)
    world.finish()
    return world


def verifying() -> World:
    world = proposed()
    world.step()
    view = world.sandbox("verifier")
    assert view
    world.run_pod(view)
    return world


# --- placement --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("O4")
def test_where_a_sandbox_runs_is_told_once_and_delays_nothing() -> None:
    world = provisioning()
    assert "SANDBOX_PLACED" not in [kind for kind, _ in records(world.plan())]
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner, **WHERE)
    plan = world.plan()
    assert [r.payload for r in plan.actions if isinstance(r, a.Report)] == [
        {
            "pod_uid": runner.uid,
            "epoch": 1,
            "role": "runner",
            **WHERE,
        }
    ]
    world.step()
    seen = world.state.placements
    assert [(p.role, p.node, p.runtime, p.environment) for p in seen] == [("runner", "n", "gvisor", "sha256:e3")]
    assert "SANDBOX_PLACED" not in [kind for kind, _ in records(world.plan())]


@pytest.mark.rule("O4")
def test_what_is_learned_of_a_sandbox_after_the_end_is_still_told() -> None:
    world = provisioning()
    runner = world.sandbox("runner")
    assert runner
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    world.report("agent", T.AGENT_STARTED, {})
    world.spec = world.spec.model_copy(update={"acceptance": (), "delivery": None})
    world.finish()
    world.step()
    assert world.state.end
    world.run_pod(runner, **WHERE)
    world.step()
    assert len(world.state.placements) == 1
    released = decide(
        observed(world, released=True, sandboxes=(replace(runner, environment="sha256:e4", uid="v"),)), START
    )
    assert "SANDBOX_PLACED" not in [kind for kind, _ in records(released)]


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
        ({"slots": Slots(1, 1, 0)}, "Queued"),
        ({"slots": Slots(3, 1, 2)}, "Queued"),
        ({"problem": Problem("UnknownDriver", "m", True)}, "UnknownDriver"),
        ({"problem": Problem("WorkspaceNotFound", "m", False)}, "WorkspaceNotFound"),
        ({"spec": None}, "Unresolved"),
    ],
)
def test_what_keeps_a_run_from_being_admitted_is_told(changes: dict[str, Any], reason: str) -> None:
    plan = decide(observed(World(), **changes), START)
    assert (plan.actions, plan.reason, plan.verdict) == (NO_ACTIONS, reason, None)


def test_a_place_in_the_queue_is_explained() -> None:
    plan = decide(observed(World(), slots=Slots(3, 2, 4)), START)
    assert "position 5" in plan.message
    assert "2 of 3" in plan.message


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
    "waits", [{"suspend": True}, {"slots": Slots(1, 1, 0)}, {"problem": Problem("UnknownDriver", "m", True)}, {}]
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
def test_an_attempt_has_a_time_of_its_own() -> None:
    world = running()
    world.spec = a_spec(timeouts=ResolvedTimeouts(attempt_ms=1_000))
    world.now += 1_000
    assert records(world.plan()) == [("ATTEMPT_ENDED", "AttemptTimeout")]


# --- waiting for a sandbox --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "after", "end"),
    [
        ("ImagePullFailed", 299_999, []),
        ("ImagePullFailed", 300_000, [("RUN_FAILED", "ImagePullFailed")]),
        ("CreateContainerError", 300_000, [("RUN_FAILED", "CreateContainerError")]),
        ("Unschedulable", 300_000, []),
        ("Unschedulable", 3_600_000, [("RUN_FAILED", "ScheduleToStartTimeout")]),
        ("", 3_600_000, [("RUN_FAILED", "ScheduleToStartTimeout")]),
    ],
)
def test_a_sandbox_that_does_not_start(reason: str, after: int, end: list[tuple[str, str]]) -> None:
    world = provisioning()
    runner = world.sandbox("runner")
    assert runner
    world.set_pod(runner, reason=reason, message="why")
    world.now += after
    plan = world.plan()
    assert records(plan) == end
    assert end or plan.reason == (reason or "Provisioning")


def test_a_waiting_sandbox_is_not_polled() -> None:
    world = provisioning()
    runner = world.sandbox("runner")
    assert runner
    world.set_pod(runner, reason="Unschedulable")
    world.now += 300_001
    assert (world.plan().requeue_ms or 0) > 1_000_000


def test_a_volume_that_a_crash_left_out_is_made_up_for() -> None:
    world = provisioning()
    world.volume = False
    assert kinds(world.plan()) == ["EnsureVolume"]


def test_a_sandbox_that_is_not_registered_is() -> None:
    world = World()
    for action in world.plan().actions[:-1]:
        world.apply(action)
    last = world.plan().actions[-1]
    assert isinstance(last, a.StartSandbox)
    world.start(last)
    assert kinds(world.plan()) == ["RegisterSandbox"]


# --- losing an attempt ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["OOMKilled", "Evicted", "NodeLost", "DiskFull", "RunnerFailed"])
def test_a_lost_sandbox_is_told_with_its_reason(reason: str) -> None:
    world = running()
    runner = world.sandbox("runner")
    assert runner
    world.set_pod(runner, phase=SandboxPhase.ENDED, reason=reason, message="m")
    assert records(world.plan()) == [("ATTEMPT_ENDED", reason)]


@pytest.mark.rule("R1", "R6")
def test_recovery_backs_off_raises_the_epoch_and_waits_for_the_old_sandbox() -> None:
    world = running()
    world.report("cp", T.ITERATION_COMPLETE, {"iteration": 1})
    world.apply(a.Report("end", T.ATTEMPT_ENDED, {"epoch": 1, "role": "runner", "reason": "X", "message": ""}))
    assert world.state.strikes == 1
    waiting = world.plan()
    assert (waiting.actions, waiting.requeue_ms) == (NO_ACTIONS, backoff_ms("u-1", 1))
    world.now += backoff_ms("u-1", 1)
    assert kinds(world.plan()) == ["RaiseEpoch"]
    world.step()
    assert kinds(world.plan()) == ["StopSandbox"]
    world.step()
    assert kinds(world.plan()) == ["EnsureVolume", "StartSandbox"]


@pytest.mark.rule("R6")
def test_attempts_without_a_safe_point_count_double_and_are_bounded() -> None:
    world = running()
    world.spec = a_spec(max_attempts=2)
    world.apply(a.Report("end", T.ATTEMPT_ENDED, {"epoch": 1, "role": "runner", "reason": "X", "message": "m"}))
    assert world.state.strikes == 2
    assert records(world.plan()) == [("RUN_FAILED", "CrashLoop")]


@pytest.mark.rule("R6")
def test_backoff_is_full_jitter_below_its_cap() -> None:
    waits = [backoff_ms(f"run-{i}", 5) for i in range(500)]
    assert 0 <= min(waits) < 2_000
    assert 14_000 < max(waits) < 16_000
    assert all(backoff_ms("u", n) < BACKOFF_CAP_MS for n in range(1, 200))


def test_a_removal_that_a_dead_node_never_confirms_is_forced() -> None:
    world = running()
    runner = world.sandbox("runner")
    assert runner
    world.apply(a.Report("end", T.ATTEMPT_ENDED, {"epoch": 1, "role": "runner", "reason": "OwnerLost"}))
    world.now += 10_000
    world.step()
    world.set_pod(runner, stop_by=world.now)
    assert world.plan().actions == ()
    world.now += 30_000
    (stop,) = world.plan().actions
    assert isinstance(stop, a.StopSandbox)
    assert stop.force


# --- the result -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "end"),
    [("failed", "Exited"), ("exhausted", "BudgetExhausted"), ("cancelled", "Exited")],
)
def test_an_agent_that_did_not_complete_is_no_success(outcome: str, end: str) -> None:
    world = running()
    world.finish(outcome)
    assert records(world.plan()) == [("RUN_FAILED", end)]


def test_an_output_without_an_end_is_a_lost_attempt() -> None:
    world = running()
    world.finish("unknown")
    runner = world.sandbox("runner")
    assert runner
    world.set_pod(runner, phase=SandboxPhase.ENDED)
    assert records(world.plan()) == [("ATTEMPT_ENDED", "Exited")]


@pytest.mark.rule("N4")
def test_an_empty_diff_where_a_change_was_asked_is_no_success() -> None:
    world = running()
    world.finish(empty=True)
    assert records(world.plan()) == [("RUN_FAILED", "NoChange")]


@pytest.mark.rule("V3", "S3")
def test_the_way_to_success_leads_over_verdict_and_push() -> None:
    world = verifying()
    assert world.plan().actions == ()
    world.judge()
    assert world.plan().actions == (a.Deliver(HEAD),)
    world.step()
    assert records(world.plan()) == [("RUN_SUCCEEDED", "Completed")]


def test_nothing_is_pushed_where_nobody_asked() -> None:
    base = a_spec()
    assert base.delivery
    world = proposed(acceptance=(), delivery=base.delivery.model_copy(update={"push": False}))
    assert records(world.plan()) == [("RUN_SUCCEEDED", "Completed")]
    assert proposed(acceptance=()).plan().actions == (a.Deliver(HEAD),)


def test_a_verdict_on_another_commit_proves_nothing() -> None:
    world = verifying()
    world.report("verdict", T.VERIFICATION_RESULT, {"commit": "c" * 40, "passed": True, "isolated": True})
    assert records(world.plan()) == []
    assert "Deliver" not in kinds(world.plan())


def test_red_tests_fail_the_run() -> None:
    world = verifying()
    world.judge(passed=False)
    assert records(world.plan()) == [("RUN_FAILED", "AcceptanceFailed")]


def test_a_verifier_that_has_judged_is_left_to_exit_by_itself() -> None:
    world = verifying()
    world.judge(passed=False)
    world.step()
    assert world.state.end is not None
    assert "StopSandbox" not in kinds(world.plan())
    world.now += 30_001
    assert kinds(world.plan()) == ["StopSandbox", "StopSandbox"]


def test_a_verifier_that_a_crash_left_unregistered_is_registered() -> None:
    world = proposed()
    (start,) = world.plan().actions
    assert isinstance(start, a.StartSandbox)
    world.start(start)
    (register,) = world.plan().actions
    assert isinstance(register, a.RegisterSandbox)
    assert (register.role, register.commit) == (Role.VERIFIER, HEAD)


def test_a_waiting_recovery_says_what_was_lost() -> None:
    world = running()
    lost = {"epoch": 1, "role": "runner", "reason": "OOMKilled", "message": "raise memory"}
    world.apply(a.Report("end", T.ATTEMPT_ENDED, lost))
    plan = world.plan()
    assert (plan.reason, plan.message) == ("OOMKilled", "raise memory")


def test_a_verifier_that_dies_is_replaced_three_times() -> None:
    world = verifying()
    seen = set()
    for _ in range(3):
        view = world.sandbox("verifier")
        assert view
        seen.add(view.name)
        world.set_pod(view, phase=SandboxPhase.ENDED, reason="Evicted")
        world.step()
        world.step()
    assert len(seen) == 3
    assert (world.state.phase, world.state.end and world.state.end.reason) == (RunPhase.FAILED, "VerifierLost")


def test_a_verifier_that_never_judges_is_stopped() -> None:
    world = verifying()
    world.now += 600_000 + 600_000
    assert kinds(world.plan()) == ["StopSandbox", "Report"]


def test_an_unknown_push_is_asked_about_again_and_a_rejected_one_ends() -> None:
    world = proposed(acceptance=())
    effect = {"effect_id": "push", "kind": "git_push", "key": "k", "target": "origin b"}
    world.gateway.append("intent", T.EFFECT_INTENT, effect, 1, world.now)
    world.gateway.append("r1", T.EFFECT_RECEIPT, {"effect_id": "push", "outcome": "unknown"}, 1, world.now)
    plan = world.plan()
    assert (plan.actions, plan.reason) == ((a.Deliver(HEAD),), "EffectUnknown")
    told = {"effect_id": "push", "outcome": "rejected", "detail": "ProtectedBranch: main is protected"}
    world.gateway.append("r2", T.EFFECT_RECONCILED, told, 1, world.now)
    assert records(world.plan()) == [("RUN_FAILED", "ProtectedBranch")]


# --- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("C2", "F5")
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"limits": ResolvedLimits(wall_clock_ms=50_000)}, "WallClockExceeded"),
        ({"timeouts": ResolvedTimeouts(deadline_ms=50_000)}, "DeadlineExceeded"),
    ],
)
@pytest.mark.parametrize("there", [provisioning, running, verifying])
def test_an_absolute_limit_ends_a_run_wherever_it_stands(
    there: Callable[[], World], spec: dict[str, Any], reason: str
) -> None:
    world = there()
    world.spec = world.spec.model_copy(update=spec)
    world.now = START + 10_000
    assert (world.plan().requeue_ms or 10**9) <= 40_000
    world.now = START + 50_000
    assert records(world.plan()) == [("RUN_FAILED", reason)]


# --- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("X1", "X3")
def test_cancel_gives_grace_then_kills_then_closes() -> None:
    world = running()
    world.cancel = True
    assert records(world.plan()) == [("CANCEL_REQUESTED", "user")]
    world.step()
    assert world.plan().actions == ()
    world.now += 35_000
    assert kinds(world.plan()) == ["StopSandbox"]
    world.step()
    assert [kind for kind, _ in records(world.plan())] == ["CANCEL_QUIESCED", "CANCEL_RECONCILED", "RUN_CANCELLED"]
    world.step()
    assert world.state.phase is RunPhase.CANCELLED
    assert records(world.plan()) == []


@pytest.mark.rule("X1")
@pytest.mark.parametrize(("gone", "reason"), [(False, "Cancelled"), (True, "ObjectDeleted")])
def test_reasons_of_a_cancel_are_kept_apart(gone: bool, reason: str) -> None:
    world = provisioning()
    world.cancel, world.gone = not gone, gone
    for _ in range(4):
        world.step()
    assert world.state.end
    assert (world.state.phase, world.state.end.reason) == (RunPhase.CANCELLED, reason)


def test_a_cancel_with_an_unknown_effect_says_so() -> None:
    world = running()
    effect = {"effect_id": "e", "kind": "http", "key": "k", "target": "t"}
    world.gateway.append("i", T.EFFECT_INTENT, effect, 1, world.now)
    assert world.state.phase is RunPhase.RUNNING
    world.gateway.append("r", T.EFFECT_RECEIPT, {"effect_id": "e", "outcome": "unknown"}, 1, world.now)
    world.cancel = True
    for view in list(world.pods.values()):
        world.set_pod(view, phase=SandboxPhase.ENDED)
    world.step()
    world.step()
    assert world.state.end
    assert "http to t" in world.state.end.message


def test_a_sandbox_that_has_not_started_needs_no_grace() -> None:
    world = provisioning()
    world.cancel = True
    world.step()
    assert kinds(world.plan()) == ["StopSandbox"]


@pytest.mark.rule("X1")
def test_an_open_push_is_settled_before_cancelled_is_said() -> None:
    world = proposed(acceptance=())
    effect = {"effect_id": "push", "kind": "git_push", "key": "k", "target": "origin b"}
    world.gateway.append("intent", T.EFFECT_INTENT, effect, 1, world.now)
    world.cancel = True
    world.step()
    for view in list(world.pods.values()):
        world.set_pod(view, phase=SandboxPhase.ENDED)
    assert world.plan().actions == (a.Deliver(HEAD),)


@pytest.mark.rule("I5")
def test_a_cancelling_run_takes_facts_but_no_new_work() -> None:
    world = running()
    world.cancel = True
    world.step()
    assert world.report("tool", T.TOOL_RESPONSE, {})
    assert not world.report("model", T.MODEL_REQUEST, {})
    effect = {"effect_id": "e", "kind": "http", "key": "k", "target": "t"}
    assert not world.report("effect", T.EFFECT_INTENT, effect)
    with pytest.raises(IllegalMove):
        world.raise_fence(2, 2, "x")


def test_a_deleted_object_is_closed_at_once_and_released() -> None:
    world = running()
    world.gone = True
    assert records(world.plan()) == [("CANCEL_REQUESTED", "ObjectDeleted")]
    world.step()
    assert kinds(world.plan()) == ["StopSandbox"]
    for _ in range(3):
        world.step()
    assert world.gateway.released
    assert world.plan() == a.Plan()


# --- after the end ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("W5")
@pytest.mark.parametrize(
    ("keep", "succeeded", "drops"),
    [
        ("OnFailure", True, True),
        ("OnFailure", False, False),
        ("Always", True, False),
        ("Never", True, True),
        ("Never", False, True),
    ],
)
def test_the_worktree_is_kept_as_asked(keep: Any, succeeded: bool, drops: bool) -> None:
    world = World(a_spec(retention=ResolvedRetention(ttl_ms=60_000, keep_worktree=keep)))
    drive(world) if succeeded else _fail(world)
    for view in list(world.pods.values()):
        world.set_pod(view, phase=SandboxPhase.ENDED)
    assert ("ReleaseVolume" in kinds(world.plan())) is drops


def _fail(world: World) -> None:
    world.step()
    world.apply(a.Report("end", T.RUN_FAILED, {"reason": "X"}))


@pytest.mark.rule("W5")
def test_retention_releases_all_but_the_object() -> None:
    world = World(a_spec(retention=ResolvedRetention(ttl_ms=60_000)))
    drive(world)
    world.now += 60_000
    assert "ReleaseRun" in kinds(world.plan())
    world.step()
    assert (world.pods, world.volume, world.lease, world.deleted) == ({}, False, None, False)
    assert world.plan().actions == ()


def test_a_runner_that_told_its_result_leaves_by_itself_first() -> None:
    world = World()
    drive(world)
    runner = world.sandbox("runner")
    assert runner
    assert runner.name not in [x.name for x in world.plan().actions if isinstance(x, a.StopSandbox)]
    world.now += 30_000
    assert runner.name in [x.name for x in world.plan().actions if isinstance(x, a.StopSandbox)]


@pytest.mark.parametrize(("asked", "plans"), [(True, ["ReleaseRun", "DeleteObject"]), (False, ["ReleaseRun"])])
def test_the_object_is_deleted_only_where_its_author_says_so(asked: bool, plans: list[str]) -> None:
    world = World(a_spec(retention=ResolvedRetention(ttl_ms=1, delete_object=asked)))
    drive(world)
    for view in list(world.pods.values()):
        world.set_pod(view, phase=SandboxPhase.ENDED)
    world.now += 10
    assert kinds(world.plan()) == plans
    gone = observed(world, gone=True)
    assert "DeleteObject" not in kinds(decide(gone, world.now))


def test_without_a_ttl_everything_stays() -> None:
    world = World(a_spec(retention=ResolvedRetention(ttl_ms=None, keep_worktree="Always")))
    drive(world)
    for view in list(world.pods.values()):
        world.set_pod(view, phase=SandboxPhase.ENDED)
    world.now += 10**12
    assert world.plan() == a.Plan()


@pytest.mark.parametrize(("succeeded", "grace"), [(True, 30_000), (False, 0)])
def test_what_still_runs_after_a_failure_is_killed_at_once(succeeded: bool, grace: int) -> None:
    world = running() if not succeeded else World()
    drive(world) if succeeded else world.apply(a.Report("end", T.RUN_FAILED, {"reason": "DeadlineExceeded"}))
    world.now += 30_000
    stops = [x.grace_ms for x in world.plan().actions if isinstance(x, a.StopSandbox)]
    assert stops == [grace] * len(stops)
    assert stops


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
