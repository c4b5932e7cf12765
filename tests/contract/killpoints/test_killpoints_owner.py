"""`moorage run` killed (SIGKILL) at every named point of the process that owns the run, gateway and store in it."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.killpoint_places import NOT_HERE, OWNERS

from moorage.points import Point
from moorage.testing.killpoints import Fault
from moorage.testing.torture import Reference

pytestmark = pytest.mark.timeout(240)  # each case starts the program two or three times


def test_every_point_is_passed_by_the_undisturbed_run(undisturbed: Reference) -> None:
    assert undisturbed.outcome.phase == "Succeeded"
    assert set(Point) - set(undisturbed.points) == NOT_HERE


@pytest.mark.rule("K1", "R7", "J3", "I4", "E1", "E4", "E6")
@pytest.mark.parametrize("point", OWNERS)
def test_killed_there_it_goes_on_and_finishes_once(fire: Callable[..., Any], point: Point) -> None:
    assert fire(point, Fault.KILL).starts == 2
