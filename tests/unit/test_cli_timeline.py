import dataclasses
import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moorage.cli.render import PAGE, Output, Terminal, timeline_tables
from moorage.cli.timeline import DESCRIPTIONS, MAX_TEXT, Row, bounded, recap, row
from moorage.core.journal.record import Criticality, Record, RecordType
from moorage.core.run.state import AttemptEnd, Checkpoint, Effect, RunState


def record(kind: str, payload: dict[str, object] | None = None, turn: int | None = None) -> Record:
    return Record(
        record_id="r",
        type=kind,
        recorded_at=0,
        source="gateway",
        assurance="observed",
        payload=payload,
        turn=turn,
        tenant="t",
        run_uid="u",
        session_id="s",
        epoch=3,
        schema_version=1,
        criticality=Criticality.OPTIONAL,
        seq=9,
        logical_time=1,
        prev_hash=None,
        hash="h",
    )


def test_every_type_of_this_version_has_words_of_its_own() -> None:
    assert set(DESCRIPTIONS) == set(RecordType)


@pytest.mark.parametrize("kind", sorted(RecordType))
def test_a_record_without_payload_still_makes_a_row(kind: str) -> None:
    made = row(record(kind))
    assert made.what
    assert made.epoch == 3
    assert made.as_json()["at"] == "1970-01-01T00:00:00.000Z"


def test_a_type_of_a_newer_version_keeps_its_name() -> None:
    assert row(record("MOON_PHASE_CHANGED", {"iteration": 4})).what == "moon phase changed"


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        (RecordType.RUN_FAILED, {"reason": "NoChange", "message": "nothing to do"}, "failed (NoChange: nothing to do)"),
        (
            RecordType.AGENT_FINISHED,
            {"outcome": "failed", "reason": "BranchExists", "message": "it is there"},
            "no agent was started (BranchExists: it is there)",
        ),
        (
            RecordType.AGENT_FINISHED,
            {"outcome": "failed", "reason": "AgentFailed", "summary": "", "exit_code": 3},
            "agent failed, exit 3 (AgentFailed",
        ),
        (RecordType.EFFECT_DEFERRED, {"kind": "git_fetch", "reason": "GitUnreachable"}, "git fetch has to wait: GitUn"),
        (RecordType.RESULT_PROPOSED, {"empty": True}, "proposed no change"),
        (
            RecordType.SANDBOX_PLACED,
            {"role": "runner", "node": "n1", "runtime": "gvisor", "environment": "sha256:e3"},
            "runner runs on n1 under gvisor in sha256:e3",
        ),
        (
            RecordType.VERIFICATION_RESULT,
            {"commit": "c" * 40, "passed": False, "summary": "tests: exit 1"},
            "not accepted",
        ),
        (
            RecordType.VERIFICATION_RESULT,
            {"commit": "c" * 40, "passed": True, "isolated": False},
            "without a sandbox of its own",
        ),
        (RecordType.EFFECT_RECEIPT, {"effect_id": "e", "outcome": "unknown"}, "effect e unknown"),
        (RecordType.MODEL_RESPONSE, {"replayed": True}, "recorded answer given again"),
        (RecordType.MODEL_RESPONSE, {"usage": {"input_tokens": 3, "output_tokens": 4}}, "7 tokens"),
        (
            RecordType.MODEL_RESPONSE,
            {"usage": {"output_tokens": 4, "reasoning_tokens": 3, "cost_micros": 70}, "stop_reason": "completed"},
            "the model answered, 4 tokens, $0.00007 (completed)",
        ),
        (
            RecordType.MODEL_RESPONSE,
            {"status": 0, "problem": "GatewayLost", "usage": {"input_tokens": 9, "cost_micros": 5}, "estimated": True},
            "the model gave no answer: GatewayLost, 9 tokens, $0.000005 by an estimate",
        ),
        (
            RecordType.MODEL_RESPONSE,
            {"status": 0, "problem": "ConnectError", "usage": {}, "stop_reason": None},
            "the model gave no answer: ConnectError",
        ),
        (RecordType.MODEL_RESPONSE, {"status": 401, "problem": None}, "the model's provider refused with status 401"),
        (
            RecordType.MODEL_RESPONSE,
            {"status": 200, "problem": "EndedEarly", "usage": {"output_tokens": 4}},
            "the model's answer was cut: EndedEarly, 4 tokens",
        ),
        (
            RecordType.MODEL_RESPONSE,
            {"status": 200, "problem": None, "stop_reason": "end_turn"},
            "the model answered (end_turn)",
        ),
        (RecordType.TOOL_RESPONSE, {"tool": "read", "ok": False}, "tool read failed"),
        (RecordType.TOOL_RESPONSE, {"tool": "bash", "exit_code": -9, "timed_out": True}, "tool bash timed out"),
        (RecordType.TOOL_RESPONSE, {"tool": "bash", "ok": False, "exit_code": 2}, "tool bash answered, exit 2"),
        (
            RecordType.DRIFT_SAVED,
            {"commit": "c" * 40, "pushed": False},
            "unsaved work kept at cccccccccccc, on its volume alone",
        ),
        (RecordType.ATTEMPT_ENDED, {"reason": "OOMKilled", "role": "runner"}, "runner sandbox lost (OOMKilled)"),
    ],
)
def test_a_row_says_what_happened(kind: str, payload: dict[str, object], said: str) -> None:
    assert said in row(record(kind, payload)).what


