"""The soft stop: asked for, carried out, held and taken back."""

from dataclasses import replace
from typing import Any

import pytest
from tests.property.run_world import START, T, World, a_spec, drive
from tests.run_plans import kinds, provisioning, records, running, started, verifying

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedTimeouts, Role
from moorage.core.constraints.context import lived_ms
from moorage.core.run import actions as a
from moorage.core.run.observed import SandboxPhase
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.plan import decide
from moorage.core.scheduling.explain import Slots

HOUR = 3_600_000


def steps(world: World, passes: int = 12) -> World:
    """The operator alone, until it has nothing more to do."""
    for _ in range(passes):
        if not world.plan().actions:
            break
        world.step()
    return world


def runner_obeys(world: World, outcome: str = "paused") -> None:
    """It reports, and exits by itself."""
    world.report("end", T.AGENT_FINISHED, {"outcome": outcome, "reason": "Paused"})
    view = world.sandbox("runner")
    assert view
    world.set_pod(view, phase=SandboxPhase.ENDED)


def paused(world: World | None = None, **spec: Any) -> World:
    world = world or running(**spec)
    world.suspend = True
    world.step()
    runner_obeys(world)
    return steps(world)


# --- to the stop ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("C3", "Q5")
def test_a_suspended_run_stops_at_its_safe_point_and_lets_go_of_all_but_its_volume():
    world = running()
    world.suspend = True
    assert records(world.plan()) == [("PAUSE_REQUESTED", "Suspended")]
    world.step()
    assert world.state.pausing
    assert world.state.phase is RunPhase.RUNNING
    plan = world.plan()
    assert (plan.actions, plan.reason) == ((), "Pausing")
    runner_obeys(world)
    steps(world)
    assert world.state.phase is RunPhase.PAUSED
    assert (world.pods, world.lease, world.volume) == ({}, None, True)
    plan = world.plan()
    assert (plan.actions, plan.requeue_ms, plan.reason) == ((), None, "Suspended")
    assert world.state.strikes == 0


@pytest.mark.rule("C3")
def test_what_was_taken_back_goes_on_under_the_next_epoch_as_no_lost_attempt():
    world = paused()
    world.report("answer", T.MODEL_RESPONSE, {"usage": {"output_tokens": 7}})
    world.suspend = False
    assert records(world.plan()) == [("RESUMED", "Suspended")]
    world.step()
    assert world.state.phase is RunPhase.RECOVERING
    assert world.plan().actions == (a.RaiseEpoch(2, 2, "Resumed"),)
    world.step()
    assert (world.state.phase, world.state.pause) == (RunPhase.PROVISIONING, None)
    end = drive(world)
    assert end.phase is RunPhase.SUCCEEDED
    assert (end.strikes, end.attempt, end.usage.output_tokens) == (0, 2, 7)


@pytest.mark.rule("Q5")
def test_a_runner_that_doesnt_stop_is_stopped_once_its_grace_is_over():
    world = running(timeouts=ResolvedTimeouts(pause_ms=60_000))
    world.suspend = True
    world.step()
    world.now += 60_000
    assert kinds(world.plan()) == []
    world.now += 60_000
    plan = world.plan()
    assert kinds(plan) == ["StopSandbox"]
    assert isinstance(plan.actions[0], a.StopSandbox)
    assert plan.actions[0].grace_ms > 0
    steps(world)
    assert (world.state.phase, world.state.strikes) == (RunPhase.PAUSED, 0)


@pytest.mark.rule("Q5")
@pytest.mark.parametrize("there", [provisioning, started])
def test_what_has_not_begun_has_nothing_to_finish(there: Any):
    world = there()
    world.suspend = True
    world.step()
    if there is started:
        runner_obeys(world)
    steps(world)
    assert (world.state.phase, world.pods) == (RunPhase.PAUSED, {})
    world.suspend = False
    assert drive(world).phase is RunPhase.SUCCEEDED


@pytest.mark.rule("C3")
def test_a_sandbox_that_dies_on_its_way_to_the_stop_is_no_lost_attempt():
    world = running()
    world.ask_to_pause()
    view = world.sandbox("runner")
    assert view
    world.set_pod(view, phase=SandboxPhase.ENDED, reason="OOMKilled")
    steps(world)
    assert (world.state.phase, world.state.strikes) == (RunPhase.PAUSED, 0)


