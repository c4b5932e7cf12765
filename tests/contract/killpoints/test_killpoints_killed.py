"""Processes of a run killed (SIGKILL) at every named point, over either store.

They are the process that owns the run, with gateway and store in it, or a sandbox: runner or verifier.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.contract.births import Births
from tests.contract.killpoint_places import NOT_HERE, RUNNERS, here

from moorage.core.run.result import MAX_VERIFIER_LOSSES
from moorage.points import Point
from moorage.testing.killpoints import Fault, Shot
from moorage.testing.torture import Reference, Rig

pytestmark = pytest.mark.timeout(500)  # each case starts the program up to seven times


def test_every_point_is_passed_by_the_undisturbed_run(undisturbed: Reference) -> None:
    assert undisturbed.outcome.phase == "Succeeded"
    assert set(Point) - set(undisturbed.points) == NOT_HERE


@pytest.mark.rule("K1", "R1", "R3", "R7", "P5", "J3", "J11", "I4", "E1", "E4", "E6")
@pytest.mark.parametrize(("fault", "points"), here(Fault.KILL))
def test_killed_there_it_goes_on_and_finishes_once(
    fire: Callable[..., Any], fault: Fault, points: Sequence[Point]
) -> None:
    """Where it is a sandbox that dies, the same process ends the run."""
    owners = set(points) - RUNNERS
    assert fire(fault, points).starts == 1 + len(owners)


@pytest.mark.rule("K1", "R7", "V3")
@pytest.mark.parametrize("rig", ["sqlite"], indirect=True)
def test_killed_four_times_while_it_is_verified_it_is_not_given_up(
    rig: Rig, undisturbed: Reference, births: Births
) -> None:
    shots = [Shot(Point.VERDICT_BEFORE, number) for number in range(1, MAX_VERIFIER_LOSSES + 2)]
    verdict = births.loop.run(rig.trial("disturbed", shots, undisturbed))
    assert not verdict.findings, ([str(each) for each in verdict.findings], verdict.said)
    assert verdict.shots == tuple(shots)
    assert verdict.outcome == undisturbed.outcome
