"""The matrix of kill points is whole: a point or a fault that is new, and has no test, fails here."""

import ast
import re
from pathlib import Path

from tests.contract.killpoint_places import ELSEWHERE, HERE, MATRIX, NOT_HERE, TOGETHER, packs, table

from moorage.points import Point
from moorage.testing.killpoints import Fault

TREES = [ast.parse(each.read_text()) for each in (Path(__file__).parents[1] / "contract").rglob("test_*.py")]


def decorators(test: str) -> str:
    """Of the test of that name; empty where there is none."""
    functions = [
        node for tree in TREES for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return " ".join(ast.unparse(each) for node in functions if node.name == test for each in node.decorator_list)


def test_every_fault_at_every_point_has_a_test() -> None:
    assert set(table()) == {(point, fault) for point in Point for fault in Fault}
    assert set(HERE).isdisjoint(NOT_HERE)


def test_each_of_these_tests_takes_its_cases_from_the_table() -> None:
    for test in ELSEWHERE:
        assert f"elsewhere({test!r})" in decorators(test)
    for fault, test in MATRIX.items():
        assert re.search(rf"here\([^)]*Fault\.{fault.name}\b", decorators(test)), (fault, test)


def test_packs_hold_every_point_once_and_no_two_of_one_boundary() -> None:
    for size in TOGETHER.values():
        found = packs(HERE, size)
        assert sorted(point for pack in found for point in pack) == sorted(HERE)
        for pack in found:
            assert len(pack) <= size
            assert len({point.partition("/")[0] for point in pack}) == len(pack)


def test_packs_of_few_points_are_few() -> None:
    assert packs([Point.PUSH_BEFORE], 8) == [(Point.PUSH_BEFORE,)]
    assert packs([Point.PUSH_BEFORE, Point.PUSH_WITHIN, Point.PUSH_AFTER], 8) == [
        (Point.PUSH_BEFORE,),
        (Point.PUSH_WITHIN,),
        (Point.PUSH_AFTER,),
    ]
    assert packs([], 8) == []
