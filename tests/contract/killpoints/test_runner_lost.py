"""A runner that is killed alone: its owner ends what it left before another attempt writes to the same tree."""

import os
import signal
import time

import pytest
from tests.contract.counting_agent import AGENT
from tests.contract.local_machine import Machine

pytestmark = pytest.mark.timeout(240)

HELD = f"""
if [ ! -e "$HOME/been-here" ]; then touch "$HOME/been-here"; sleep 600; fi
{AGENT}
"""


@pytest.mark.rule("W2", "X2", "R1")
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_what_a_killed_runner_left_has_ended_before_the_next_attempt(machine: Machine, stopped: bool) -> None:
    machine.write(agent=HELD)
    process = machine.start()
    while not machine.told("AGENT_STARTED") or not (agents := machine.processes_of("sleep")):
        time.sleep(0.01)
    if stopped:  # as it is while a checkpoint is taken
        os.kill(agents[0], signal.SIGSTOP)
    (runner,) = machine.processes_of("moorage.runner")
    os.kill(runner, signal.SIGKILL)
    while machine.told("EPOCH_RAISED") < 2:
        time.sleep(0.005)
    assert not set(agents) & set(machine.processes())
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    machine.whole()
