"""The program as a process of its own: what its streams and surroundings do to it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moorage.cli.exits import Exit

MOORAGE = Path(sys.executable).parent / "moorage"


def test_doctor_has_a_row_for_a_state_that_cant_be_opened(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "moorage.db").write_bytes(b"no database\n" * 1000)
    asked = [str(MOORAGE), "--state", str(tmp_path), "doctor", "-o", "json"]
    ended = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (Exit.FAILED, "")
    assert [each["state"] for each in json.loads(ended.stdout) if each["name"] == "state"] == ["ok", "fail"]


@pytest.mark.parametrize("process", ["operator", "gateway"])
def test_a_process_without_its_settings_says_what_is_missing(process: str) -> None:
    alone = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    ended = subprocess.run([str(MOORAGE), process], env=alone, capture_output=True, text=True, check=False)
    assert ended.returncode == Exit.USAGE
    assert re.fullmatch(r"error: MOORAGE_\w+ is not set\nhint: the chart starts it, .*\n", ended.stderr)


def test_a_full_disk_below_the_output_is_told_and_a_closed_output_is_no_error() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([str(MOORAGE), "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (Exit.FAILED, "error: No space left on device\n")
    closed = ["sh", "-c", '"$0" version >&- 2>&-', str(MOORAGE)]
    assert subprocess.run(closed, check=False).returncode == Exit.OK
