"""Every end of a runner has an exit code, a typed reason, and a termination log that can be read."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moorage.runner.__main__ import explain
from moorage.runner.client import Fenced, GatewayError, GatewayLost, NotWanted
from moorage.runner.exitcodes import MAX_LOG_BYTES, Exit, leave
from moorage.runner.settings import RunnerSettings
from moorage.runner.work import Leave
from moorage.workspace.errors import Corrupt, DiskFull

SOURCES = Path(__file__).parents[2] / "operator"


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (Leave(Exit.TERMINATED, "Terminated", "x"), 143, "Terminated"),
        (Fenced(409, "Fenced", "x"), Exit.FENCED, "Fenced"),
        (NotWanted(409, "RunEnded", "x"), Exit.NOT_WANTED, "RunEnded"),
        (GatewayError(422, "Invalid", "x"), Exit.FAULT, "Invalid"),
        (GatewayLost("x"), Exit.GATEWAY_LOST, "GatewayLost"),
        (DiskFull("x"), Exit.DISK_FULL, "DiskFull"),
        (Corrupt("x"), Exit.WORKSPACE, "Corrupt"),
        (ZeroDivisionError("x"), Exit.FAULT, "RunnerFailed"),
    ],
)
def test_an_end_is_explained(error, code, reason) -> None:
    told = explain(error)
    assert told[:2] == (code, reason)
    assert "x" in told[2]


@pytest.mark.parametrize("message", ["short", "x" * 10_000, "ж" * 10_000, '"\n\x01\ud800' * 5_000])
def test_a_termination_log_is_json_within_what_a_kubelet_keeps(tmp_path, message) -> None:
    leave(tmp_path / "log", "Terminated", message)
    written = (tmp_path / "log").read_bytes()
    told = json.loads(written)
    assert len(written) <= MAX_LOG_BYTES
    assert told["reason"] == "Terminated"
    assert message.startswith(told["message"])
    assert len(told["message"]) >= min(len(message), 200)


def test_a_log_that_cannot_be_written_is_nobodys_fault(tmp_path) -> None:
    leave(tmp_path / "no" / "such" / "folder", "Terminated", "x")
    leave(None, "Terminated", "x")


def start(tmp_path: Path, **environment: str) -> subprocess.Popen[bytes]:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SOURCES),
        "MOORAGE_TERMINATION_LOG": str(tmp_path / "log"),
        "MOORAGE_GATEWAY_URL": "http://127.0.0.1:9",
        "MOORAGE_TOKEN_FILE": str(tmp_path / "token"),
        "MOORAGE_VOLUME": str(tmp_path / "volume"),
    }
    return subprocess.Popen([sys.executable, "-m", "moorage.runner"], env=env | environment, stderr=subprocess.PIPE)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_sigterm_is_obeyed_while_the_gateway_is_away(tmp_path) -> None:
    (tmp_path / "token").write_text("t")
    with start(tmp_path) as runner:
        while not catches(runner.pid, signal.SIGTERM):
            assert runner.poll() is None
            time.sleep(0.05)
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(40) == 143
    assert json.loads((tmp_path / "log").read_text())["reason"] == "Terminated"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MOORAGE_GATEWAY_URL", ""),
        ("MOORAGE_TOKEN_FILE", ""),
        ("MOORAGE_PROBE", "10.96.0.1"),
        ("MOORAGE_STOP_GRACE_SECONDS", "-1"),
    ],
)
def test_a_setting_that_is_missing_or_wrong_is_told_by_its_name(tmp_path, name, value) -> None:
    with start(tmp_path, **{name: value}) as runner:
        assert runner.wait(20) == Exit.FAULT
    told = json.loads((tmp_path / "log").read_text())
    assert (told["reason"], name in told["message"]) == ("RunnerFailed", True)


def test_settings_are_read_from_the_environment() -> None:
    given = {
        "MOORAGE_GATEWAY_URL": "unix:/run/gateway",
        "MOORAGE_TOKEN_FILE": "/token",
        "MOORAGE_PROBE": "10.96.0.1:443,[2001:db8::1]:53",
        "MOORAGE_TERMINATION_LOG": "",
        "MOORAGE_STOP_GRACE_SECONDS": "7",
    }
    settings = RunnerSettings.from_environment(given)
    assert settings.probe == (("10.96.0.1", 443), ("2001:db8::1", 53))
    assert settings.stop_grace_s == 7
    assert RunnerSettings.from_environment({**given, "MOORAGE_STOP_GRACE_SECONDS": ""}).stop_grace_s == 25
    assert (settings.volume, settings.termination_log, settings.alternates) == (Path("/workspace"), None, None)
