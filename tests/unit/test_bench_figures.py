"""A figure's row says what it says: medians, the ratio beside its baseline, and whether the aim is met."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.bench.figures import TIMES, Aim, Figure, Report, sync_ms


@pytest.mark.parametrize(
    ("aim", "value", "ratio", "met"),
    [
        (Aim(30), 30.0, None, True),
        (Aim(30), 30.1, 9.0, False),
        (Aim(1.1, "ratio"), 900.0, 1.05, True),
        (Aim(1.1, "ratio"), 0.1, 1.2, False),
        (Aim(1.1, "ratio"), 0.1, None, None),
        (Aim(10_000, least=True), 9_999.0, None, False),
        (Aim(10_000, least=True), 10_000.0, None, True),
    ],
)
def test_an_aim_bounds_the_median_or_the_ratio(aim: Aim, value: float, ratio: float | None, met: bool | None) -> None:
    assert aim.met(value, ratio) is met


def test_a_row_has_median_range_count_ratio_and_verdict() -> None:
    row = Figure("pod exists", "ms", [30, 10, 50], [5, 10, 15], "bare pod", Aim(2, "ratio")).row()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["pod exists", "30 ms (10 to 50), 3", "bare pod: 10 ms (5 to 15), 3", f"3.00 {TIMES}"]
    assert cells[-1] == "**no**"


def test_a_figure_without_a_baseline_has_no_ratio() -> None:
    row = Figure("writes", "", [0], aim=Aim(0)).row()
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["writes", "0, 1", "—", "—", "≤ 0", "yes"]


def test_every_raw_sample_is_kept(tmp_path: Path) -> None:
    report = Report("part", [Figure("f", "s", [1, 2], [3])], ["nothing twice"], raw={"more": [4]})
    kept = json.loads(report.write(tmp_path / "raw", "a machine").read_text())
    assert (kept["figures"][0]["ours"], kept["figures"][0]["baseline"], kept["raw"]) == ([1, 2], [3], {"more": [4]})
    assert kept["machine"] == "a machine"


def test_the_disk_is_measured_and_left_clean(tmp_path: Path) -> None:
    assert sync_ms(tmp_path, count=3) > 0
    assert not list(tmp_path.iterdir())
