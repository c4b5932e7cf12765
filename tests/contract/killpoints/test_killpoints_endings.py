"""Killed (SIGKILL) at the points of a cancel, of what is let go of after a run, and of an answer that streams."""

import asyncio
import functools
import signal
import tempfile
import time
from pathlib import Path

import pytest
from tests.contract.local_machine import Machine

from moorage.core.run.result import MAX_VERIFIER_LOSSES
from moorage.points import Point
from moorage.testing.benches import STREAMING, small
from moorage.testing.killpoints import Shot, environment, fired
from moorage.testing.owner import PROGRAM
from moorage.testing.torture import Executed, Reference, Rig

pytestmark = pytest.mark.timeout(240)

KILLED = -signal.SIGKILL


def armed(machine: Machine, point: Point) -> tuple[Path, Shot]:
    """What the machine starts from here on is killed there."""
    trace, shot = machine.root / "trace", Shot(point)
    machine.armed = environment(trace, shot)
    return trace, shot


@pytest.mark.rule("K1", "X1", "R7")
@pytest.mark.parametrize("point", [point for point in Point if point.startswith("cancel")])
def test_killed_within_a_cancel_it_is_finished_and_nothing_runs_on(machine: Machine, point: Point) -> None:
    machine.write(agent="echo begun > all.txt; sleep 600")
    trace, shot = armed(machine, point)
    process = machine.start()
    while not machine.processes_of("sleep"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert fired(trace, shot)
    assert (process.returncode == KILLED) == point.startswith("cancel/"), "the others are the runner's"
    machine.armed = {}
    machine.write()
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert machine.told("RUN_CANCELLED") == machine.told("RUN_SUCCEEDED") == 1
    assert machine.told("CANCEL_PROPAGATED") <= 1
    assert machine.silent()


@pytest.mark.rule("K1", "W5", "J7")
@pytest.mark.parametrize("point", [Point.SEAL_BEFORE, Point.SEAL_AFTER, Point.RELEASE_BEFORE, Point.RELEASE_AFTER])
def test_killed_while_an_ended_run_is_let_go_of_it_goes_all_the_same(machine: Machine, point: Point) -> None:
    machine.write(check="false", retention={"ttlAfterFinished": "4s"})
    code, failed, err = machine.run()
    assert (code, failed["reason"]) == (1, "AcceptanceFailed"), err
    kept = machine.state / "runs" / failed["uid"]
    assert kept.is_dir()
    time.sleep(4)  # its retention: past it is past it, however late
    machine.write()
    trace, shot = armed(machine, point)
    process = machine.start()
    process.communicate(timeout=120)
    assert process.returncode == KILLED
    assert fired(trace, shot)
    machine.armed = {}
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert not kept.exists()
    assert machine.told("TOMBSTONE") == machine.told("RUN_SUCCEEDED") == machine.told("RUN_FAILED") == 1
    assert list((machine.state / "owners").iterdir()) == []
    assert machine.silent()


@pytest.mark.rule("K1", "R2")
def test_killed_while_an_answer_streams_it_asks_again_and_finishes_once() -> None:
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        rig = Rig(functools.partial(small, Path(folder), agent=STREAMING), start=Executed(PROGRAM))
        undisturbed = asyncio.run(rig.reference())
        times = undisturbed.points[Point.MODEL_STREAM]
        shots = [Shot(Point.MODEL_STREAM, 1), Shot(Point.MODEL_STREAM, times // 2), Shot(Point.MODEL_STREAM, times)]
        verdict = asyncio.run(rig.trial("disturbed", shots, undisturbed))
    assert not verdict.findings, ([str(each) for each in verdict.findings], verdict.said)
    assert verdict.shots == tuple(shots)
    assert verdict.starts == len(shots) + 1


@pytest.mark.rule("K1", "R7", "V3")
def test_killed_four_times_while_it_is_verified_it_is_not_given_up(rig: Rig, undisturbed: Reference) -> None:
    shots = [Shot(Point.VERDICT_BEFORE, number) for number in range(1, MAX_VERIFIER_LOSSES + 2)]
    verdict = asyncio.run(rig.trial("disturbed", shots, undisturbed))
    assert not verdict.findings, ([str(each) for each in verdict.findings], verdict.said)
    assert verdict.shots == tuple(shots)
    assert verdict.outcome == undisturbed.outcome
