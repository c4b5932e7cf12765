"""What a run is doing, in the words of a list."""

from dataclasses import replace

import pytest

from moorage.core.run.doing import STANDING, doing
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import (
    AgentEnd,
    AttemptEnd,
    Deferral,
    Effect,
    End,
    Pause,
    PauseReason,
    PauseStage,
    RunState,
)

WORKING = RunState(phase=RunPhase.RUNNING, agent_started_at=1)
PAUSE = Pause(PauseReason.SUSPENDED, "spec", "", 1)
SENT = Effect("e", "http_request", "k", "host", "dispatched")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RunState(), "admitted"),
        (RunState(phase=RunPhase.PROVISIONING), "sandbox starts"),
        (RunState(phase=RunPhase.RUNNING), "prepares its worktree"),
        (WORKING, "works"),
        (replace(WORKING, effects=(SENT,)), "1 effect under way"),
        (replace(WORKING, agent_end=AgentEnd("completed", "Completed", "", "", 0, 1)), "agent completed"),
        (replace(WORKING, pause=PAUSE), "stops: Suspended"),
        (RunState(phase=RunPhase.PAUSED, pause=replace(PAUSE, stage=PauseStage.PAUSED)), "waits: Suspended"),
        (RunState(phase=RunPhase.RECOVERING, last_loss=AttemptEnd(1, "NodeLost", "", 1)), "after NodeLost"),
        (RunState(phase=RunPhase.PROVISIONING, deferral=Deferral("BranchTaken", "", 0, 1, 1)), "waits: BranchTaken"),
        (RunState(phase=RunPhase.VERIFYING), "runs acceptance"),
        (RunState(phase=RunPhase.DELIVERING), "pushes"),
        (replace(WORKING, phase=RunPhase.CANCELLING, cancel_stage="propagated"), "cancel propagated"),
        (replace(WORKING, phase=RunPhase.FAILED, end=End("AgentFailed", "", None, 1)), "AgentFailed"),
    ],
)
def test_a_state_is_told_in_a_few_words(state: RunState, words: str) -> None:
    assert doing(state, asking=False) == words


def test_an_agent_that_waits_for_its_model_is_told_as_such() -> None:
    assert doing(WORKING, asking=True) == "asks its model"
    assert doing(RunState(phase=RunPhase.VERIFYING), asking=True) == STANDING[RunPhase.VERIFYING]
