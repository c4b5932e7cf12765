"""The owner of a run, its journal in PostgreSQL, killed (SIGKILL) at the points that the store decides about, and at
those of its agent's orders from other hosts.

`make torture STORE=postgres` kills at all of them.
"""

from collections.abc import Callable
from typing import Any

import pytest

from moorage.points import Point
from moorage.testing.killpoints import Fault
from moorage.testing.torture import Reference

pytestmark = pytest.mark.timeout(240)

POINTS = [
    Point.ADMIT_WITHIN,
    Point.ADMIT_AFTER,
    Point.EPOCH_AFTER,
    Point.APPEND_BEFORE,
    Point.APPEND_WITHIN,
    Point.APPEND_AFTER,
    Point.EGRESS_BEFORE,
    Point.EGRESS_WITHIN,
    Point.EGRESS_AFTER,
    Point.PUSH_WITHIN,
    Point.TERMINAL_AFTER,
]


def test_the_same_points_are_passed_on_both_stores(undisturbed: Reference, undisturbed_on_postgres: Reference) -> None:
    assert set(undisturbed_on_postgres.points) == set(undisturbed.points)
    assert undisturbed_on_postgres.outcome == undisturbed.outcome


@pytest.mark.rule("K1", "J11", "R7", "J3", "E4", "E6")
@pytest.mark.parametrize("point", POINTS)
def test_killed_there_on_postgres_it_goes_on_and_finishes_once(
    fire_on_postgres: Callable[..., Any], point: Point
) -> None:
    assert fire_on_postgres(point, Fault.KILL).starts == 2
