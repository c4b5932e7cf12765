"""`moorage run` killed (SIGKILL) at every named point of the process that owns the run, gateway and store in it."""

from collections.abc import Callable
from typing import Any

import pytest

from moorage.points import Point
from moorage.testing.killpoints import Fault
from moorage.testing.torture import Reference

pytestmark = pytest.mark.timeout(240)  # each case starts the program two or three times

RUNNER = ("worktree/", "checkpoint/", "safe-point/", "proposal/", "result/", "acceptance/")
NOT_HERE = {
    Point.MODEL_STREAM,  # this job's agent doesn't stream
    Point.EGRESS_BEFORE,  # nor does it reach any other host
    Point.EGRESS_WITHIN,
    Point.EGRESS_AFTER,
    Point.SEAL_BEFORE,  # nothing of a run that succeeded is kept to be released
    Point.SEAL_AFTER,
    Point.RELEASE_BEFORE,
    Point.RELEASE_AFTER,
}
OWNERS = [point for point in Point if not point.startswith(RUNNER) and point not in NOT_HERE]


def test_every_point_is_passed_by_the_undisturbed_run(undisturbed: Reference) -> None:
    assert undisturbed.outcome.phase == "Succeeded"
    assert set(Point) - set(undisturbed.points) == NOT_HERE


@pytest.mark.rule("K1", "R7", "J3", "I4", "E1")
@pytest.mark.parametrize("point", OWNERS)
def test_killed_there_it_goes_on_and_finishes_once(fire: Callable[..., Any], point: Point) -> None:
    assert fire(point, Fault.KILL).starts == 2
