"""N4: acceptance failed on what was proposed, and the run goes on, or ends, by facts."""

from typing import Any

import pytest
from tests.property.run_world import BASE, HEAD, T, World, a_spec
from tests.run_plans import records, running, started

from moorage.api.budget import ResolvedLimits
from moorage.api.meta import get_condition
from moorage.core.recovery.replays import state_hash
from moorage.core.run import actions as a
from moorage.core.run.conditions import conditions
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import replay
from moorage.core.run.state import RunState

TREES = ["c" * 40, "d" * 40, "e" * 40, "f" * 40]


def going(**spec: Any) -> World:
    world = running()
    world.spec = world.spec.model_copy(update={"acceptance_rounds": 2, **spec})
    return world


def rejected(
    world: World, tree: str = HEAD, failing: tuple[str, ...] = ("tests: FAIL: a",), reason: str = "Exited"
) -> None:
    """An agent ends, and its result is not accepted."""
    if world.state.agent_started_at is None or world.state.phase is not RunPhase.RUNNING:
        world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
        world.report("agent", T.AGENT_STARTED, {})
    world.report("end", T.AGENT_FINISHED, {"outcome": "completed", "reason": reason, "message": "it insists"})
    world.report("result", T.RESULT_PROPOSED, {"commit": tree, "tree": tree, "base": BASE, "empty": False, "files": 1})
    verdict = {"commit": tree, "passed": False, "isolated": True, "summary": "tests failed", "failing": [*failing]}
    world.report("verdict", T.VERIFICATION_RESULT, verdict)


def next_attempt(world: World) -> None:
    """The operator's way to it."""
    epoch = world.state.epoch
    for _ in range(12):
        world.step()
        runner = world.sandbox("runner")
        if world.state.end is not None or (world.state.epoch > epoch and runner is not None):
            break
    assert world.state.end is None
    assert world.state.epoch == epoch + 1
    runner = world.sandbox("runner")
    assert runner
    world.run_pod(runner)


@pytest.mark.rule("N4", "S2")
def test_a_rejected_result_is_gone_on_from_and_counts_no_loss() -> None:
    world = going()
    rejected(world)
    assert records(world.plan()) == [("ATTEMPT_ENDED", "AcceptanceFailed")]
    world.step()
    state = world.state
    assert (state.phase, state.rounds, state.strikes) == (RunPhase.RECOVERING, 1, 0)
    assert state.checkpoint
    assert (state.checkpoint.commit, state.checkpoint.tree) == (HEAD, HEAD), "it begins at what was proposed"
    assert (state.agent_end, state.proposal, state.verification) == (None, None, None)
    (raised,) = world.plan().actions
    assert raised == a.RaiseEpoch(2, 2, "AcceptanceFailed"), "and at once"
    next_attempt(world)
    world.work()
    assert world.state.phase is RunPhase.VERIFYING
    world.judge()
    world.step()
    world.step()
    assert world.state.phase is RunPhase.SUCCEEDED


def test_a_checkpoint_that_holds_what_was_proposed_stays() -> None:
    world = going()
    point = {"commit": BASE, "tree": HEAD, "iteration": 3, "ref": "r"}
    world.report("point", T.CHECKPOINT, point)
    rejected(world)
    world.step()
    assert world.state.checkpoint
    assert (world.state.checkpoint.commit, world.state.checkpoint.iteration) == (BASE, 3)


@pytest.mark.rule("N4")
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_so_many_rounds_and_no_more(rounds: int) -> None:
    world = going(acceptance_rounds=rounds)
    for done in range(rounds + 1):
        rejected(world, TREES[done], tuple(f"tests: FAIL: {n}" for n in range(9 - done)))
        if done < rounds:
            next_attempt(world)
    assert records(world.plan()) == [("RUN_FAILED", "AcceptanceFailed")]


def asked_to_pause(world: World) -> dict[str, Any]:
    """What the run is paused for, instead of its next round."""
    assert records(world.plan()) == [("ATTEMPT_ENDED", "AcceptanceFailed")]
    world.step()
    (asked,) = [r for r in world.plan().actions if isinstance(r, a.Report)]
    assert asked.type == "PAUSE_REQUESTED"
    return asked.payload


@pytest.mark.rule("N6", "C3")
def test_the_same_tree_again_is_no_progress_and_a_person_may_have_it_go_on() -> None:
    world = going()
    rejected(world)
    next_attempt(world)
    rejected(world)
    asked = asked_to_pause(world)
    assert asked["reason"] == "NoProgress"
    assert "proposed the same again" in asked["message"]
    assert "tests failed" in asked["message"]
    for _ in range(6):
        world.step()
    assert world.state.phase is RunPhase.PAUSED
    assert world.state.epoch == 2, "and no other attempt began"
    world.gateway.append("resume", T.RESUME_REQUESTED, {"by": "ada"}, world.state.epoch, world.now)
    next_attempt(world)
    assert world.state.pause is None


