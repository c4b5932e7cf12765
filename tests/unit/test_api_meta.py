import json

import pytest

from moorage.api.meta import (
    MAX_CONDITIONS,
    UNDATED,
    Condition,
    bounded,
    format_time,
    get_condition,
    kstatus,
    parse_time,
    set_condition,
    set_conditions,
)
from moorage.api.runstatus import AgentRunStatus, JournalStatus, QueueStatus, RunResult, RunWorkspaceStatus, Usage

NOON = 1_764_417_600_000


def condition(status: str = "True", reason: str = "R", kind: str = "Ready") -> Condition:
    return Condition.model_validate({"type": kind, "status": status, "reason": reason})


def test_times_are_whole_seconds_in_utc() -> None:
    assert format_time(NOON + 999) == "2025-11-29T12:00:00Z"
    assert parse_time("2025-11-29T12:00:00Z") == NOON
    assert parse_time("2025-11-29T13:00:00.250+01:00") == NOON + 250


def test_the_time_of_transition_moves_only_with_the_status() -> None:
    first = set_condition((), condition("False", "Starting"), NOON)
    same = set_condition(first, condition("False", "Waiting"), NOON + 60_000)
    other = set_condition(same, condition("True", "Done"), NOON + 120_000)
    assert [c.last_transition_time for c in (*first, *same, *other)] == [
        format_time(NOON),
        format_time(NOON),
        format_time(NOON + 120_000),
    ]
    assert (same[0].reason, other[0].reason) == ("Waiting", "Done")


def test_other_conditions_stay_as_they_are_and_in_place() -> None:
    before = set_conditions((), [condition(kind="A"), condition(kind="B"), condition(kind="C")], NOON)
    after = set_condition(before, condition("False", kind="B"), NOON + 1000)
    assert [c.type for c in after] == ["A", "B", "C"]
    assert (after[0], after[2]) == (before[0], before[2])


def test_setting_the_same_again_changes_nothing() -> None:
    before = set_condition((), condition(), NOON)
    assert set_condition(before, condition(), NOON + 5_000) == before


def test_conditions_are_bounded() -> None:
    many = set_conditions((), [condition(kind=f"C{i}") for i in range(MAX_CONDITIONS + 5)], NOON)
    assert len(many) == MAX_CONDITIONS
    assert get_condition(many, f"C{MAX_CONDITIONS + 4}") is not None
    assert get_condition(many, "C0") is None


@pytest.mark.parametrize(
    ("state", "truths"),
    [("Current", "True False False"), ("InProgress", "False True False"), ("Failed", "False False True")],
)
def test_kstatus_reads_ready_reconciling_and_stalled(state: str, truths: str) -> None:
    found = kstatus(state, "R", "m", 7)  # type: ignore[arg-type]
    assert [c.type for c in found] == ["Ready", "Reconciling", "Stalled"]
    assert " ".join(c.status for c in found) == truths
    assert {(c.reason, c.message, c.observed_generation) for c in found} == {("R", "m", 7)}


@pytest.mark.parametrize(
    "text", ["", "short", "é" * 100, "x" * 10_000, "🎉" * 33, "\x00\x1b[31m" * 50, "\ud800a", "a\tb\nc"]
)
@pytest.mark.parametrize("limit", [8, 64, 100])
def test_bounded_text_is_legal_utf8_of_at_most_so_many_bytes(text: str, limit: int) -> None:
    cut = bounded(text, limit)
    assert len(cut.encode()) <= limit
    assert not any(c in cut for c in "\x00\x1b")


def test_bounded_text_is_kept_where_it_fits_and_marked_where_it_does_not() -> None:
    assert bounded("a\tb\nc", 5) == "a\tb\nc"
    assert bounded("abcdefghij", 8) == "abcde…"


def test_the_fullest_status_stays_under_32_kib() -> None:
    worst = '\\"\n' * 10_000
    huge = 2**63 - 1
    conditions = [
        Condition(
            type=f"{i:064d}",
            status="Unknown",
            reason=worst,
            message=worst,
            observed_generation=huge,
            last_transition_time="2026-11-29T15:00:00.000000000+00:00",
        )
        for i in range(MAX_CONDITIONS)
    ]
    status = AgentRunStatus(
        phase="AwaitingApproval",
        reason=worst,
        message=worst,
        conditions=tuple(conditions),
        usage=Usage(cost=worst, **dict.fromkeys(set(Usage.model_fields) - {"cost"}, huge)),  # type: ignore[arg-type]
        queue=QueueStatus(position=huge, reason=worst),
        journal=JournalStatus(offset=huge, hash=worst),
        workspace=RunWorkspaceStatus(base=worst, head=worst, branch=worst),
        result=RunResult(summary=worst, commit=worst, pull_request=worst),
        node=worst,
        spec_hash=worst,
    )
    assert set(status.wire()) == {*["phase", "reason", "message", "conditions", "usage", "queue", "journal"]} | {
        *["workspace", "result", "node", "specHash"]
    }
    assert len(json.dumps(status.wire(), ensure_ascii=False).encode()) < 32 * 1024


def test_what_only_a_default_has_told_is_dated_when_somebody_looks() -> None:
    born = tuple(c.model_copy(update={"last_transition_time": UNDATED}) for c in (condition(), condition(kind="B")))
    first = set_condition(born, condition(), NOON)
    assert [c.last_transition_time for c in first] == [format_time(NOON), UNDATED]
    assert set_condition(first, condition(), NOON + 60_000) == first
