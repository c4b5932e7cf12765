"""Plans about sandboxes: where they run, that they don't start, that they are lost."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import START, T, World, a_spec
from tests.run_plans import NO_ACTIONS, WHERE, kinds, observed, provisioning, records, running

from moorage.api.runstatus import AgentRunStatus
from moorage.core.run import actions as a
from moorage.core.run.backoff import BACKOFF_CAP_MS, backoff_ms
from moorage.core.run.observed import SandboxPhase, SandboxView
from moorage.core.run.phases import RunPhase
from moorage.core.run.plan import decide
from moorage.core.run.status import project

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
    assert (waiting.actions, waiting.requeue_ms) == (NO_ACTIONS, backoff_ms("u-1:1", 1))
    world.now += backoff_ms("u-1:1", 1)
    assert kinds(world.plan()) == ["RaiseEpoch"]
    world.step()
    assert kinds(world.plan()) == ["StopSandbox"]
    world.step()
    assert kinds(world.plan()) == ["EnsureVolume", "StartSandbox"]


def test_a_run_whose_dead_owner_was_started_again_goes_on_at_once() -> None:
    world = running()
    lost = {"epoch": 1, "role": "runner", "reason": "Interrupted", "message": "", "counts_double": False}
    world.apply(a.Report("end", T.ATTEMPT_ENDED, lost))
    assert world.state.strikes == 1
    assert kinds(world.plan()) == ["RaiseEpoch"]


@pytest.mark.rule("R6")
def test_attempts_without_a_safe_point_count_double_and_are_bounded() -> None:
    world = running()
    world.spec = a_spec(max_attempts=2)
    world.apply(a.Report("end", T.ATTEMPT_ENDED, {"epoch": 1, "role": "runner", "reason": "X", "message": "m"}))
    assert world.state.strikes == 2
    assert records(world.plan()) == [("RUN_FAILED", "CrashLoop")]
    (end,) = (r for r in world.plan().actions if isinstance(r, a.Report))
    told = "given up after 1 lost attempt (one that is lost before a checkpoint counts twice); the last ended with X: m"
    assert end.payload["message"] == told


def pauses(*reasons: str, progress: bool) -> list[int]:
    """How long each attempt that is lost so makes the next one wait (ms)."""
    world, found = running(), []
    world.spec = a_spec(max_attempts=100)
    for attempt, reason in enumerate(reasons, 1):
        if progress:
            world.report("cp", T.ITERATION_COMPLETE, {"iteration": attempt})
        lost = {"epoch": world.state.epoch, "role": "runner", "reason": reason, "message": ""}
        world.apply(a.Report(f"end{attempt}", T.ATTEMPT_ENDED, lost))
        found.append(world.plan().requeue_ms or 0)
        world.now += found[-1]
        while world.state.phase is RunPhase.RECOVERING:
            world.step()
    return found


@pytest.mark.rule("R6")
@pytest.mark.parametrize(("reason", "progress"), [("OOMKilled", True), ("NodeLost", False), ("OwnerLost", False)])
def test_attempts_that_got_on_or_were_lost_by_no_fault_of_theirs_make_the_next_wait_no_longer(
    reason: str, progress: bool
) -> None:
    assert pauses(*[reason] * 5, progress=progress) == [backoff_ms(f"u-1:{n}", 1) for n in range(1, 6)]


@pytest.mark.rule("R6")
def test_each_attempt_that_dies_without_a_safe_point_may_double_the_pause() -> None:
    assert pauses(*["OOMKilled"] * 5, progress=False) == [backoff_ms(f"u-1:{n}", n) for n in range(1, 6)]


@pytest.mark.rule("R6")
def test_a_loss_without_blame_isnt_waited_for_longer_itself_and_counts_in_the_next_pause_that_is() -> None:
    found = pauses("OOMKilled", "NodeLost", "OOMKilled", progress=False)
    assert found == [backoff_ms(f"u-1:{n}", tries) for n, tries in ((1, 1), (2, 1), (3, 3))]


def often_paused(times: int) -> World:
    """At work, after as many attempts as were stopped and went on."""
    world = running()
    for _ in range(times):
        for kind in (T.PAUSE_REQUESTED, T.PAUSED, T.RESUME_REQUESTED, T.RESUMED):
            world.note(kind, {"reason": "Command", "by": "ada"})
        while world.state.phase is RunPhase.RECOVERING:
            world.step()
    return world


@pytest.mark.rule("R6")
def test_attempts_that_were_paused_are_no_lost_ones_and_shorten_no_wait() -> None:
    world, waits = often_paused(5), []
    world.spec = a_spec(max_attempts=4)
    for attempt in (6, 7):
        lost = {"epoch": attempt, "role": "runner", "reason": "OOMKilled", "message": "m"}
        world.apply(a.Report(f"end{attempt}", T.ATTEMPT_ENDED, lost))
        plan = world.plan()
        waits.append(plan.requeue_ms)
        world.now += plan.requeue_ms or 0
        while world.state.phase is RunPhase.RECOVERING and world.state.strikes < 4:
            world.step()
    assert waits[0] == backoff_ms("u-1:6", 1)
    (end,) = (r for r in plan.actions if isinstance(r, a.Report))
    assert str(end.payload["message"]).startswith("given up after 2 lost attempts (one that")


@pytest.mark.rule("R6")
def test_a_run_that_was_often_paused_waits_as_long_as_another() -> None:
    world = often_paused(5)
    world.spec = a_spec(max_attempts=100)
    for attempt in range(6, 10):
        lost = {"epoch": attempt, "role": "runner", "reason": "OOMKilled", "message": ""}
        world.apply(a.Report(f"end{attempt}", T.ATTEMPT_ENDED, lost))
        wait = world.plan().requeue_ms or 0
        assert wait == backoff_ms(f"u-1:{attempt}", attempt - 5)
        world.now += wait
        while world.state.phase is RunPhase.RECOVERING:
            world.step()


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


# --- a sandbox that its node doesn't start ----------------------------------------------------------------------------


def on_its_node(**changes: Any) -> tuple[World, SandboxView]:
    world = provisioning()
    view = world.sandbox("runner")
    assert view
    world.set_pod(view, node="n1", created_at=world.now, **changes)
    seen = world.sandbox("runner")
    assert seen
    return world, seen


def test_what_its_node_is_busy_with_is_told_after_half_a_minute() -> None:
    world, _ = on_its_node(unprepared=True)
    early = world.plan()
    assert (early.reason, early.requeue_ms) == ("Provisioning", 30_000)
    world.now += 30_000
    plan = world.plan()
    assert (plan.reason, plan.actions) == ("SlowStart", ())
    for part in ("30 s", "node n1", "sandbox, network or volumes", "kubectl describe pod -n "):
        assert part in plan.message
    status = project(world.observed(), plan, AgentRunStatus(), world.now)
    ready = next(c for c in status.conditions if c.type == "SandboxReady")
    assert (status.reason, ready.status, ready.reason) == ("SlowStart", "False", "SlowStart")


def test_a_node_that_has_set_the_pod_up_is_busy_with_its_image() -> None:
    world, _ = on_its_node()
    world.now += 30_000
    assert "image" in world.plan().message


def test_what_is_known_by_name_is_told_as_that() -> None:
    world, _ = on_its_node(reason="ImagePullFailed", message="no such image", unprepared=True)
    world.now += 30_000
    assert (world.plan().reason, world.plan().message) == ("ImagePullFailed", "no such image")
