"""Whether a command is taken on, by the run's state and by what its driver can do."""

from dataclasses import replace
from typing import Any

import pytest

from moorage.api.commands import CommandRequest
from moorage.api.runcommand import RunCommandSpec
from moorage.core.commands.admission import POLICIES, Abilities, Accepted, Rejected, decide
from moorage.core.commands.command import digest_of
from moorage.core.run.phases import LIVE, TERMINAL, RunPhase
from moorage.core.run.state import AgentEnd, End, RunState

ALL = Abilities(steer=True, follow_up=True, safe_points=True)
NONE = Abilities()
RUNNING = RunState(phase=RunPhase.RUNNING, offset=10, epoch=1)
MESSAGES = ("Steer", "FollowUp")


def asked(kind: str, **more: Any) -> CommandRequest:
    return CommandRequest.model_validate({"command_id": "c1", "type": kind, **more})


def why(kind: str, state: RunState = RUNNING, can: Abilities = ALL, **more: Any) -> str:
    """The reason of a rejection; empty where it is accepted."""
    decision = decide(asked(kind, **more), state, can)
    if isinstance(decision, Rejected):
        assert decision.message
        return decision.reason
    assert isinstance(decision, Accepted)
    return ""


def test_every_type_has_its_policies() -> None:
    assert set(POLICIES) == set(RunCommandSpec.model_fields["type"].annotation.__args__)  # type: ignore[union-attr]


@pytest.mark.rule("M2")
@pytest.mark.parametrize("kind", sorted(set(POLICIES) - {"Resolve"}))
@pytest.mark.parametrize("phase", sorted(TERMINAL))
def test_after_the_end_it_is_late(kind: str, phase: RunPhase) -> None:
    over = replace(RUNNING, phase=phase, end=End("X", "", None, 1))
    assert why(kind, over) == "RunEnded"


@pytest.mark.rule("M2", "I5")
@pytest.mark.parametrize("kind", sorted(set(POLICIES) - {"Resolve", "Cancel"}))
def test_a_run_that_is_being_cancelled_takes_nothing_on(kind: str) -> None:
    assert why(kind, replace(RUNNING, phase=RunPhase.CANCELLING, cancel_stage="requested")) == "Cancelling"


@pytest.mark.rule("X3")
def test_a_second_cancel_is_taken_on_and_an_effect_may_be_resolved_whenever() -> None:
    cancelling = replace(RUNNING, phase=RunPhase.CANCELLING, cancel_stage="requested")
    assert why("Cancel", cancelling) == ""
    for state in (RUNNING, cancelling, replace(RUNNING, phase=RunPhase.FAILED, end=End("X", "", None, 1))):
        assert why("Resolve", state) == ""


@pytest.mark.parametrize(
    ("kind", "can", "reason"),
    [
        ("Steer", NONE, "DriverCannotSteer"),
        ("Steer", Abilities(follow_up=True), "DriverCannotSteer"),
        ("FollowUp", Abilities(steer=True), "DriverCannotFollowUp"),
        ("FollowUp", Abilities(follow_up=True), ""),
        ("Checkpoint", Abilities(steer=True, follow_up=True), "NoSafePoint"),
        ("Checkpoint", Abilities(safe_points=True), ""),
    ],
)
def test_a_driver_is_asked_for_what_it_can_do(kind: str, can: Abilities, reason: str) -> None:
    assert why(kind, can=can) == reason


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("phase", sorted(LIVE | {RunPhase.QUEUED, RunPhase.RECOVERING}))
def test_an_agent_hears_as_long_as_it_may_decide_something(kind: str, phase: RunPhase) -> None:
    over = phase in {RunPhase.VERIFYING, RunPhase.DELIVERING}
    assert why(kind, replace(RUNNING, phase=phase)) == ("AgentFinished" if over else "")


@pytest.mark.parametrize(
    ("outcome", "reason"), [("completed", "AgentFinished"), ("failed", "AgentFinished"), ("unknown", "")]
)
def test_an_agent_that_has_said_its_last_word_hears_nothing_more(outcome: str, reason: str) -> None:
    assert why("Steer", replace(RUNNING, agent_end=AgentEnd(outcome, "X", "", "", 0, 1))) == reason


@pytest.mark.parametrize("kind", ["Approve", "Reject"])
def test_nothing_waits_for_an_approval(kind: str) -> None:
    assert why(kind, approval="push") == "NothingToApprove"


@pytest.mark.parametrize(("seen", "reason"), [(None, ""), (0, ""), (10, ""), (11, "OffsetUnknown")])
def test_nobody_has_seen_more_than_there_is(seen: int | None, reason: str) -> None:
    assert why("Cancel", observed_offset=seen) == reason


@pytest.mark.rule("M2", "R8")
def test_a_command_is_known_by_what_is_asked_and_by_whom() -> None:
    one = asked("Steer", text="use tabs", issuer="ada", authority="a", surface="s", input_source="i")
    elsewhere = one.model_copy(update={"authority": "b", "surface": "", "input_source": "RunCommand"})
    assert digest_of(elsewhere) == digest_of(one)
    for other in ({"text": "use spaces"}, {"issuer": "bob"}, {"type": "FollowUp"}, {"observed_offset": 3}):
        assert digest_of(one.model_copy(update=other)) != digest_of(one)
