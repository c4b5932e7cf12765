"""Killed, failing, held up and stopped at the points of a cancel, of what is let go of after a run, and of an answer
that streams.
"""

import asyncio
import functools
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.contract.births import Births
from tests.contract.killpoint_places import RUNNERS, elsewhere
from tests.contract.local_machine import Machine

from moorage.points import Point
from moorage.testing.benches import STEPS, STREAMING, small
from moorage.testing.killpoints import Fault, Shot, environment, fired
from moorage.testing.torture import Rig, waken

pytestmark = pytest.mark.timeout(300)

KILLED = -signal.SIGKILL
HELD_UP = {Fault.DELAY, Fault.STOP}


class Armed:
    """What the machine starts from here on meets that fault at these points, once each."""

    def __init__(self, machine: Machine, fault: Fault, points: Sequence[Point]) -> None:
        self.trace = machine.root / "trace"
        self.shots = [Shot(point, fault=fault) for point in points]
        self._asleep = [shot for shot in self.shots if fault is Fault.STOP]
        machine.armed = environment(self.trace, *self.shots)

    @property
    def met(self) -> bool:
        """All of them."""
        return all(fired(self.trace, shot) for shot in self.shots)

    def ended(self, process: subprocess.Popen[str]) -> int:
        """Its exit code; whoever is stopped meanwhile goes on after a moment."""
        while process.poll() is None:
            for shot in [each for each in self._asleep if fired(self.trace, each)]:
                asyncio.run(waken(self.trace, shot))
                self._asleep.remove(shot)
            time.sleep(0.02)
        process.communicate()
        return process.returncode


@pytest.mark.rule("K1", "X1", "R7")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_a_cancel_it_is_finished_and_nothing_runs_on")
)
def test_whatever_befalls_a_cancel_it_is_finished_and_nothing_runs_on(
    machine: Machine, fault: Fault, points: Sequence[Point]
) -> None:
    machine.write(agent="echo begun > all.txt; sleep 600")
    armed = Armed(machine, fault, points)
    process = machine.start()
    while not machine.processes_of("sleep"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code = armed.ended(process)
    assert armed.met
    assert (code == KILLED) == (fault is Fault.KILL and not RUNNERS.issuperset(points))
    machine.armed = {}
    machine.write()
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert machine.told("RUN_CANCELLED") == machine.told("RUN_SUCCEEDED") == 1
    assert machine.told("CANCEL_PROPAGATED") <= 1
    assert machine.silent()


@pytest.mark.rule("K1", "W5", "J7")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_an_ended_run_that_is_let_go_of_it_goes_all_the_same")
)
def test_whatever_befalls_an_ended_run_that_is_let_go_of_it_goes_all_the_same(
    machine: Machine, fault: Fault, points: Sequence[Point]
) -> None:
    machine.write(check="false", retention={"ttlAfterFinished": "4s"})
    code, failed, err = machine.run()
    assert (code, failed["reason"]) == (1, "AcceptanceFailed"), err
    kept = machine.state / "runs" / failed["uid"]
    assert kept.is_dir()
    time.sleep(4)  # its retention: past it is past it, however late
    machine.write()
    armed, codes = Armed(machine, fault, points), list[int]()
    while 0 not in codes and len(codes) <= len(points):
        codes.append(armed.ended(machine.start()))
    assert armed.met
    assert codes[-1] == 0
    if fault is Fault.KILL:
        assert codes[:-1] == [KILLED] * len(points)
    if fault in HELD_UP:
        assert codes == [0]
    machine.armed = {}
    machine.write(name="later", branch="moorage/later")
    code, result, err = machine.run()  # what failed was left to the next start
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert not kept.exists()
    assert machine.told("TOMBSTONE") == machine.told("RUN_FAILED") == 1
    assert machine.told("RUN_SUCCEEDED") == 2
    assert list((machine.state / "owners").iterdir()) == []
    assert machine.silent()


@pytest.mark.rule("K1", "R2")
@pytest.mark.parametrize(
    ("fault", "points"), elsewhere("test_whatever_befalls_an_answer_that_streams_the_run_finishes_once")
)
def test_whatever_befalls_an_answer_that_streams_the_run_finishes_once(
    births: Births, fault: Fault, points: Sequence[Point]
) -> None:
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        rig = Rig(functools.partial(small, Path(folder), agent=STREAMING), start=births.start)
        undisturbed = births.loop.run(rig.reference())
        (point,) = points
        # an answer comes in as many parts as its gateway has time to look: in one at least, for each step
        shots = [Shot(point, number, fault) for number in range(1, STEPS + 1)]
        verdict = births.loop.run(rig.trial("disturbed", shots, undisturbed))
    assert not verdict.findings, ([str(each) for each in verdict.findings], verdict.said)
    assert verdict.shots == tuple(shots)
    assert verdict.starts == (len(shots) + 1 if fault is Fault.KILL else 1)
