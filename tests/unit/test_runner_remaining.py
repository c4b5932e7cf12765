"""C7: the file that says what is left."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moorage.api.budget import Budget, ResolvedConstraint, ResolvedLimits
from moorage.runner.disk import bytes_below
from moorage.runner.remaining import Remaining, first, percent, wants_disk


@pytest.mark.rule("C7")
def test_nothing_left_is_0_and_unlimited_is_null(tmp_path: Path) -> None:
    budget = Budget(left={"tokens": 0, "cost": 1_250_000, "effects": 3}, ends_at=0, warnings=("soon",))
    Remaining(file := tmp_path / "remaining.json", budget).write()
    assert json.loads(file.read_text()) == {
        "iterations": None,
        "tokens": 0,
        "cost_micros": 1_250_000,
        "tool_calls": None,
        "effects": 3,
        "egress_bytes": None,
        "disk_bytes": None,
        "human_approvals": None,
        "cost": "1.25",
        "ends_at": "1970-01-01T00:00:00Z",
        "warnings": ["soon"],
        "exhausted": None,
    }


def test_the_file_is_another_one_each_time_that_something_changed(tmp_path: Path) -> None:
    remaining = Remaining(file := tmp_path / "remaining.json", Budget(left={"tokens": 5}))
    remaining.write()
    before = file.stat().st_ino
    remaining.hear(Budget(left={"tokens": 5}))
    remaining.hear(None)
    assert file.stat().st_ino == before, "a reader that waits for news gets none"
    remaining.hear(Budget(left={"tokens": 4}))
    assert (file.stat().st_ino != before, json.loads(file.read_text())["tokens"]) == (True, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["remaining.json"]


@pytest.mark.parametrize("name", ["remaining.json", "remaining.new"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_nothing_that_an_agent_puts_in_its_place_holds_up_or_ends_the_runner(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    Remaining(file := tmp_path / "remaining.json", Budget(left={"tokens": 5})).write()
    assert json.loads(file.read_text())["tokens"] == 5


def test_a_folder_in_its_place_is_moved_aside_however_large(tmp_path: Path) -> None:
    """To remove it would hold up all that the runner does."""
    file = tmp_path / "remaining.json"
    (file / "deep").mkdir(parents=True)
    (file / "deep" / "large").write_text("x")
    Remaining(file, Budget(left={"tokens": 5})).write()
    assert json.loads(file.read_text())["tokens"] == 5
    (aside,) = (path for path in tmp_path.iterdir() if path != file)
    assert (aside / "remaining.json" / "deep" / "large").read_text() == "x"


def test_a_place_that_cant_be_written_costs_the_agent_its_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file where the folder was")
    remaining = Remaining(file := tmp_path / "own" / "remaining.json", Budget(left={"tokens": 5}))
    remaining.write()
    (tmp_path / "own").unlink()
    remaining.write()
    assert json.loads(file.read_text())["tokens"] == 5, "it is written once it can be"


@pytest.mark.rule("R8")
def test_an_older_gateway_tells_of_two_and_no_limit_is_taken_for_none() -> None:
    limits = ResolvedLimits(max_iterations=3, tokens_hard=10, effects_hard=0)
    assignment: Any = SimpleNamespace(budget=None, limits=limits, tokens_used=12)
    assert first(assignment, 1).left == {"iterations": 2, "tokens": 0, "effects": 0}
    assignment.budget = Budget(left={"tokens": 4})
    assert first(assignment, 1).left == {"tokens": 4}


@pytest.mark.rule("N6")
@pytest.mark.parametrize(
    ("used", "left", "counted", "share"),
    [
        ({"tokens": 40}, {"tokens": 60}, {}, 40),
        ({"tokens": 40, "iterations": 9, "cost": 1}, {"tokens": 60, "iterations": 1, "cost": 99}, {}, 90),
        ({"cost": 7}, {"cost": 3}, {}, 70),
        ({"tokens": 40}, {}, {"tokens": 40}, 0),
        ({"tokens": 12}, {"tokens": 0}, {}, 100),
        ({}, {"tokens": 0}, {}, 0),
        ({"effects": 9}, {"effects": 1}, {}, 0),
        ({"iterations": 1}, {"iterations": 9}, {"iterations": 5}, 50),
    ],
)
def test_how_much_is_used_of_what_is_nearest(
    used: dict[str, int], left: dict[str, int], counted: dict[str, int], share: int
) -> None:
    assert percent(Budget(used=used, left=left), counted) == share


@pytest.mark.rule("N6", "X2")
def test_what_children_have_is_none_that_the_agent_has_used() -> None:
    given = Budget(used={"tokens": 410}, given={"tokens": 400}, left={"tokens": 590})
    assert percent(given, {"tokens": 10}) == 1
    assert percent(given, {"tokens": 20}) == 2


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (ResolvedLimits(tokens_hard=5), False),
        (ResolvedLimits(disk_soft_bytes=5), True),
        (ResolvedLimits(custom=(ResolvedConstraint(name="a", cel="tokens < 5"),)), False),
        (ResolvedLimits(custom=(ResolvedConstraint(name="a", cel="diskBytes < 5"),)), True),
        (ResolvedLimits(custom=(ResolvedConstraint(name="a", entry_point="b"),)), True),
    ],
)
def test_the_disk_is_measured_where_somebody_looks(limits: ResolvedLimits, wanted: bool) -> None:
    assert wants_disk(limits) is wanted


def test_bytes_are_those_of_files_and_not_of_what_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "a" / "link").symlink_to("/usr")
    assert 100_000 <= bytes_below(tmp_path / "a", tmp_path / "gone") < 200_000
