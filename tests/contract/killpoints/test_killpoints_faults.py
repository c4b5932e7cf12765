"""Errors, delays and stops at named points: a sample by seed, the rest in `make torture`'s."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.killpoint_places import HERE

from moorage.points import Point
from moorage.testing.killpoints import Fault

pytestmark = pytest.mark.timeout(240)

SAMPLE = 4


HOSTS = "egress/"  # what fails there in earnest is a host's connection: tests of the gateway's egress break it


def sample(fault: Fault) -> list[Point]:
    mine = [point for point in HERE if fault is not Fault.ERROR or not point.startswith(HOSTS)]
    return random.Random(f"4 {fault}").sample(mine, SAMPLE)


@pytest.mark.parametrize("point", dict.fromkeys([*sample(Fault.ERROR), Point.ADMIT_BEFORE]))
def test_an_error_there_is_survived(fire: Callable[..., Any], point: Point) -> None:
    fire(point, Fault.ERROR)


@pytest.mark.parametrize(
    ("point", "fault"), [(point, fault) for fault in (Fault.DELAY, Fault.STOP) for point in sample(fault)]
)
def test_held_up_there_it_ends_as_if_undisturbed(fire: Callable[..., Any], point: Point, fault: Fault) -> None:
    assert fire(point, fault).starts == 1
