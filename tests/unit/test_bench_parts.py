"""Parts of the bench: each has its place in the page, and its figures are put together as they were taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from e2e.bench import __main__ as bench
from e2e.bench import leases, takeover
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
