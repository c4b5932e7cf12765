"""Events of warnings: of soft limits that are passed, and of constraints that warn."""

from typing import Literal

import pytest

from moorage.api.meta import Condition
from moorage.api.runstatus import AgentRunStatus
from moorage.controller.events import told


@pytest.mark.rule("B3", "C2")
def test_a_warning_is_an_event_once() -> None:
    def within(status: Literal["True", "False"], reason: str, message: str) -> AgentRunStatus:
        condition = Condition(type="WithinBudget", status=status, reason=reason, message=message)
        return AgentRunStatus(phase="Running", reason="Running", conditions=(condition,))

    calm, warned = within("True", "WithinLimits", ""), within("True", "SoftLimitPassed", "tokens")
    assert list(told(calm, warned)) == [("Warning", "SoftLimitPassed", "tokens")]
    assert list(told(warned, warned)) == list(told(warned, calm)) == []
    assert list(told(warned, within("True", "SoftLimitPassed", "tokens; cost")))
    assert list(told(warned, within("False", "TokensExhausted", "all"))) == [], "the pause tells"