def test_the_iteration_is_the_payloads_else_the_turn() -> None:
    assert row(record(RecordType.ITERATION_COMPLETE, {"iteration": 4}, turn=2)).iteration == 4
    assert row(record(RecordType.TOOL_REQUEST, {}, turn=2)).iteration == 2
    assert row(record(RecordType.RUN_ADMITTED)).iteration is None


@given(st.text(max_size=2_000))
def test_no_text_of_a_record_drives_the_terminal(text: str) -> None:
    shown = bounded(text)
    assert len(shown) <= MAX_TEXT
    assert shown.isprintable()
    assert bounded(shown) == shown


def test_an_escape_sequence_in_a_message_is_text() -> None:
    assert "\x1b" not in row(record(RecordType.RUN_FAILED, {"reason": "X", "message": "\x1b[2J\nboo"})).what


def test_the_recap_tells_attempts_what_was_recovered_and_what_to_do() -> None:
    effect = Effect("call-1", "http", "k", "https://pay.example", "unknown")
    loss = AttemptEnd(1, "NodeLost", "", 3)
    point = Checkpoint("c" * 40, "d" * 40, 2, 1)
    state = RunState(
        epoch=2, attempt=2, iteration=3, recovered=True, attempt_started=True, last_loss=loss, checkpoint=point
    )
    assert recap(state) == [
        "attempts 2, epoch 2, iterations 3",
        "recovered after NodeLost, from iteration 2 at cccccccccccc: grade R3, "
        "its workspace is back, and every effect is accounted for",
    ]
    doubtful = recap(dataclasses.replace(state, effects=(effect,)))
    assert "grade R2" in doubtful[1]
    assert "moorage resolve RUN call-1 --confirmed|--rejected" in doubtful[2]
    assert recap(RunState()) == []


def printed(rows: list[Row], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    for table in timeline_tables(lambda: rows, width):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [160, 80])
def test_a_long_timeline_is_printed_by_the_page_and_is_one_table_to_the_eye(width: int) -> None:
    short = Row(0, 0, 1, None, "RUN_ADMITTED", "admitted", "gateway", "observed")
    rows = [replace(short, seq=n, what="x" * (30 if n == PAGE + 1 else 5)) for n in range(2 * PAGE + 1)]
    lines = printed(rows, width)
    assert len(lines) == 1 + len(rows) + (width == 80)
    assert len({line.index("gateway (observed)") for line in lines[1:] if "gateway" in line}) == 1
    assert lines[0].index("SEEN BY") == lines[-1].index("gateway")
    assert max(map(len, lines)) <= width


def test_an_empty_timeline_has_its_header() -> None:
    assert [line.split() for line in printed([], 80)] == [["TIME", "EPOCH", "ITER", "WHAT", "HAPPENED", "SEEN", "BY"]]


@pytest.mark.parametrize("values", [[], [{"a": 1}], [{"a": 1, "b": ["\u00fc"]}, {"a": {"c": None}}]])
def test_a_list_is_printed_one_by_one_as_it_would_be_in_one_piece(values: list[dict[str, Any]]) -> None:
    for output in (Output.JSON, Output.YAML):
        whole, piecemeal = io.BytesIO(), io.BytesIO()
        Terminal(Console(), Console(), whole).data(values, output)
        Terminal(Console(), Console(), piecemeal).listed(iter(values), output)
        assert piecemeal.getvalue() == whole.getvalue()
