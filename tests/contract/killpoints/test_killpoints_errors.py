"""What fails in earnest (a disk, the store, a host's connection) fails at every named point, over either store."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.contract.killpoint_places import here

from moorage.points import Point
from moorage.testing.killpoints import Fault

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(("fault", "points"), here(Fault.ERROR))
def test_an_error_there_is_survived(fire: Callable[..., Any], fault: Fault, points: Sequence[Point]) -> None:
    fire(fault, points)
