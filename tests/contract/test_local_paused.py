"""A run on this machine whose limit is used up: paused, told as that, and gone on with once the limit is raised."""

import pytest
from tests.contract.counting_agent import AGENT, STEPS
from tests.contract.local_machine import GRADES, Machine

from moorage.cli.exits import Exit

pytestmark = pytest.mark.timeout(240)


@pytest.mark.rule("C3", "B3", "I4")
@pytest.mark.parametrize("machine", GRADES, indirect=True)
def test_a_run_whose_limit_is_used_up_goes_on_once_it_is_raised(machine: Machine) -> None:
    machine.write(constraints={"maxIterations": 2, "wallClock": "10m"})
    code, result, err = machine.run()
    assert (code, result["phase"], result["reason"]) == (Exit.PAUSED, "Paused", "BudgetExhausted"), err
    assert "the run's iteration limit of 2 is used up (2)" in result["message"]
    assert "raise constraints.maxIterations in the manifest" in result["message"]
    assert machine.silent()

    code, again, err = machine.run()
    assert (code, again["uid"], again["message"]) == (Exit.PAUSED, result["uid"], result["message"]), err
    assert "which was paused after iteration 2" in err
    assert machine.told("ITERATION_COMPLETE") == 2

    machine.write(constraints={"maxIterations": 100, "wallClock": "20m"})
    code, ended, err = machine.run()
    assert (code, ended["uid"], ended["phase"]) == (0, result["uid"], "Succeeded"), err
    assert machine.told("ITERATION_COMPLETE") == STEPS
    assert machine.told("LIMITS_RAISED", '"max_iterations":100') == 1
    assert machine.told("PAUSED", '"type":"PAUSED"') == machine.told("RESUMED") == 1
    assert machine.told("ATTEMPT_ENDED") == 0
    machine.whole()
    shown = machine.timeline()
    assert "paused: nothing stands but the volume (BudgetExhausted" in shown
    assert "raised max iterations to 100" in shown


def test_a_run_that_is_paused_is_told_of_as_that_and_can_be_given_up(machine: Machine) -> None:
    machine.write(constraints={"maxIterations": 1})
    assert machine.run()[0] == Exit.PAUSED
    machine.write(name="other", branch="moorage/other")
    code, _, err = machine.run()
    assert (code, "run steps of" in err, "is paused" in err) == (0, True, True), err
    machine.write()
    code, result, err = machine.run("--fresh")
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert machine.told("RUN_CANCELLED") == 1


@pytest.mark.rule("C2", "C3", "F5")
def test_a_wall_clock_that_is_used_up_kills_and_pauses_and_stands_meanwhile(machine: Machine) -> None:
    machine.write(agent=f"{AGENT}\nsleep 600", constraints={"maxIterations": 100, "wallClock": "6s"})
    code, result, err = machine.run()
    assert (code, result["reason"]) == (Exit.PAUSED, "BudgetExhausted"), err
    assert "constraints.wallClock of 6 s is used up" in result["message"]
    assert not machine.processes_of("sleep")
    assert machine.silent()
