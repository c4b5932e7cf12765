import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.run_world import BASE, HEAD, START, World, drive

from moorage.api.runstatus import BORN, AgentRunStatus
from moorage.api.wire import ResolvedOrigin
from moorage.core.run.actions import Plan, Verdict
from moorage.core.run.family import Share
from moorage.core.run.observed import Problem, SandboxPhase, SandboxView
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import replay
from moorage.core.run.state import (
    AgentEnd,
    AttemptEnd,
    Effect,
    End,
    Pause,
    Proposal,
    RunState,
    Usage,
    Verification,
    Violation,
)
from moorage.core.run.status import PROGRESS_MS, grade, project, usage, word, write_delay

LATER = START + 60_000
NOTHING = AgentRunStatus()
NO_PLAN = Plan()


def projected(state: RunState | None, plan: Plan = NO_PLAN, previous: AgentRunStatus = NOTHING, **changes: Any) -> Any:
    world = World()
    observed = replace(world.observed(), journal=state, **changes)
    return project(observed, plan, previous, START)


def truths(status: AgentRunStatus) -> dict[str, str]:
    return {c.type: c.status for c in status.conditions}


def reasons(status: AgentRunStatus) -> dict[str, str]:
    return {c.type: c.reason for c in status.conditions}


RUNNING = RunState(
    phase=RunPhase.RUNNING,
    offset=9,
    head="h",
    spec_hash="s",
    admitted_at=START,
    epoch=2,
    attempt=2,
    attempt_began_at=START,
    attempt_started=True,
    workspace_base=BASE,
    branch="moorage/fix",
    agent_started_at=START,
    iteration=3,
    usage=Usage(input_tokens=10, output_tokens=5, cost_micros=420_000),
)


def paused(reason: str) -> RunState:
    return replace(RUNNING, phase=RunPhase.PAUSED, pause=Pause(reason, "x", "because", START, stage="paused"))


def ended(phase: RunPhase, reason: str, **changes: Any) -> RunState:
    return replace(RUNNING, phase=phase, end=End(reason, "because", None, START), **changes)


@pytest.mark.parametrize(
    ("state", "ready", "reconciling", "stalled"),
    [
        (RunState(), "False", "True", "False"),
        (RUNNING, "False", "True", "False"),
        (paused("Suspended"), "False", "True", "False"),
        (paused("Command"), "False", "True", "False"),
        (paused("BudgetExhausted"), "False", "False", "True"),
        (paused("Constraint"), "False", "False", "True"),
        (ended(RunPhase.SUCCEEDED, "Completed"), "True", "False", "False"),
        (ended(RunPhase.FAILED, "CrashLoop"), "False", "False", "True"),
        (ended(RunPhase.CANCELLED, "Cancelled"), "False", "False", "True"),
    ],
)
def test_kstatus_reads_each_phase(state: RunState, ready: str, reconciling: str, stalled: str) -> None:
    plan = Plan(reason=state.pause.reason) if state.pause else Plan()
    found = truths(projected(state, plan))
    assert (found["Ready"], found["Reconciling"], found["Stalled"]) == (ready, reconciling, stalled)


def test_what_only_the_author_can_mend_is_stalled() -> None:
    plan = Plan(reason="UnknownDriver", message="known are: command")
    theirs = projected(RunState(), plan, problem=Problem("UnknownDriver", "known are: command", True))
    assert truths(theirs)["Stalled"] == "True"
    assert reasons(theirs)["Admitted"] == "UnknownDriver"
    ours = projected(RunState(), plan, problem=Problem("WorkspaceNotFound", "create it", False))
    assert truths(ours)["Stalled"] == "False"


def test_a_running_run_is_told_with_numbers() -> None:
    status = projected(RUNNING)
    assert (status.phase, status.epoch, status.attempt, status.iteration) == ("Running", 2, 2, 3)
    assert (status.usage.tokens, status.usage.cost) == (15, "0.42")
    assert (status.journal.offset, status.workspace.base, status.workspace.branch) == (9, BASE, "moorage/fix")


def test_the_gateways_absence_keeps_what_was_known() -> None:
    before = projected(RUNNING)
    away = projected(None, Plan(reason="GatewayUnavailable", message="can't be reached"), before)
    assert (away.phase, away.reason, away.epoch, away.usage) == ("Running", "GatewayUnavailable", 2, before.usage)
    assert truths(away)["Progressing"] == "Unknown"
    assert truths(away)["Admitted"] == "True"


