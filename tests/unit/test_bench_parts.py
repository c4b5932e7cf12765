"""Parts of the bench: each has its place in the page, and its figures are put together as they were taken."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from e2e.bench import __main__ as bench
from e2e.bench import leases, scale, takeover
from e2e.bench.leases import COUNTS, Meter
from e2e.cluster.processes import identify, write_pid_file


def test_every_part_has_one_place_in_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["bench", "nothing"]) == 2
    parts = capsys.readouterr().err.split("there are ")[1].strip().split(", ")
    page = bench.PAGE.read_text()
    assert {name: page.count(f"<!-- bench: {name} -->\n") for name in parts} == dict.fromkeys(parts, 1)


def test_a_meter_counts_a_processes_own_time(tmp_path: Path) -> None:
    process = identify(os.getpid())
    assert process is not None
    write_pid_file(tmp_path / "me.pid", process)
    meter, samples = Meter(tmp_path / "me.pid"), list[float]()
    with meter.into(samples):
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
    assert samples[0] >= 80


def test_renewals_stand_beside_reads_of_as_many_leases() -> None:
    found = leases.Found(told=1)
    for count in COUNTS:
        found.renewed[count], found.read[count] = [count * 3.0], [count * 1.5]
        found.etcd_renewed[count], found.etcd_read[count] = [2.0], [1.0]
    rows = [figure.row() for figure in leases._report(found).figures]
    assert len(rows) == 2 * len(COUNTS)
    assert all("2.00" in row for row in rows)


def test_a_takeover_stands_beside_a_start() -> None:
    found = takeover.Found(fresh=[1.0], python=[0.01], owner=[1.5], runner=[2.5], frozen=[60.0])
    owner, runner, frozen, fresh = (figure.row() for figure in takeover._report(found).figures)
    assert owner.endswith("| ≤ 2 s | yes |")
    assert runner.endswith("| ≤ 2 s | **no** |")
    assert "4.00" in frozen
    assert "100" in fresh


def test_turns_that_are_even_have_an_index_of_one() -> None:
    assert scale.jain([5, 5, 5]) == 1
    assert scale.jain([9, 0, 0]) == pytest.approx(1 / 3)


def test_a_crowd_of_runs_stands_beside_turns_without_a_pause(tmp_path: Path) -> None:
    found = scale.Found(
        imports_mib=50.0,
        idle_mib=75.0,
        queued_mib=100.0,
        end_mib=100.0,
        peak_mib=[120.0],
        lag_ms=[6.0],
        machine_lag_ms=[3.0],
        delays_s={"team-00": [10.0, 20.0], "team-01": [30.0, 40.0]},
        jain=0.5,
        ended_s=-(-scale.RUNS // scale.LIVE) * scale.HOLD_S * 1.5,
        writes=Counter({'api_writes resource="pods",verb="create"': scale.RUNS * 7}),
        again_s=[3.0],
        raw_s=[1.0],
    )
    report = scale.report(found)
    rows = {figure.name: figure.row() for figure in report.figures}
    assert "1.50" in next(iter(rows.values()))
    assert [name for name, row in rows.items() if row.endswith("| **no** |")] == [
        "… Jain's index of the tenants' turns, until half of the runs had theirs",
        "… API writes of the operator for each run, Events and Leases of the election apart",
    ]
    assert "pods create 7" in report.notes[0]
    assert json.loads(report.write(tmp_path, "here").read_text())["raw"]["writes"] == found.writes