def test_a_run_that_waits_for_its_next_attempt_is_paused_at_once():
    world = running()
    view = world.sandbox("runner")
    assert view
    world.set_pod(view, phase=SandboxPhase.ENDED, reason="Evicted")
    world.step()
    assert world.state.phase is RunPhase.RECOVERING
    world.suspend = True
    steps(world)
    assert (world.state.phase, world.state.strikes) == (RunPhase.PAUSED, 2)
    world.suspend = False
    assert drive(world).phase is RunPhase.SUCCEEDED


@pytest.mark.rule("C3")
def test_what_the_agent_completes_on_the_way_goes_on_to_its_verdict():
    world = running()
    world.suspend = True
    world.step()
    world.finish()
    end = drive(world)
    assert (end.phase, end.pauses) == (RunPhase.SUCCEEDED, 0)


def gone_on_after_a_rejection(world: World) -> None:
    """The agent is done, its result is not accepted, and the operator does what follows from that."""
    world.finish()
    steps(world)
    verifier = world.sandbox("verifier")
    assert verifier
    world.run_pod(verifier)
    world.judge(passed=False)
    for _ in range(12):
        if world.state.phase is RunPhase.PAUSED or world.state.epoch > 1:
            break
        world.step()


@pytest.mark.rule("C3", "N4")
@pytest.mark.parametrize(("reason", "goes_on"), [("Command", True), ("Approval", True), ("Constraint", False)])
def test_a_pause_that_came_to_nothing_stops_no_later_attempt(reason: str, goes_on: bool):
    world = running(acceptance_rounds=1)
    world.ask_to_pause(reason)
    gone_on_after_a_rejection(world)
    assert (world.state.rounds, world.state.pause is None) == (1, goes_on)
    assert world.state.phase is (RunPhase.PROVISIONING if goes_on else RunPhase.PAUSED)


@pytest.mark.rule("C3", "B3")
def test_what_stops_a_run_by_itself_is_asked_anew_of_the_attempt_that_follows():
    world = running(acceptance_rounds=1)
    world.ask_to_pause()
    world.suspend = True
    gone_on_after_a_rejection(world)
    assert world.state.pause
    assert (world.state.phase, world.state.pause.reason) == (RunPhase.PAUSED, "Suspended")


def test_a_run_whose_agent_is_done_is_not_paused():
    world = verifying()
    world.suspend = True
    assert world.plan().actions == ()
    assert world.ask_to_pause() is False


def test_a_pause_that_nobody_asked_for_is_a_lost_attempt():
    world = running()
    runner_obeys(world)
    assert [kind for kind, _ in records(world.plan())] == ["ATTEMPT_ENDED"]


@pytest.mark.rule("E4", "Q5")
def test_effects_are_settled_before_a_run_is_paused_and_not_for_ever():
    world = running()
    intent = {"effect_id": "e1", "kind": "http", "key": "k", "target": "t", "level": "opaque"}
    world.report("i", T.EFFECT_INTENT, intent)
    world.report("d", T.EFFECT_DISPATCHED, {"effect_id": "e1"})
    world.ask_to_pause(kill=True)
    world.remote.away = True
    world.step()
    assert kinds(world.plan()) == ["Deliver"]
    world.now += ResolvedTimeouts().settle_ms
    assert [kind for kind, _ in records(world.plan())] == ["EFFECT_RECONCILED", "PAUSED"]
    world.step()
    assert [e.status for e in world.state.effects] == ["unknown"]
    assert world.state.phase is RunPhase.PAUSED


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("C2", "C3")
def test_the_wall_clock_kills_at_once_and_pauses():
    world = running(limits=ResolvedLimits(wall_clock_ms=50_000))
    world.now = START + 10_000
    assert (world.plan().requeue_ms or HOUR) <= 40_000
    world.now = START + 50_000
    assert records(world.plan()) == [("PAUSE_REQUESTED", "BudgetExhausted")]
    world.step()
    plan = world.plan()
    assert plan.actions == (a.StopSandbox("pod-1-runner-0", "uid-1", "Paused", 0),)
    assert (plan.requeue_ms or 0) > 100
    steps(world)
    plan = world.plan()
    assert (world.state.phase, plan.reason) == (RunPhase.PAUSED, "BudgetExhausted")
    assert '{"spec": {"constraints": {"wallClock": "100s"}}}' in plan.message


