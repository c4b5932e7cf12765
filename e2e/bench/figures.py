"""What is measured, as plain data: samples beside those of a baseline, an aim, and what was checked beside."""

import json
import os
import platform
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Aim:
    """A bound on the median (`value`), or on the ratio of the medians (`ratio`); `least`: it is a lower bound."""

    limit: float
    of: Literal["value", "ratio"] = "value"
    least: bool = False

    def met(self, value: float, ratio: float | None) -> bool | None:
        """None where there is no baseline to divide by."""
        found = value if self.of == "value" else ratio
        if found is None:
            return None
        return found >= self.limit if self.least else found <= self.limit

    def text(self, unit: str) -> str:
        """As the table has it."""
        sign = "≥" if self.least else "≤"
        return f"{sign} {self.limit:.3g} {unit if self.of == 'value' else TIMES}".rstrip()


@dataclass(frozen=True)
class Figure:
    """One row. `ours` and `baseline` are raw samples in `unit`, taken in turn in one run."""

    name: str
    unit: str
    ours: Sequence[float]
    baseline: Sequence[float] = ()
    against: str = ""
    aim: Aim | None = None

    @property
    def ratio(self) -> float | None:
        """Of the medians."""
        return statistics.median(self.ours) / statistics.median(self.baseline) if self.baseline else None

    def row(self) -> str:
        """A line of the table."""
        ratio = self.ratio
        met = self.aim.met(statistics.median(self.ours), ratio) if self.aim else None
        cells = [
            self.name,
            _spread(self.ours, self.unit),
            f"{self.against}: {_spread(self.baseline, self.unit)}" if self.baseline else "—",
            f"{ratio:.2f} {TIMES}" if ratio is not None else "—",
            self.aim.text(self.unit) if self.aim else "—",
            {True: "yes", False: "**no**", None: "—"}[met],
        ]
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Report:
    """What one part found. `correct`: what was checked beside the figures; `notes`: what shares the machine."""

    part: str
    figures: Sequence[Figure]
    correct: Sequence[str]
    notes: Sequence[str] = ()
    raw: dict[str, Any] = field(default_factory=dict)

    def markdown(self, machine: str) -> str:
        """The part's table, with the facts that it can't be read without."""
        head = "| figure | median (range), n | baseline | ratio | aim | met |\n|---|---|---|---|---|---|"
        lines = [f"Measured {time.strftime('%Y-%m-%d', time.gmtime())} on {machine}.", ""]
        lines += [head, *(figure.row() for figure in self.figures), ""]
        lines += [f"- Checked beside: {'; '.join(self.correct)}."]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])

    def write(self, folder: Path, machine: str) -> Path:
        """Keep every raw sample."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.part}.json"
        path.write_text(json.dumps({"machine": machine, **asdict(self)}, indent=1) + "\n")
        return path


def _spread(samples: Sequence[float], unit: str) -> str:
    if not samples:
        return "—"
    middle = f"{_number(statistics.median(samples))} {unit}".rstrip()
    if len(samples) == 1:
        return f"{middle}, 1"
    return f"{middle} ({_number(min(samples))} to {_number(max(samples))}), {len(samples)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine(folder: Path) -> str:
    """Cores, kernel, versions, load, and what a 4 KiB write with fdatasync costs in `folder`."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in cpus if line.startswith("model name")), "?")
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return (
        f"{os.cpu_count()} cores ({model}), Linux {platform.release()}, fdatasync {sync_ms(folder):.2f} ms, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, git {git}, "
        f"load {os.getloadavg()[0]:.1f} at the start"
    )


def sync_ms(folder: Path, count: int = 200) -> float:
    """Median of a 4 KiB write and fdatasync, in milliseconds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fdatasync.probe"
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        samples = []
        for n in range(count):
            began = time.perf_counter()
            os.pwrite(handle, b"x" * 4096, n * 4096)
            os.fdatasync(handle)
            samples.append(time.perf_counter() - began)
    finally:
        os.close(handle)
        path.unlink()
    return statistics.median(samples) * 1e3
