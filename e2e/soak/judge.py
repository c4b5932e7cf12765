"""What is wrong with a soaked gateway, from what was seen of it: pure, so that it can be tried on made-up hours."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

FEWEST = 40
"""Samples below which nobody can tell growth from a start."""


@dataclass(frozen=True)
class Sample:
    """One look at the gateway's process: resident memory in KiB, open files, and the worst lag of the last second in
    milliseconds, of its loop and of one beside it that does nothing.
    """

    resident_kib: int
    files: int
    lag_ms: float
    idle_ms: float = 0.0


@dataclass
class Load:
    """What was asked of it and what came. `failed`: what came otherwise than it should have, in words."""

    chunks: int = 0
    lines: int = 0
    readers: int = 0
    returns: int = 0
    requests: int = 0
    runs: int = 0
    counted: int | None = None
    failed: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        """Note it; of a flood of failures the first hundred say enough."""
        if len(self.failed) < 100:
            self.failed.append(what)


@dataclass
class Consecutive:
    """What comes to one who counts: 0, 1, 2 and so on, each once. `what` names it in a finding."""

    what: str
    load: Load
    next: int = 0

    def take(self, number: int) -> None:
        """The next one has come. What follows a wrong one is counted from there."""
        if number != self.next:
            self.load.fail(f"{self.what} {number} came where {self.next} was to come")
        self.next = number + 1

    def end(self, count: int) -> None:
        """There was to be so much."""
        if self.next != count:
            self.load.fail(f"{self.what}: {self.next} of {count} came")


@dataclass(frozen=True)
class Bounds:
    """What may be. The first quarter of the time is left out; growth is from the second to the last, by medians."""

    grown_kib: int = 16 * 1024
    files: int = 16
    lag_ms: float = 250.0


def judge(samples: Sequence[Sample], load: Load, bounds: Bounds = Bounds()) -> list[str]:
    """Everything that is wrong, in words; nothing where it held."""
    return [*load.failed, *_sums(load), *_process(samples, bounds)]


def _sums(load: Load) -> Iterator[str]:
    if load.counted != load.requests:
        yield f"the namespace's usage has {load.counted} model requests, and {load.requests} were answered"
    for name, amount in (("chunk", load.chunks), ("line", load.lines), ("request", load.requests)):
        if not amount:
            yield f"no {name} came"


def _process(samples: Sequence[Sample], bounds: Bounds) -> Iterator[str]:
    if len(samples) < FEWEST:
        yield f"{len(samples)} looks at the gateway are too few: give it {FEWEST} s at least"
        return
    if (grown := grown_kib(samples)) > bounds.grown_kib:
        yield f"its memory grew by {grown / 1024:.1f} MiB, more than {bounds.grown_kib / 1024:.0f}"
    if (more := _growth([each.files for each in samples])) > bounds.files:
        yield f"it has {more:.0f} files more open, more than {bounds.files}"
    if (lag := lag_ms(samples)) > bounds.lag_ms:
        yield f"one second in a hundred its loop stood {lag:.0f} ms longer than an idle one, not {bounds.lag_ms:.0f}"


def grown_kib(samples: Sequence[Sample]) -> float:
    """By how much its memory grew, its start left out; negative where it shrank."""
    return _growth([each.resident_kib for each in samples])


def lag_ms(samples: Sequence[Sample]) -> float:
    """What the loop's worst lag of a second stays below in 99 of 100 seconds, more than the idle loop's does.

    The start is left out. A machine that is busy with something else holds up both.
    """
    held = samples[len(samples) // 4 :]
    return _most([each.lag_ms for each in held]) - _most([each.idle_ms for each in held])


def _most(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _growth(values: Sequence[float]) -> float:
    quarter = len(values) // 4
    return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter])


def tally(seconds: int, samples: Sequence[Sample], load: Load, findings: Sequence[str]) -> str:
    """The last line."""
    asked = (
        f"{seconds:,} s: {load.chunks:,} chunks of a drip, {load.lines:,} lines to each of {load.readers} readers "
        f"({load.returns:,} returns), {load.requests:,} model requests of {load.runs:,} runs"
    )
    if len(samples) < FEWEST:
        return f"{asked}: {len(findings)} findings"
    last = samples[-1]
    held = (
        f"memory {last.resident_kib / 1024:.0f} MiB ({grown_kib(samples) / 1024:+.1f}), {last.files} files open, "
        f"loop lag within {lag_ms(samples):.0f} ms of an idle one's in 99 of 100 s"
    )
    return f"{asked}; {held}: {len(findings)} findings"
