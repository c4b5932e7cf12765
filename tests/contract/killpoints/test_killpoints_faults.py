"""Errors, delays and stops at named points: a sample by seed, the rest in `make torture`'s."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from moorage.points import Point
from moorage.testing.killpoints import Fault

pytestmark = pytest.mark.timeout(240)

NOT_HERE = ("seal/", "release/", "model/stream")
POINTS = [point for point in Point if not point.startswith(NOT_HERE)]
SAMPLE = 4


def sample(fault: Fault) -> list[Point]:
    return random.Random(f"4 {fault}").sample(POINTS, SAMPLE)


@pytest.mark.parametrize("point", sample(Fault.ERROR))
def test_an_error_there_is_survived(fire: Callable[..., Any], point: Point) -> None:
    fire(point, Fault.ERROR)


@pytest.mark.parametrize(
    ("point", "fault"), [(point, fault) for fault in (Fault.DELAY, Fault.STOP) for point in sample(fault)]
)
def test_held_up_there_it_ends_as_if_undisturbed(fire: Callable[..., Any], point: Point, fault: Fault) -> None:
    assert fire(point, fault).starts == 1
