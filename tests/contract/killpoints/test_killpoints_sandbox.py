"""A sandbox killed (SIGKILL) at every named point of runner and verifier: its owner starts another attempt."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.killpoint_places import RUNNERS

from moorage.points import Point
from moorage.testing.killpoints import Fault

pytestmark = pytest.mark.timeout(240)


@pytest.mark.rule("K1", "R1", "R3", "P5", "I4")
@pytest.mark.parametrize("point", RUNNERS)
def test_killed_there_the_same_process_ends_the_run_once(fire: Callable[..., Any], point: Point) -> None:
    assert fire(point, Fault.KILL).starts == 1