def test_a_verdict_without_a_journal_is_an_end() -> None:
    status = projected(RunState(), Plan(verdict=Verdict("Cancelled", "Cancelled", "before it was admitted")))
    assert (status.phase, truths(status)["Succeeded"]) == ("Cancelled", "False")
    assert status.finished_at is not None


def test_a_transition_time_moves_only_with_its_status() -> None:
    first = projected(RUNNING)
    later = project(replace(World().observed(), journal=replace(RUNNING, iteration=9)), Plan(), first, LATER)
    assert {c.type: c.last_transition_time for c in later.conditions} == {
        c.type: c.last_transition_time for c in first.conditions
    }
    end = project(replace(World().observed(), journal=ended(RunPhase.FAILED, "X")), Plan(), later, LATER)
    moved = {c.type for c in end.conditions if c.last_transition_time != first.conditions[0].last_transition_time}
    assert {"Reconciling", "Stalled", "Succeeded"} <= moved
    assert "Admitted" not in moved


def judged(*, passed: bool = True, isolated: bool = True) -> RunState:
    return replace(RUNNING, verification=Verification(HEAD, passed, isolated, "1 failed"))


def pushed(status: str, detail: str = "") -> RunState:
    return replace(RUNNING, effects=(Effect("e", "git_push", "k", "t", status, detail),))


@pytest.mark.parametrize(
    ("state", "condition", "status", "reason"),
    [
        (judged(), "Accepted", "True", "Verified"),
        (judged(isolated=False), "Accepted", "True", "Unisolated"),
        (judged(passed=False), "Accepted", "False", "AcceptanceFailed"),
        (RUNNING, "Accepted", "Unknown", "NotVerified"),
        (pushed("intended"), "EffectsClosed", "False", "EffectsOpen"),
        (pushed("unknown"), "EffectsClosed", "False", "EffectUnknown"),
        (pushed("unknown"), "Delivered", "Unknown", "PushUnknown"),
        (pushed("confirmed"), "Delivered", "True", "Pushed"),
        (pushed("rejected", "ProtectedBranch: no"), "Delivered", "False", "ProtectedBranch"),
        (RUNNING, "WorkspaceReady", "True", "Ready"),
        (replace(RUNNING, phase=RunPhase.RECOVERING), "Owned", "False", "NoOwner"),
        (ended(RunPhase.FAILED, "BudgetExhausted"), "WithinBudget", "False", "BudgetExhausted"),
    ],
)
def test_conditions_are_the_truth(state: RunState, condition: str, status: str, reason: str) -> None:
    found = next(c for c in projected(state).conditions if c.type == condition)
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.rule("C2")
@pytest.mark.parametrize(
    ("action", "reason", "within"),
    [
        ("GRACEFUL_EXIT", "TokensExhausted", ("False", "TokensExhausted")),
        ("EMERGENCY_STOP", "Mine own!", ("False", "Mineown")),
        ("WARN_CONTINUE", "SoftLimitPassed", ("True", "SoftLimitPassed")),
    ],
)
def test_what_a_constraint_came_to_is_a_condition(action: str, reason: str, within: tuple[str, str]) -> None:
    violation = Violation("any", action, reason, "so much is used", START)
    status = projected(replace(RUNNING, violations=(violation,)))
    found = next(c for c in status.conditions if c.type == "WithinBudget")
    assert (found.status, found.reason, found.message) == (*within, "so much is used")


def test_what_was_used_is_told_in_full() -> None:
    used = Usage(cost_micros=2_500_000, effects=2, egress_bytes=3, human_approvals=5)
    told = projected(replace(RUNNING, usage=used, disk_bytes=4)).usage
    assert (told.cost_micros, told.cost, told.effects, told.egress_bytes, told.disk_bytes) == (
        2_500_000,
        "2.50",
        2,
        3,
        4,
    )
    assert told.human_approvals == 5


def test_a_waiting_sandbox_says_why() -> None:
    view = SandboxView("p", "u", 2, "runner", SandboxPhase.WAITING, "ImagePullFailed", "no such image")
    status = projected(RUNNING, sandboxes=(view,))
    assert reasons(status)["SandboxReady"] == "ImagePullFailed"


@pytest.mark.parametrize("said", [None, AgentEnd("completed", "Completed", "", "", 0, START)])
def test_a_sandbox_that_has_ended_lacks_a_result_only_where_its_agent_has_said_none(said: AgentEnd | None) -> None:
    view = SandboxView("p", "u", 2, "runner", SandboxPhase.ENDED, "SandboxEnded", "the sandbox ended without a result")
    told = projected(replace(RUNNING, agent_end=said), sandboxes=(view,))
    assert reasons(told)["SandboxReady"] == ("SandboxEnded" if said is None else "Ended")


