"""A runner of `moorage run` that is frozen (SIGSTOP): it is missed by its heartbeat, as on a cluster."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.contract.counting_agent import AGENT
from tests.contract.local_machine import BUBBLEWRAP, Machine

from moorage.sandbox.process import descendants

pytestmark = pytest.mark.timeout(240)

HASTY = """
import sys
import moorage.sandbox.process
from moorage.cli.main import main
moorage.sandbox.process.LEASE_MS = 12_000
sys.exit(main())
"""
"""The program, with a Lease of two heartbeats: two of the usual ones are more than anybody waits for a test."""
ONCE_SLOW = f"""
if [ ! -e "$HOME/been-here" ]; then touch "$HOME/been-here"; sleep 600; fi
{AGENT}
"""


def at_work(machine: Machine) -> bool:
    return bool(list((machine.state / "runs").glob("*/volume/.moorage/agent/home/been-here")))


@pytest.mark.rule("F4")
@pytest.mark.parametrize("isolated", [pytest.param(True, marks=BUBBLEWRAP), False], ids=["bubblewrap", "plain"])
def test_a_frozen_runner_is_missed_by_its_heartbeat(tmp_path: Path, isolated: bool) -> None:
    machine = Machine(tmp_path, isolated, program=(sys.executable, "-c", HASTY))
    machine.write(agent=ONCE_SLOW, recovery={"maxAttempts": 20})
    try:
        process = machine.start()
        while not (at_work(machine) and machine.told("ATTEMPT_STARTED")):  # one that isn't heard of yet has two minutes
            assert process.poll() is None
            time.sleep(0.05)
        runners = machine.processes_of("moorage.runner")
        for each in {*runners, *(below for runner in runners for below in descendants(runner))}:
            with contextlib.suppress(ProcessLookupError):  # a git of the runner's that has ended meanwhile
                os.kill(each, signal.SIGSTOP)
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert machine.told("ATTEMPT_ENDED", "OwnerLost") >= 1
        machine.whole()
    finally:
        machine.close()
