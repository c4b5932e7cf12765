"""Plans about results, cancellation and what follows an end."""

from typing import Any

import pytest
from tests.property.run_world import HEAD, T, World, a_spec, drive
from tests.run_plans import kinds, observed, proposed, provisioning, records, running, verifying

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedRetention, Role
from moorage.core.run import actions as a
from moorage.core.run.observed import SandboxPhase
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.plan import decide

# --- the result -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "end"),
    [("failed", "RUN_FAILED"), ("exhausted", "PAUSE_REQUESTED"), ("cancelled", "RUN_FAILED")],
)
def test_an_agent_that_did_not_complete_is_no_success(outcome: str, end: str) -> None:
    world = running()
    world.finish(outcome)
    assert [kind for kind, _ in records(world.plan())] == [end]


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("limits", "end"),
    [
        (ResolvedLimits(cost_hard_micros=70), ("PAUSE_REQUESTED", "BudgetExhausted")),
        (ResolvedLimits(tokens_hard=7), ("PAUSE_REQUESTED", "BudgetExhausted")),
        (ResolvedLimits(cost_hard_micros=71, tokens_hard=8), ("RUN_FAILED", "Exited")),
    ],
)
def test_an_agent_that_fails_where_nothing_is_left_has_exhausted_its_budget(
    limits: ResolvedLimits, end: tuple[str, str]
) -> None:
    world = running()
    world.spec = world.spec.model_copy(update={"limits": limits})
    world.report("answer", T.MODEL_RESPONSE, {"usage": {"output_tokens": 7, "cost_micros": 70}})
    world.finish("failed")
    assert records(world.plan()) == [end]


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


@pytest.mark.rule("N4")
@pytest.mark.parametrize(("empty", "end"), [(False, "RUN_SUCCEEDED"), (True, "RUN_FAILED")])
def test_what_the_result_lacks_is_told_at_the_end_and_bounded(empty: bool, end: str) -> None:
    world = running()
    world.spec = world.spec.model_copy(update={"delivery": None, "acceptance": ()} if not empty else {})
    world.report("end", T.AGENT_FINISHED, {"outcome": "completed", "reason": "Exited", "exit_code": 0})
    lacks = {"left_out": [f"{n}{'x' * 1000}" for n in range(64)], "left_out_count": 90}
    told = {"commit": HEAD, "tree": HEAD, "base": HEAD, "empty": empty, "files": 0, **lacks}
    world.report("result", T.RESULT_PROPOSED, told)
    (ended,) = [r for r in world.plan().actions if isinstance(r, a.Report)]
    assert ended.type == end
    assert "left out of the result: 0x" in ended.payload["message"]
    assert ended.payload["message"].endswith("; 86 more")
    assert len(ended.payload["message"]) < 1024


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


@pytest.mark.rule("R7", "V3")
def test_verifiers_that_died_with_their_owner_are_replaced_as_often_as_that_happens() -> None:
    world = verifying()
    seen = set()
    for _ in range(10):
        view = world.sandbox("verifier")
        assert view
        seen.add(view.name)
        lost = {"epoch": 1, "role": "verifier", "reason": "Interrupted", "message": "", "interrupted": view.uid}
        world.apply(a.Report(f"interrupted {view.uid}", T.ATTEMPT_ENDED, lost))
        world.set_pod(view, phase=SandboxPhase.ENDED)
        world.step()
    assert len(seen) == 10
    assert (world.state.verifications_lost, world.state.verifiers_interrupted) == (0, 10)
    assert world.state.end is None


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