@pytest.mark.rule("I7")
def test_a_lost_status_is_written_again_from_what_is_known() -> None:
    """At every step of a whole run: without the old status the new one says the same, but for when it first did."""
    world = World()
    status, seen = NOTHING, set()
    while world.state.end is None:
        drive(world, passes=1)
        status = project(world.observed(), world.plan(), status, world.now)
        again = project(world.observed(), world.plan(), NOTHING, world.now)
        undated = {"conditions": [], "finished_at": None}
        assert again.model_copy(update=undated) == status.model_copy(update=undated)
        assert (truths(again), reasons(again)) == (truths(status), reasons(status))
        seen.add(status.phase)
    assert {"Verifying", "Delivering", "Succeeded"} <= seen
    rebuilt = project(
        replace(world.observed(), journal=replay(world.gateway.history)), world.plan(), NOTHING, world.now
    )
    assert rebuilt == again


@pytest.mark.rule("R5")
def test_the_recovery_grade_is_what_was_proved() -> None:
    back = replace(RUNNING, recovered=True)
    assert grade(RUNNING) is None
    assert grade(replace(back, attempt_started=False)) == "R1"
    assert grade(replace(back, effects=(Effect("e", "git_push", "k", "t", "unknown"),))) == "R2"
    assert grade(back) == "R3"
    assert grade(replace(back, verification=Verification(HEAD, True, True, ""))) == "R4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("AgentFailed", "AgentFailed"), ("exit code 1", "ExitCode1"), ("a-b", "AB"), ("", ""), ("…", "")],
)
def test_a_reason_is_one_word_whatever_was_sent(text: str, expected: str) -> None:
    assert word(text) == expected


TEXT = st.text(max_size=5_000)


@given(TEXT, TEXT, TEXT, st.integers(0, 2**60))
@settings(max_examples=60, deadline=None)
def test_status_stays_below_32_kib_whatever_was_said(reason: str, message: str, summary: str, number: int) -> None:
    state = ended(
        RunPhase.FAILED,
        reason,
        agent_end=AgentEnd("failed", reason, message, summary, 1, START),
        last_loss=AttemptEnd(1, reason, message, START),
        verification=Verification(HEAD, False, True, message, None),
        effects=tuple(Effect(f"e{i}", "git_push", "k", message, "unknown", message) for i in range(50)),
        usage=Usage(input_tokens=number, cost_micros=number),
        proposal=Proposal(HEAD, HEAD, BASE, False, 1),
    )
    status = projected(replace(state, end=End(reason, message, None, START)), Plan(reason=reason, message=message))
    raw = json.dumps(status.wire(), ensure_ascii=False).encode()
    assert len(raw) < 32 * 1024


# --- when it is worth a write ----------------------------------------------------------------------------------------


def delay(old: AgentRunStatus, new: AgentRunStatus, last: int | None, now: int, ended_at: int | None = None) -> Any:
    end = AgentEnd("completed", "Completed", "", "", 0, ended_at) if ended_at is not None else None
    return write_delay(old, new, last, replace(RUNNING, agent_end=end), now)


def test_nothing_new_is_never_written() -> None:
    status = projected(RUNNING)
    assert delay(status, status, None, START) is None


def test_a_first_status_a_new_phase_a_new_reason_and_an_end_are_written_at_once() -> None:
    running = projected(RUNNING)
    provisioning = projected(replace(RUNNING, phase=RunPhase.PROVISIONING))
    assert delay(NOTHING, running, None, START) == 0
    assert delay(BORN, projected(RunState(), Plan(reason="Queued", message="position 2")), None, START) == 0
    assert delay(provisioning, running, START, START + 1) == 0
    told = provisioning.model_copy(update={"reason": "ImagePullFailed"})
    assert delay(provisioning, told, START, START + 1) == 0
    assert delay(running, projected(ended(RunPhase.SUCCEEDED, "Completed")), START, START + 1, START) == 0


@pytest.mark.parametrize("old", [NOTHING, BORN], ids=["no default", "default"])
def test_a_start_is_told_when_it_lasts_and_a_start_with_trouble_at_once(old: AgentRunStatus) -> None:
    state = replace(RUNNING, phase=RunPhase.PROVISIONING)
    starting = projected(state, previous=old)
    assert delay(old, starting, None, START + 1_000) == 9_000
    assert delay(old, starting, None, START + 10_000) == 0
    assert delay(old, projected(state, Plan(reason="Unschedulable", message="0/1 nodes"), old), None, START) == 0
    again = projected(replace(state, epoch=3), previous=starting)
    assert delay(starting, again, START, START + 1) == 0, "only the first start waits"


