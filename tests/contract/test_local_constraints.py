"""Constraints on real runs of the real program: an expression that stops one, and goes on warning once it is waived."""

import pytest
from tests.contract.counting_agent import STEPS
from tests.contract.local_machine import GRADES, Machine

from moorage.cli.exits import Exit

pytestmark = pytest.mark.timeout(240)

TWO = [{"name": "two-steps", "cel": "iterations < 2 || driver == 'codex'", "message": "two steps are enough"}]


@pytest.mark.rule("C3", "C4")
@pytest.mark.parametrize("machine", GRADES, indirect=True)
def test_an_expression_that_turns_false_pauses_the_run_at_its_safe_point(machine: Machine) -> None:
    machine.write(constraints={"maxIterations": 100, "custom": TWO})
    code, result, err = machine.run()
    assert (code, result["phase"], result["reason"]) == (Exit.PAUSED, "Paused", "Constraint"), err
    assert result["message"] == "constraint two-steps: two steps are enough; to go on, run its manifest again"
    assert machine.told("ITERATION_COMPLETE") in {2, 3}, "it was passed by no more than one"
    assert machine.told("CONSTRAINT_EVALUATED", '"constraint":"custom.two-steps"') == 1
    assert (
        "constraints: custom.two-steps: constraint two-steps: two steps are enough (GRACEFUL_EXIT)"
        in machine.timeline()
    )
    assert machine.silent()


@pytest.mark.rule("C2", "C4")
def test_one_that_only_warns_stops_nothing(machine: Machine) -> None:
    machine.write(constraints={"maxIterations": 100, "custom": [TWO[0] | {"onViolation": "Warn"}]})
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert machine.told("ITERATION_COMPLETE") == STEPS
    assert machine.told("CONSTRAINT_EVALUATED", '"action":"WARN_CONTINUE"') == 1


@pytest.mark.rule("C4")
@pytest.mark.parametrize(
    ("custom", "said"),
    [
        ({"name": "a", "cel": "iteration < 2"}, "constraints.custom a: iteration isn't known here"),
        ({"name": "a", "cel": "iterations > 2"}, "say what must stay true"),
        ({"name": "a", "entryPoint": "nobody"}, "no entry point nobody in the group moorage.constraints"),
    ],
)
def test_one_that_cant_be_meant_is_refused_before_anything_runs(
    machine: Machine, custom: dict[str, str], said: str
) -> None:
    machine.write(constraints={"custom": [custom]})
    code, _, err = machine.run()
    assert code not in {0, Exit.PAUSED}
    assert said in err
    assert machine.told("AGENT_STARTED") == 0
