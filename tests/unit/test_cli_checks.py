import shutil
from pathlib import Path

import pytest

from moorage.cli.checks import LEAST_FREE, Tried, attempt, bubblewrap_check, git, runsc_check, state_folder
from moorage.cli.cluster_checks import judged_flow, judged_version, ready


@pytest.mark.parametrize(
    ("tried", "state"),
    [
        (Tried(0, "git version 2.39.5\n"), "ok"),
        (Tried(0, "git version 2.34.0"), "ok"),
        (Tried(0, "git version 2.33.8"), "fail"),
        (Tried(0, "git version 1.9"), "fail"),
        (Tried(0, "git version 3.0.1 (Vendor Git-154)"), "ok"),
        (Tried(127, ""), "fail"),
        (Tried(0, "something else"), "fail"),
    ],
)
def test_git_has_to_be_there_and_new_enough(tried: Tried, state: str) -> None:
    check = git(tried)
    assert check.state == state
    assert bool(check.hint) == (state == "fail")


def test_a_sandbox_that_doesnt_work_is_a_warning_with_advice() -> None:
    assert bubblewrap_check(Tried(0, "")).state == "ok"
    broken = bubblewrap_check(Tried(1, "bwrap: No permissions to create new namespace"))
    assert broken.state == "warn"
    assert "No permissions" in broken.message
    assert "lower grade" in broken.hint
    assert bubblewrap_check(Tried(127, "")).message == "not installed"


def test_runsc_is_optional() -> None:
    assert runsc_check(Tried(127, "")).state == "ok"
    assert runsc_check(Tried(0, "runsc version release-1\nspec: 1.1\n")).message == "release-1"


def test_the_state_folder_may_be_missing_but_not_in_the_way(tmp_path: Path) -> None:
    assert state_folder(tmp_path / "a" / "b").state == "ok"
    (tmp_path / "file").write_text("")
    assert state_folder(tmp_path / "file" / "b").state == "fail"


def test_a_program_that_is_missing_has_a_code_and_no_exception() -> None:
    assert attempt("no-such-program-here").code == 127
    assert attempt("sh", "-c", "echo hi; exit 3") == Tried(3, "hi\n")


@pytest.mark.parametrize(
    ("major", "minor", "state"),
    [
        ("1", "34", "ok"),
        ("1", "37+", "ok"),
        ("1", "34-eks", "ok"),
        ("1", "33", "fail"),
        ("1", "9+", "fail"),
        ("2", "0", "ok"),
    ],
)
def test_kubernetes_has_to_be_new_enough(major: str, minor: str, state: str) -> None:
    assert judged_version(f"v{major}.{minor}", major, minor).state == state


async def test_a_gateway_that_doesnt_answer_is_a_failure_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.cli.cluster_checks.PATIENCE_S", 0.0)
    check = await ready("http://127.0.0.1:1")
    assert check.state == "fail"
    assert "http://127.0.0.1:1/readyz" in check.message


def test_a_state_folder_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=LEAST_FREE - 1))
    check = state_folder(tmp_path)
    assert (check.state, "63 MiB left" in check.message) == ("fail", True)


def schema(name: str, dangling: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Dangling", "status": dangling}]}}


@pytest.mark.rule("T7", "C5")
def test_flow_control_that_is_not_there_or_has_lost_its_level_is_told_by_name() -> None:
    assert judged_flow([schema("moorage-leases", "False")]).state == "ok"
    none = judged_flow([])
    assert (none.state, "not enforced" in none.message, "flowControl.enabled" in none.hint) == ("warn", True, True)
    lost = judged_flow([schema("moorage-leases", "True"), schema("moorage-control", "False")])
    assert lost.state == "warn"
    assert "moorage-leases is gone" in lost.message