def test_a_run_that_nobody_has_looked_at_is_in_progress_to_kstatus() -> None:
    assert (BORN.phase, BORN.observed_generation) == ("Pending", None)
    assert truths(BORN) == {"Ready": "False", "Reconciling": "True", "Stalled": "False"}


def test_progress_alone_is_written_every_ten_seconds() -> None:
    running, further = projected(RUNNING), projected(replace(RUNNING, iteration=4, offset=12))
    assert delay(running, further, START, START + 1_000) == 9_000
    assert delay(running, further, START, START + 10_000) == 0


def test_a_condition_that_flips_on_the_way_waits_for_two_seconds() -> None:
    before, after = projected(replace(RUNNING, workspace_base=None)), projected(RUNNING)
    assert delay(before, after, START, START + 500) == 1_500


def test_the_steps_of_a_start_are_merged_into_the_agents_start() -> None:
    before = projected(replace(RUNNING, phase=RunPhase.PROVISIONING, workspace_base=None))
    after = projected(replace(RUNNING, phase=RunPhase.PROVISIONING))
    assert truths(before) != truths(after)
    assert delay(before, after, START, START + 3_000) == 7_000
    assert delay(after, projected(RUNNING), START, START + 3_000) == 0


def test_phases_that_a_run_only_passes_through_are_merged_into_its_end() -> None:
    running, verifying = projected(RUNNING), projected(replace(RUNNING, phase=RunPhase.VERIFYING))
    assert delay(running, verifying, START, START + 100, ended_at=START) == 1_900
    assert delay(running, verifying, START, START + 2_000, ended_at=START) == 0
    unknown = verifying.model_copy(update={"reason": "EffectUnknown"})
    assert delay(running, unknown, START, START + 100, ended_at=START) == 0


def test_a_whole_life_ends_in_a_status_that_says_so() -> None:
    world = World()
    drive(world)
    status = project(world.observed(), Plan(), NOTHING, world.now)
    assert (status.phase, status.result.commit if status.result else None) == ("Succeeded", HEAD)
    assert truths(status)["Delivered"] == "True"
    assert usage(world.state.usage).cost == "0.00"


@pytest.mark.rule("J6")
def test_a_signed_head_is_told_with_its_journal_and_asks_for_no_write_of_its_own() -> None:
    first = projected(RUNNING, signature="ed25519:a:1:b")
    assert first.journal.signature == "ed25519:a:1:b"
    assert projected(RUNNING, previous=first, signature="ed25519:a:1:b") == first
    assert projected(None, previous=first).journal == first.journal, "a gateway that is away takes nothing back"
    on = projected(replace(RUNNING, offset=10), previous=first, signature="ed25519:a:2:c")
    assert delay(first, on, LATER, LATER) == PROGRESS_MS


def test_what_a_person_resolved_is_told_with_who_said_it() -> None:
    known = pushed("confirmed", "resolved by ada: seen there").effects
    told = projected(ended(RunPhase.FAILED, "EffectUnknown", effects=known))
    closed = next(c for c in told.conditions if c.type == "EffectsClosed")
    assert (closed.status, closed.message) == ("True", "e confirmed, resolved by ada: seen there")
    open_still = projected(ended(RunPhase.FAILED, "EffectUnknown", effects=pushed("unknown").effects))
    asked = next(c for c in open_still.conditions if c.type == "EffectsClosed")
    assert "kubectl moorage resolve RUN e --confirmed|--rejected" in asked.message


@pytest.mark.rule("O2", "B3")
def test_a_run_that_goes_on_with_another_one_shows_what_its_session_has_used() -> None:
    assert projected(RUNNING).session is None
    spec = World().observed().spec
    assert spec is not None
    spec = spec.model_copy(update={"session_id": "u-0", "origin": ResolvedOrigin(uid="u-0", name="elder")})
    used = Usage(input_tokens=10, cost_micros=500_000, tool_calls=1)
    state = replace(RUNNING, usage=used, carried=Share(tokens=100, iterations=4, cost_micros=1_000_000))
    told = projected(state, spec=spec, iterations=2)
    assert (told.session.id, told.session.continues) == ("u-0", "elder")
    assert (told.session.tokens, told.session.iterations, told.session.cost, told.session.tool_calls) == (
        110,
        6,
        "1.50",
        1,
    )
    assert told.usage.tokens == 10, "its own"