@pytest.mark.rule("C3", "F5")
def test_the_wall_clock_stands_while_a_run_is_paused_and_the_deadline_goes_on():
    world = paused(limits=ResolvedLimits(wall_clock_ms=50_000), timeouts=ResolvedTimeouts(deadline_ms=3 * HOUR))
    before = lived_ms(world.state, world.now)
    world.now += 2 * HOUR
    assert lived_ms(world.state, world.now) == before
    assert world.plan().reason == "Suspended"
    world.suspend = False
    steps(world)
    assert world.state.phase is RunPhase.PROVISIONING
    assert lived_ms(world.state, world.now) == before
    world.suspend = True
    steps(world)
    assert world.state.phase is RunPhase.PAUSED
    world.now += HOUR
    assert records(world.plan()) == [("RUN_FAILED", "DeadlineExceeded")]


@pytest.mark.rule("X3", "C3")
def test_a_cancel_ends_a_paused_run():
    world = paused()
    world.cancel = True
    end = drive(world)
    assert end.phase is RunPhase.CANCELLED


@pytest.mark.rule("C3", "B3")
@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (ResolvedLimits(tokens_hard=7), ResolvedLimits(tokens_hard=8)),
        (ResolvedLimits(cost_hard_micros=70), ResolvedLimits(cost_hard_micros=71)),
        (ResolvedLimits(max_iterations=1), ResolvedLimits(max_iterations=2)),
    ],
)
def test_a_raise_of_the_limit_that_was_used_up_goes_on_by_itself(limits: ResolvedLimits, wanted: ResolvedLimits):
    world = running(limits=limits)
    world.report("answer", T.MODEL_RESPONSE, {"usage": {"output_tokens": 7, "cost_micros": 70}})
    world.report("done", T.ITERATION_COMPLETE, {"iteration": 1})
    runner_obeys(world, "exhausted")
    steps(world)
    plan = world.plan()
    assert (world.state.phase, plan.actions, plan.reason) == (RunPhase.PAUSED, (), "BudgetExhausted")
    assert "kubectl patch ar fix -n team-a" in plan.message
    world.wanted = limits
    assert world.plan().actions == ()
    world.wanted = wanted
    assert [kind for kind, _ in records(world.plan())] == ["LIMITS_RAISED", "RESUMED"]
    end = drive(world)
    assert (end.phase, end.usage.output_tokens, end.strikes) == (RunPhase.SUCCEEDED, 7, 0)


@pytest.mark.rule("B3")
def test_a_limit_is_raised_while_the_run_works_and_never_lowered():
    world = running(limits=ResolvedLimits(tokens_hard=7, max_iterations=3))
    world.wanted = ResolvedLimits(tokens_hard=5, max_iterations=4, cost_hard_micros=1)
    assert records(world.plan()) == [("LIMITS_RAISED", "")]
    world.step()
    spec = world.observed().spec
    assert spec is not None
    assert spec.limits == ResolvedLimits(tokens_hard=7, max_iterations=4)
    assert world.plan().actions == ()
    world.wanted = ResolvedLimits(tokens_hard=7, max_iterations=3)
    assert world.plan().actions == ()


def test_a_budget_that_only_the_driver_knows_of_waits_for_a_word_or_for_any_raise():
    for raised in (False, True):
        world = running(limits=ResolvedLimits(tokens_hard=7))
        runner_obeys(world, "exhausted")
        steps(world)
        assert world.plan().reason == "BudgetExhausted"
        assert world.plan().actions == ()
        if raised:
            world.wanted = ResolvedLimits(tokens_hard=8)
        else:
            world.ask_to_go_on()
        assert drive(world).phase is RunPhase.SUCCEEDED


