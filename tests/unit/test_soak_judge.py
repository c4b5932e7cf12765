"""The judge of a soaked gateway: an hour that held is one without findings, and each way not to hold has its own."""

from collections.abc import Sequence

import pytest

from e2e.soak.judge import FEWEST, Consecutive, Load, Sample, grown_kib, judge, lag_ms, tally

MIB = 1024
HOUR = 3_600


def looks(grown_mib: float = 0.0, files: int = 0, lag_ms: float = 5.0, seconds: int = HOUR) -> list[Sample]:
    """A start that takes memory for a tenth of the time, and then as much as was asked for, evenly."""
    start, made = seconds // 10, []
    for second in range(seconds):
        share = max(0.0, (second - start) / (seconds - start))
        begun = 80 * MIB * min(1.0, second / start)
        made.append(Sample(round(60 * MIB + begun + grown_mib * MIB * share), 50 + round(files * share), lag_ms))
    return made


def load(**changes: int) -> Load:
    return Load(**{"chunks": 3_600, "lines": 9, "readers": 2, "requests": 7, "runs": 3, "counted": 7, **changes})


def found(samples: Sequence[Sample], seen: Load | None = None) -> str:
    return "; ".join(judge(samples, seen or load()))


def test_an_hour_that_holds_has_no_findings() -> None:
    assert judge(looks(grown_mib=4, files=3), load()) == []


def test_what_a_start_takes_is_no_growth() -> None:
    assert grown_kib(looks()) == 0


def test_memory_that_grows_all_the_time_is_found() -> None:
    assert "its memory grew by" in found(looks(grown_mib=64))


def test_files_that_stay_open_are_found() -> None:
    assert "files more open" in found(looks(files=60))


def test_a_loop_that_stands_now_and_then_is_found_and_its_start_is_not_looked_at() -> None:
    samples = looks()
    samples[:100] = [Sample(each.resident_kib, each.files, 9_000.0) for each in samples[:100]]
    assert (lag_ms(samples), judge(samples, load())) == (5.0, [])
    samples[-100:] = [Sample(each.resident_kib, each.files, 900.0) for each in samples[-100:]]
    assert "its loop stood 900 ms longer than an idle one" in found(samples)


def test_a_machine_that_is_busy_with_something_else_is_not_the_gateways_fault() -> None:
    samples = [Sample(each.resident_kib, each.files, 900.0, idle_ms=880.0) for each in looks()]
    assert (lag_ms(samples), judge(samples, load())) == (20.0, [])


@pytest.mark.parametrize("nothing", ["chunks", "lines", "requests"])
def test_a_load_that_never_was_proves_nothing(nothing: str) -> None:
    assert f"no {nothing.removesuffix('s')} came" in found(looks(), load(**{nothing: 0, "counted": 0}))


def test_requests_that_the_namespace_was_not_charged_for_are_found() -> None:
    assert "usage has 6 model requests, and 7 were answered" in found(looks(), load(counted=6))


def test_too_few_looks_are_no_proof() -> None:
    assert "too few" in found(looks(seconds=FEWEST - 1))
    assert "too few" not in found(looks(seconds=FEWEST))


@pytest.mark.parametrize(
    ("came", "count", "wrong"),
    [
        ([0, 1, 2], 3, []),
        ([0, 2], 3, ["line 2 came where 1 was to come"]),
        ([0, 1, 1, 2], 3, ["line 1 came where 2 was to come"]),
        ([0, 1], 3, ["line: 2 of 3 came"]),
    ],
    ids=["all", "lost", "twice", "cut"],
)
def test_whoever_counts_finds_what_is_lost_and_what_comes_twice(came: list[int], count: int, wrong: list[str]) -> None:
    seen = load()
    lines = Consecutive("line", seen)
    for number in came:
        lines.take(number)
    lines.end(count)
    assert seen.failed == wrong
    assert judge(looks(), seen) == wrong


def test_the_tally_says_what_was_asked_and_what_became_of_it() -> None:
    said = tally(HOUR, looks(grown_mib=2), load(), [])
    assert said.startswith("3,600 s: 3,600 chunks of a drip, 9 lines to each of 2 readers")
    assert said.endswith(": 0 findings")
    assert "memory 142 MiB (+1." in said


def test_a_flood_of_failures_is_bounded() -> None:
    seen = load()
    for number in range(1_000):
        seen.fail(str(number))
    assert len(seen.failed) == 100