@pytest.mark.rule("N6")
def test_failures_that_get_no_less_pause_it_and_fewer_go_on() -> None:
    stuck, mending = going(acceptance_rounds=9), going(acceptance_rounds=9)
    for at, tree in enumerate(TREES[:3]):
        rejected(stuck, tree)
        rejected(mending, tree, tuple(f"tests: FAIL: {n}" for n in range(9 - at)))
        if at < 2:
            next_attempt(stuck)
            next_attempt(mending)
    assert asked_to_pause(stuck)["reason"] == "NoProgress"
    next_attempt(mending)


@pytest.mark.rule("N2")
def test_an_agent_that_insisted_gets_no_further_round() -> None:
    world = going()
    rejected(world, reason="NoProgress")
    assert asked_to_pause(world)["message"] == "it insists; acceptance failed: tests failed"


@pytest.mark.rule("N6", "C3")
def test_an_agent_that_was_ended_for_its_circles_is_paused() -> None:
    world = going()
    end = {"outcome": "failed", "reason": "NoProgress", "message": "`bash make` was called 10 times"}
    world.report("end", T.AGENT_FINISHED, end)
    assert records(world.plan()) == [("PAUSE_REQUESTED", "NoProgress")]


@pytest.mark.rule("B3", "N4")
@pytest.mark.parametrize("limits", [ResolvedLimits(cost_hard_micros=5), ResolvedLimits(tokens_hard=7)])
def test_no_round_begins_on_a_spent_budget(limits: ResolvedLimits) -> None:
    world = going(limits=limits)
    world.report("answer", T.MODEL_RESPONSE, {"usage": {"output_tokens": 7, "cost_micros": 5}})
    rejected(world)
    assert asked_to_pause(world)["reason"] == "BudgetExhausted"


@pytest.mark.rule("S1", "F2")
def test_a_crash_between_the_rejection_and_the_next_attempt_loses_nothing() -> None:
    world = going()
    rejected(world)
    for _ in range(3):
        world.step(crash_after=1)
    assert (world.state.rounds, world.state.epoch) == (1, 2)
    assert state_hash(replay(world.gateway.history)) == state_hash(world.state)


def test_a_state_that_knows_nothing_of_rounds_has_its_hash() -> None:
    assert "rounds" not in str(state_hash(RunState()))
    world = started()
    assert (world.state.rounds, world.state.rejected, world.state.failing) == (0, None, ())
    assert a_spec().acceptance_rounds == 0, "a run of an older version has none"


def test_people_see_that_it_was_not_accepted_and_goes_on() -> None:
    world = going()
    rejected(world)
    next_attempt(world)
    accepted = get_condition(conditions(world.observed(), world.plan(), "Running", ()), "Accepted")
    assert accepted
    assert (accepted.status, accepted.reason) == ("False", "AcceptanceFailed")
    assert accepted.message == f"not on {HEAD}; attempt 2 of 3 at it goes on from there"


def said(world: World, command_id: str = "f1", kind: str = "FollowUp") -> None:
    """A person's message is taken on."""
    told = {"command_id": command_id, "type": kind, "digest": "0" * 64, "issuer": "ada"}
    world.note(T.COMMAND_ACCEPTED, told)


def heard(world: World, command_id: str = "f1") -> None:
    world.report(f"heard-{command_id}", T.COMMAND_DELIVERED, {"command_id": command_id, "iteration": 1})


@pytest.mark.rule("M3", "N4")
def test_a_message_that_came_too_late_for_the_agent_is_heard_before_its_result_is_judged() -> None:
    world = going()
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    said(world)
    world.finish()
    assert records(world.plan()) == [("ATTEMPT_ENDED", "MessageUnheard")]
    world.step()
    s = world.state
    assert (s.phase, s.strikes, s.rounds, s.rejected) == (RunPhase.RECOVERING, 0, 0, None)
    assert s.checkpoint is not None
    assert s.checkpoint.tree == HEAD
    next_attempt(world)
    raised = [r.payload["reason"] for r in world.gateway.history if r.type == T.EPOCH_RAISED and r.payload]
    assert raised[-1] == "MessageUnheard"
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    heard(world)
    world.finish()
    assert ("ATTEMPT_ENDED", "MessageUnheard") not in records(world.plan())
    assert (world.state.commands[0].state, world.state.commands[0].reason) == ("Delivered", "")


@pytest.mark.rule("M3")
def test_a_message_that_a_whole_attempt_left_unheard_makes_no_further_one() -> None:
    world = going()
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    said(world)
    world.finish()
    world.step()
    assert world.state.commands[0].receipt().reason == "MessageUnheard"
    next_attempt(world)
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    world.finish()
    assert ("ATTEMPT_ENDED", "MessageUnheard") not in records(world.plan())


@pytest.mark.rule("M3", "B3")
def test_a_message_that_no_budget_is_left_for_stands_in_no_results_way() -> None:
    world = going(limits=ResolvedLimits(tokens_hard=0))
    world.report("started", T.ATTEMPT_STARTED, {"node": "n"})
    said(world)
    world.finish()
    assert ("ATTEMPT_ENDED", "MessageUnheard") not in records(world.plan())
    assert world.state.phase is RunPhase.VERIFYING