def asks_for_too_much(world: World) -> None:
    """As the gateway's judge does for four megabytes where three are left."""
    violation = {"constraint": "egress", "holds": False, "action": "GRACEFUL_EXIT", "reason": "r", "message": "m"}
    world.note(T.CONSTRAINT_EVALUATED, {"action": "GRACEFUL_EXIT", "validations": [violation], "asking": {}})
    asked = {"reason": "BudgetExhausted", "by": "limits", "message": "m", "limit": "egress_hard_bytes"}
    world.note(T.PAUSE_REQUESTED, asked)
    runner_obeys(world)
    steps(world)


@pytest.mark.rule("B3", "C3")
def test_what_was_refused_too_much_at_once_waits_for_its_own_limit_to_be_raised():
    limits = ResolvedLimits(egress_hard_bytes=8_000_000, tokens_hard=7)
    world = running(limits=limits)
    world.wanted = ResolvedLimits(egress_hard_bytes=9_000_000)  # before the pause: it was too little already
    world.step()
    asks_for_too_much(world)
    for wanted in (world.wanted, ResolvedLimits(egress_hard_bytes=9_000_000, tokens_hard=8)):
        world.wanted = wanted
        steps(world)
        assert (world.state.phase, world.plan().reason) == (RunPhase.PAUSED, "BudgetExhausted")
        assert "constraints" in world.plan().message
    world.wanted = ResolvedLimits(egress_hard_bytes=12_000_000)
    assert drive(world).phase is RunPhase.SUCCEEDED


@pytest.mark.rule("B3")
def test_a_raise_on_the_way_to_the_stop_is_not_lost():
    world = running(limits=ResolvedLimits(egress_hard_bytes=8))
    world.note(T.PAUSE_REQUESTED, {"reason": "BudgetExhausted", "by": "limits", "limit": "egress_hard_bytes"})
    world.wanted = ResolvedLimits(egress_hard_bytes=9)
    assert records(world.plan()) == [("LIMITS_RAISED", "")]
    world.step()
    runner_obeys(world)
    assert drive(world).phase is RunPhase.SUCCEEDED


def test_a_raise_before_its_agent_found_its_own_budget_used_up_is_no_word_to_go_on():
    world = running(limits=ResolvedLimits(tokens_hard=7))
    world.wanted = ResolvedLimits(tokens_hard=8)
    world.step()
    runner_obeys(world, "exhausted")
    steps(world)
    assert (world.state.phase, world.plan().actions) == (RunPhase.PAUSED, ())


# --- what holds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["Command", "Constraint"])
def test_what_somebody_has_asked_for_holds_until_somebody_asks_to_go_on(reason: str):
    world = running()
    world.ask_to_pause(reason)
    runner_obeys(world)
    steps(world)
    world.now += HOUR
    assert (world.plan().actions, world.plan().reason) == ((), reason)
    assert world.plan().message.endswith("to go on: kubectl moorage resume fix -n team-a")
    world.spec = world.spec.model_copy(update={"placement": "local"})
    assert world.plan().message.endswith("to go on, run its manifest again")
    world.ask_to_go_on()
    assert drive(world).phase is RunPhase.SUCCEEDED


def test_a_word_to_go_on_that_comes_before_the_stop_is_not_lost():
    world = running()
    world.ask_to_pause()
    world.ask_to_go_on()
    runner_obeys(world)
    end = drive(world)
    assert (end.phase, end.pauses, end.attempt) == (RunPhase.SUCCEEDED, 1, 2)


def test_of_two_causes_each_holds():
    world = paused()
    assert world.ask_to_pause("Command")
    world.suspend = False
    assert world.plan().reason == "Command"
    world.suspend = True
    world.ask_to_go_on()
    assert world.plan().reason == "Suspended"
    world.suspend = False
    assert drive(world).phase is RunPhase.SUCCEEDED


@pytest.mark.rule("Q5")
def test_who_makes_room_stops_at_its_safe_point_and_goes_on_once_there_is_a_slot():
    world = running()
    plan = decide(replace(world.observed(), makes_room_for="urgent"), world.now)
    assert records(plan) == [("PAUSE_REQUESTED", "Suspended")], "an operator of before lets such a run go on"
    for action in plan.actions:
        world.apply(action)
    assert world.plan().reason == "Pausing"
    assert "makes room for urgent" in world.plan().message
    runner_obeys(world)
    while world.state.phase is not RunPhase.PAUSED:
        world.step()
    waits = decide(replace(world.observed(), slots=Slots(free=False, tenant="t")), world.now)
    assert (records(waits), waits.reason) == ([], "Queued")
    assert records(world.plan()) == [("RESUMED", "Preempted")]
    end = drive(world)
    assert (end.phase, end.attempt, end.strikes) == (RunPhase.SUCCEEDED, 2, 0)


