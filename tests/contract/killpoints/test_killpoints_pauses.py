"""Killed, failing, held up and stopped on the way to a pause and back from it."""

from collections.abc import Sequence

import pytest
from tests.contract.commanded_run import commanded
from tests.contract.killpoint_places import elsewhere
from tests.contract.killpoints.test_killpoints_commands import woken
from tests.contract.killpoints.test_killpoints_endings import KILLED, Armed
from tests.contract.local_machine import Machine

from moorage.cli.exits import Exit
from moorage.points import Point
from moorage.testing.killpoints import Fault

pytestmark = pytest.mark.timeout(300)


@pytest.mark.rule("K1", "C3", "I4")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_a_pause_it_is_finished_and_the_run_goes_on_from_there")
)
def test_whatever_befalls_a_pause_it_is_finished_and_the_run_goes_on_from_there(
    machine: Machine, fault: Fault, points: Sequence[Point]
) -> None:
    """Whoever dies on the way back was told of the raised limit, or is told again."""
    armed = Armed(machine, fault, points)
    machine.write(constraints={"maxIterations": 2})
    codes = [armed.ended(machine.start())]
    while codes[-1] != Exit.PAUSED:
        codes.append(armed.ended(machine.start()))
    assert machine.told("ITERATION_COMPLETE") == 2
    machine.write(constraints={"maxIterations": 100})
    codes.append(armed.ended(machine.start()))
    while codes[-1] != 0:
        codes.append(armed.ended(machine.start()))
    assert armed.met
    assert codes.count(KILLED) == (len(points) if fault is Fault.KILL else 0)
    assert machine.told("PAUSE_REQUESTED") == machine.told("RESUMED") == machine.told("LIMITS_RAISED") == 1
    assert machine.told("RUN_SUCCEEDED") == 1
    machine.armed = {}
    machine.whole()


@pytest.mark.rule("K1", "Q5")
@pytest.mark.parametrize(("fault", "points"), elsewhere("test_whatever_befalls_a_runner_that_pauses_the_run_is_paused"))
async def test_whatever_befalls_a_runner_that_pauses_the_run_is_paused(
    machine: Machine, fault: Fault, points: Sequence[Point]
) -> None:
    async with commanded(machine) as run:
        armed = Armed(machine, fault, points)
        async with woken(armed):
            process = await run.begun()
            assert (await run.said("pause", "steps"))[0] == 0
            run.go()
            assert (await run.ended(process))["phase"] == "Paused"
        assert armed.met
        assert machine.told("ATTEMPT_ENDED") == 0
        machine.armed = {}
        assert (await run.ended(machine.start()))["phase"] == "Succeeded"
        assert len(run.heard()) == 2
