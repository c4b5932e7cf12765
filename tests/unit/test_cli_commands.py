"""The program from its command line to its exit code, over a gateway in this process with a real sealed journal."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.cli_program import COMMIT, FACTS, SUCCEEDED, UID, Program, journal, manifest, program

from moorage.cli.exits import Exit
from moorage.cli.listing import age
from moorage.cli.ports import (
    LocalResult,
    Truth,
)
from moorage.core.journal.export import Header, header_line
from moorage.core.journal.heads import SigningKey
from moorage.core.journal.pruning import KIND_OF_STATEMENT, Pruned

__all__ = ["manifest", "program"]  # fixtures


def test_timeline_shows_what_happened_and_who_saw_it(program: Program) -> None:
    assert program("timeline", "tidy") == Exit.OK
    lines = program.text.splitlines()
    assert lines[0].split() == ["TIME", "EPOCH", "ITER", "WHAT", "HAPPENED", "SEEN", "BY"]
    assert "agent started (command)" in program.text
    assert "runner (reported)" in program.text
    assert "2027-01-15 08:00:00.000" in program.text
    assert f"succeeded with {COMMIT[:12]}" in lines[-1]
    assert len(lines) == len(FACTS)  # a header, and every record but the chunk of output


def test_timeline_as_json_and_yaml_is_plain_data(program: Program) -> None:
    assert program("timeline", "tidy", "--json", "--all") == Exit.OK
    rows = json.loads(program.out)
    assert [row["type"] for row in rows] == [kind.value for kind, _, _ in FACTS]
    assert rows[4]["iteration"] == 1
    assert rows[2]["assurance"] == "reported"
    assert program("timeline", "tidy", "-o", "yaml", "--all") == Exit.OK
    assert yaml.safe_load(program.out) == rows


def test_timeline_stops_at_the_first_bad_record_and_fails(program: Program) -> None:
    program.composition.doors.exported = journal().replace(b'"driver":"command"', b'"driver":"comm4nd"')
    assert program("timeline", "tidy") == Exit.FAILED
    assert "attempt 1 owns the run" in program.text
    assert "comm4nd" not in program.text
    assert "record 2 (r2)" in program.err


def test_verify_says_intact_and_with_one_byte_changed_names_the_record(program: Program, tmp_path: Path) -> None:
    exported = tmp_path / "tidy.journal"
    assert program("export", "tidy", "-o", str(exported)) == Exit.OK
    assert exported.read_bytes() == journal()
    assert program("verify", "-f", str(exported)) == Exit.OK
    assert program.text.startswith(f"intact: {len(FACTS)} records, head ")
    exported.write_bytes(journal().replace(b'"iteration":1', b'"iteration":2'))
    assert program("verify", "-f", str(exported)) == Exit.FAILED
    assert "record 4 (r4)" in program.err


def test_verify_notices_a_journal_that_was_cut_short(program: Program, tmp_path: Path) -> None:
    exported = tmp_path / "cut.journal"
    exported.write_bytes(b"".join(journal().splitlines(keepends=True)[:-1]))
    assert program("verify", "-f", str(exported)) == Exit.FAILED
    assert f"record {len(FACTS) - 1}" in program.err


@pytest.mark.rule("J7")
def test_verify_says_of_a_pruned_journal_when_and_by_whom(program: Program, tmp_path: Path) -> None:
    key, other = SigningKey.new(), SigningKey.new()
    at = 1_800_000_000_000
    gone = Pruned(run_uid=UID, last=6, hash="a" * 64, segments=1, generation=1, sealed_at=at, pruned_at=at + 60_000,
                  reason="r", state={})  # fmt: skip
    gone = replace(gone, signature=key.say(KIND_OF_STATEMENT, gone.said(), gone.pruned_at))
    head = key.sign(UID, 6, "a" * 64, at).signature
    header = Header(tenant="local", run_uid=UID, name="tidy", spec_hash="f", offset=6, hash="a" * 64, signature=head,
                    pruned=gone)  # fmt: skip
    file = tmp_path / "pruned.journal"
    file.write_bytes(header_line(header))
    for name, each in (("ours", key), ("other", other)):
        (tmp_path / name).write_bytes(each.verifying.pem)
    assert program("verify", "-f", str(file), "--key", str(tmp_path / "ours")) == Exit.OK
    words = "pruned: records 0 to 6, sealed at 2027-01-15T08:00:00+00:00, pruned at 2027-01-15T08:01:00+00:00"
    assert program.text.startswith(f"{words}, signed by key {key.verifying.id}")
    assert program("verify", "-f", str(file), "--key", str(tmp_path / "other")) == Exit.FAILED
    file.write_bytes(header_line(replace(header, pruned=replace(gone, sealed_at=at - 1))))
    assert program("verify", "-f", str(file), "--key", str(tmp_path / "ours")) == Exit.FAILED


def test_verify_of_a_stored_run_prints_data_for_programs(program: Program) -> None:
    assert program("verify", "tidy", "-o", "json") == Exit.OK
    said = json.loads(program.out)
    assert (said["run"], said["intact"], said["records"], said["firstBadRecord"]) == ("tidy", True, len(FACTS), None)
    program.composition.doors.exported = b"not a journal\n"
    assert program("verify", "tidy", "-o", "json") == Exit.FAILED
    assert json.loads(program.out)["intact"] is False


@pytest.mark.parametrize("argv", [("verify",), ("verify", "tidy", "-f", "x"), ("timeline", "tidy", "-o", "name")])
def test_what_cant_be_meant_is_a_usage_error(program: Program, argv: tuple[str, ...]) -> None:
    assert program(*argv) == Exit.USAGE


def test_logs_and_diff_pass_bytes_on_as_they_are(program: Program) -> None:
    assert program("logs", "tidy") == Exit.OK
    assert program.out == b"hello\xff\n"
    assert program("logs", "-f", "tidy") == Exit.OK
    assert program("diff", "tidy") == Exit.OK
    assert program.out == b"--- a\n+++ b\n"
    assert program.composition.doors.asked == [
        f"/v1/runs/{UID}/logs/stream?follow=false&live=false",
        f"/v1/runs/{UID}/logs/stream?follow=true&live=false",
        f"/v1/runs/{UID}/diff",
    ]


def test_a_name_means_the_newest_run_and_a_uid_that_very_one(program: Program) -> None:
    program("diff", "older")
    assert program.composition.doors.asked == ["/v1/runs/older/diff"]


def test_an_unknown_run_is_not_found_and_the_known_ones_are_named(program: Program) -> None:
    assert program("logs", "nothing") == Exit.NOT_FOUND
    assert "the latest are: tidy" in program.err


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, Exit.DENIED), (403, Exit.DENIED), (404, Exit.NOT_FOUND), (503, Exit.UNREACHABLE), (418, Exit.FAILED)],
)
def test_a_refusal_of_the_gateway_has_its_exit_code_and_its_words(program: Program, status: int, code: Exit) -> None:
    program.composition.doors.status = status
    assert program("diff", "tidy") == code
    assert "because" in program.err
    assert program.out == b""


def test_no_state_folder_is_not_found(program: Program) -> None:
    program.state.rmdir()
    assert program("logs", "tidy") == Exit.NOT_FOUND


def test_the_plugin_means_the_cluster_and_the_program_does_once_one_is_named(program: Program) -> None:
    for argv in (
        ("logs", "tidy", "-n", "team-a"),
        ("logs", "tidy", "--context", "c"),
        ("diff", "tidy", "--kubeconfig", "/x"),
    ):
        assert program(*argv) == Exit.NOT_FOUND
        assert "there is no kubeconfig at" in program.err
    assert program("-n", "team-a", "logs", "tidy") == Exit.NOT_FOUND
    assert "there is no kubeconfig at" in program.err
    program.plugin = True
    assert program("logs", "tidy") == Exit.NOT_FOUND
    assert "there is no kubeconfig at" in program.err
    assert program("logs", "tidy", "--state", str(program.state)) == Exit.OK
    assert program("--state", str(program.state), "logs", "tidy") == Exit.OK


def test_a_run_that_succeeded_says_where_its_branch_is(program: Program, manifest: Path) -> None:
    assert program("run", "-f", str(manifest)) == Exit.OK
    assert "moorage/tidy at aaaaaaaaaaaa in /repo" in program.text
    assert "Formatted [3] files" in program.text
    assert "Running  iteration 1 · 7 tokens" in program.err
    assert program.composition.started == [f"run.yaml {program.state}"]


def test_a_run_that_delivered_nothing_names_no_branch(program: Program, manifest: Path) -> None:
    program.composition.result = replace(SUCCEEDED, branch=None, repository=None)
    assert program("run", "-f", str(manifest)) == Exit.OK
    assert f"commit   aaaaaaaaaaaa, delivered to no branch\n  look     moorage diff {UID}" in program.text
    assert "branch  " not in program.text


@pytest.mark.parametrize(
    ("phase", "code"), [("Failed", Exit.FAILED), ("Cancelled", Exit.FAILED), ("Paused", Exit.PAUSED)]
)
def test_only_success_is_exit_code_zero(program: Program, manifest: Path, phase: str, code: Exit) -> None:
    program.composition.result = LocalResult("tidy", UID, phase, "AcceptanceFailed", "tests: exit 1")
    assert program("run", "-f", str(manifest)) == code
    assert f"{phase}  AcceptanceFailed: tests: exit 1" in program.text


def test_a_result_for_programs_is_named_as_in_status(program: Program, manifest: Path) -> None:
    assert program("run", "-f", str(manifest), "-o", "json") == Exit.OK
    said = json.loads(program.out)
    assert said["result"]["commit"] == COMMIT
    assert said["workspace"] == {"branch": "moorage/tidy", "repository": "/repo"}
    assert said["journal"] == {"offset": 6, "hash": "b" * 64}
    assert program("run", "-f", str(manifest), "-o", "name") == Exit.OK
    assert program.out == b"agentrun/tidy\n"


def test_a_refused_manifest_is_a_usage_error_with_its_reason(program: Program, manifest: Path) -> None:
    program.composition.refuse = "spec.goal is missing"
    assert program("run", "-f", str(manifest)) == Exit.USAGE
    assert "spec.goal is missing" in program.err
    assert program("run", "-f", "/nonexistent/run.yaml") == Exit.NOT_FOUND


def test_an_export_that_cant_be_written_leaves_nothing_behind(program: Program, tmp_path: Path) -> None:
    assert program("export", "tidy", "-o", "/nonexistent/x.journal") == Exit.FAILED
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "x").mkdir()
    assert program("export", "tidy", "-o", str(folder / "x")) == Exit.FAILED
    assert [each.name for each in folder.iterdir()] == ["x"]


def test_an_export_to_a_dash_is_the_journal_alone_on_standard_output(program: Program, tmp_path: Path) -> None:
    assert program("export", "tidy", "-o", "-") == Exit.OK
    assert program.out == journal()
    assert "intact: 7 records" in program.err
    assert "wrote" not in program.err


def test_the_two_processes_are_started_by_name(program: Program) -> None:
    assert program("operator") == Exit.OK
    assert program("gateway") == Exit.OK
    assert program.composition.started == ["operator", "gateway"]


def test_verify_says_of_a_file_that_it_is_no_bundle(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    assert program("verify", "empty") == Exit.NOT_FOUND
    assert "empty is a file, and no bundle: `moorage verify -f empty`" in program.err
    assert program("verify", "./empty") == Exit.FAILED
    assert "the file is empty" in program.err
    assert program("verify", "./nothing") == Exit.NOT_FOUND
    assert "there is no file nothing" in program.err


def test_list_shows_the_runs_of_this_machine(program: Program) -> None:
    assert program("list") == Exit.OK
    header, *rows = program.text.splitlines()
    assert header.split() == ["NAME", "PHASE", "AGE", "BRANCH", "UID"]
    assert [row.split()[::4] for row in rows] == [["tidy", UID], ["tidy", "older"]]
    assert program("list", "-o", "json") == Exit.OK
    told = json.loads(program.out)[0]
    assert told | {"createdAt": ""} == {
        "name": "tidy",
        "uid": UID,
        "phase": "Succeeded",
        "createdAt": "",
        "branch": "moorage/tidy",
    }
    assert program("list", "-n", "team-a") == Exit.USAGE


@pytest.mark.parametrize(("ms", "told"), [(-5, "0s"), (59_999, "59s"), (60_000, "1m"), (90_000_000, "1d")])
def test_an_age_is_told_in_its_largest_unit(ms: int, told: str) -> None:
    assert age(ms) == told


def test_a_run_of_this_machine_takes_nothing_of_a_cluster(program: Program, manifest: Path) -> None:
    assert program("-n", "team-a", "run", "-f", str(manifest)) == Exit.USAGE
    assert "no namespace, context or kubeconfig" in program.err
    assert program.composition.started == []


def test_a_manifest_may_come_from_standard_input_or_a_fifo(program: Program, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert program("run", "-f", str(tmp_path / "fifo")) == Exit.OK
    assert program("run", "-f", "-") == Exit.OK
    assert program.composition.started == [f"fifo {program.state}", f"- {program.state}"]


def test_help_names_the_exit_codes_and_no_arguments_are_a_question(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program("--help") == Exit.OK
    assert "4 unreachable" in " ".join(capsys.readouterr().out.split())
    assert program("frobnicate") == Exit.USAGE


def test_doctor_checks_this_machine(program: Program) -> None:
    assert program("doctor", "-o", "json") == Exit.OK
    found = {check["name"]: check["state"] for check in json.loads(program.out)}
    assert found["git"] == "ok"
    assert found["state"] == "ok"
    assert program("doctor") == Exit.OK
    assert "bubblewrap" in program.text


@pytest.mark.rule("R7")
def test_doctor_offers_to_go_on_with_an_interrupted_run(program: Program) -> None:
    assert program("doctor") == Exit.OK
    assert f"run half of 2026-11-29 17:00 UTC ({UID}) has not ended" in program.text
    assert "go on with it: moorage run -f /there/half.yaml; or begin it anew" in program.text


def test_a_run_that_cant_start_says_why_and_what_to_do(program: Program, manifest: Path) -> None:
    program.composition.taken = "an interrupted run delivers to it"
    assert program("run", "-f", str(manifest)) == Exit.FAILED
    assert "an interrupted run delivers to it" in program.err
    assert "hint: --fresh gives it up" in program.err
    program.composition.taken = ""
    assert program("run", "-f", str(manifest), "--fresh") == Exit.OK
    assert program.composition.started == [f"run.yaml {program.state} fresh"]


@pytest.mark.rule("W8", "V3")
def test_a_result_shows_the_grade_of_its_sandbox(program: Program, manifest: Path) -> None:
    told = (Truth("Accepted", "True", "Unisolated", "the commands had no sandbox of their own: reported only"),)
    program.composition.result = replace(SUCCEEDED, sandbox="none: an ordinary process", conditions=told)
    assert program("run", "-f", str(manifest)) == Exit.OK
    assert "sandbox  none: an ordinary process" in program.text
    assert "reported, not proved" in program.text
    assert program("run", "-f", str(manifest), "-o", "json") == Exit.OK
    said = json.loads(program.out)
    assert said["sandbox"] == "none: an ordinary process"
    assert [each["reason"] for each in said["conditions"]] == ["Unisolated"]


def test_resolve_asks_for_one_verdict_and_tells_the_gateway_who_asks(program: Program) -> None:
    assert program("resolve", "tidy", "push-1") == Exit.USAGE
    assert program("resolve", "tidy", "push-1", "--confirmed", "--rejected") == Exit.USAGE
    assert program("resolve", "tidy", "pu", "--confirmed") == Exit.USAGE
    assert program("resolve", "tidy", "push-1", "--rejected", "--note", "not there") == Exit.OK
    assert program.text == "push-1 rejected: https://git.example/web.git#main\n"
    said = {"effect": "push-1", "outcome": "rejected", "note": "not there", "user": ""}
    assert program.composition.doors.said == [said]


def test_repair_asks_for_a_reason_and_tells_what_was_dropped(program: Program) -> None:
    assert program("repair", "tidy") == Exit.USAGE
    assert program("repair", "tidy", "--reason", "x" * 501) == Exit.USAGE
    assert program("repair", "tidy", "--reason", "power cut") == Exit.OK
    dropped = "offsets 4 to 6 dropped, 1 of them can't be read"
    assert program.text == f"generation 2 begins at offset 7: {dropped}\n"
    assert "offset 4: its hash" in program.err
    assert program.composition.doors.said == [{"reason": "power cut", "user": ""}]


def test_a_refusal_to_resolve_is_told_with_what_it_takes(program: Program) -> None:
    program.composition.doors.status = 403
    assert program("resolve", "tidy", "push-1", "--confirmed") == Exit.DENIED
    assert "because" in program.err
