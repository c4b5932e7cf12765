"""Processes of a run that are held up, or stopped (SIGSTOP) and woken, at every named point, over either store."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.contract.killpoint_places import here

from moorage.points import Point
from moorage.testing.killpoints import Fault

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(("fault", "points"), here(Fault.DELAY, Fault.STOP))
def test_held_up_there_it_ends_as_if_undisturbed(
    fire: Callable[..., Any], fault: Fault, points: Sequence[Point]
) -> None:
    assert fire(fault, points).starts == 1
