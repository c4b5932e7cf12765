"""`moorage usage`: what a namespace's models took."""

import json

from tests.cli_program import Program, manifest, program

from moorage.cli.exits import Exit

__all__ = ["manifest", "program"]  # fixtures

DAY = {
    "day": "2026-11-30",
    "runs": 2,
    "input_tokens": 812,
    "cache_read_tokens": 5_500,
    "output_tokens": 64,
    "cost_micros": 420_000,
    "model_requests": 9,
    "model_retries": 1,
}


def test_each_day_is_a_line(program: Program) -> None:
    program.composition.doors.spent = {"days": [DAY]}
    assert program("usage") == Exit.OK
    header, line = program.text.splitlines()
    assert header.split() == [
        "DAY",
        "RUNS",
        "REQUESTS",
        "RETRIES",
        "INPUT",
        "CACHE",
        "READ",
        "CACHE",
        "WRITE",
        "OUTPUT",
        "COST",
    ]
    assert line.split() == ["2026-11-30", "2", "9", "1", "812", "5500", "0", "64", "0.42"]


def test_as_objects(program: Program) -> None:
    program.composition.doors.spent = {"days": [DAY]}
    assert program("usage", "-o", "json") == Exit.OK
    (told,) = json.loads(program.out)
    assert (told["day"], told["cacheReadTokens"], told["costMicros"], told["cost"]) == (
        "2026-11-30",
        5_500,
        420_000,
        "0.42",
    )


def test_nothing_yet_and_what_is_missing_are_said(program: Program) -> None:
    program.composition.doors.spent = {"unread": 3}
    assert program("usage") == Exit.OK
    assert program.out == b""
    assert "no model was asked anything" in program.err
    assert "3 journals can't be read" in program.err


def test_who_may_not_know_is_told_so(program: Program) -> None:
    program.composition.doors.status = 403
    assert program("usage") == Exit.DENIED


def test_days_have_no_names(program: Program) -> None:
    assert program("usage", "-o", "name") == Exit.USAGE