@pytest.mark.rule("C6")
def test_a_run_that_may_go_on_waits_for_a_slot():
    world = paused()
    world.suspend = False
    full = replace(world.observed(), slots=Slots(free=False))
    plan = decide(full, world.now)
    assert (plan.actions, plan.reason) == ((), "Queued")
    assert records(world.plan()) == [("RESUMED", "Suspended")]


def test_it_can_be_paused_again_before_it_has_gone_on():
    world = paused()
    world.suspend = False
    world.step()
    assert world.state.phase is RunPhase.RECOVERING
    world.suspend = True
    steps(world)
    assert (world.state.phase, world.state.pauses) == (RunPhase.PAUSED, 2)


@pytest.mark.rule("I5", "S2")
def test_a_paused_run_takes_no_new_work():
    world = paused()
    for kind, payload in (
        (T.MODEL_REQUEST, {}),
        (T.EPOCH_RAISED, {"epoch": 9, "attempt": 9}),
        (T.PAUSED, {}),
    ):
        with pytest.raises(IllegalMove):
            world.note(kind, payload)
    before = world.state
    world.note(T.ATTEMPT_ENDED, {"epoch": 1, "role": Role.RUNNER.value, "reason": "Late"})
    assert world.state.strikes == before.strikes
    assert world.state.phase is RunPhase.PAUSED


def test_nothing_is_paused_or_resumed_that_has_no_attempt():
    world = World(spec=a_spec())
    for kind in (T.PAUSE_REQUESTED, T.PAUSED, T.RESUME_REQUESTED, T.RESUMED):
        with pytest.raises(IllegalMove):
            world.note(kind, {"reason": "Command", "by": "x"})


# --- a broken journal -------------------------------------------------------------------------------------------------


def repaired(world: World, status: str) -> World:
    """What came last is lost, whatever it was; the store's row is what it was."""
    doubt = {"generation": 2, "epoch": world.state.epoch, "status": status, "usage": {}, "effects": [], "why": "torn"}
    world.note(T.JOURNAL_REPAIRED, doubt)
    world.pods.clear()
    return world


def lost_on_the_way() -> World:
    world = running()
    view = world.sandbox("runner")
    assert view
    world.set_pod(view, phase=SandboxPhase.ENDED, reason="Evicted")
    return steps(world, passes=1)


def suspended() -> World:
    world = running()
    world.note(T.PAUSE_REQUESTED, {"reason": "Suspended", "by": "spec"})
    return world


@pytest.mark.rule("I1", "C3")
@pytest.mark.parametrize("there", [running, provisioning, lost_on_the_way, suspended])
def test_a_run_that_stood_still_before_its_journal_broke_goes_on_by_a_word_alone(there: Any):
    world = steps(repaired(there(), "PAUSED"))
    assert (world.state.phase, world.state.epoch) == (RunPhase.PAUSED, 1)
    world.now += HOUR
    plan = world.plan()
    assert (plan.actions, plan.reason) == ((), "Command")
    assert "the records of why are lost" in plan.message
    world.ask_to_go_on()
    assert drive(world).phase is RunPhase.SUCCEEDED


@pytest.mark.rule("I1")
def test_a_run_that_worked_before_its_journal_broke_works_on():
    world = repaired(running(), "RUNNING")
    assert world.state.pause is None
    end = drive(world)
    assert (end.phase, end.pauses) == (RunPhase.SUCCEEDED, 0)


@pytest.mark.rule("I1", "C3")
def test_what_is_still_known_of_a_pause_stays_as_it_was_said():
    world = running()
    world.ask_to_pause("Constraint")
    steps(repaired(world, "PAUSED"))
    assert (world.state.phase, world.plan().reason) == (RunPhase.PAUSED, "Constraint")
