"""What is left of a run on a machine: found by the folder that it belongs to, and ended by number."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from moorage.testing import leftovers

SLEEP = (sys.executable, "-c", "import time; print(flush=True); time.sleep(600)")  # says when it is there


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    held: list[subprocess.Popen[bytes]] = []
    yield held
    for process in held:
        process.kill()
        process.communicate()


def begin(cwd: Path, argv: Sequence[str] = SLEEP, **env: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(argv, cwd=cwd, env={"PATH": os.defpath, **env}, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    return process


async def test_processes_are_found_by_where_they_are_and_what_they_were_told(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    root, other = tmp_path / "trial-1", tmp_path / "trial-10"
    root.mkdir()
    other.mkdir()
    started += [begin(root), begin(Path("/"), HOME=f"{root}/home"), begin(other, HOME=f"{other}/home")]
    mine = sorted(process.pid for process in started[:2])
    assert leftovers.running(root) == mine
    assert await leftovers.still_running(root, 0) == mine
    await leftovers.end(root)
    assert leftovers.running(root) == []
    assert started[2].poll() is None


async def test_what_ends_in_time_is_not_left(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    started.append(begin(tmp_path, ("sleep", "0.2")))
    assert await leftovers.still_running(tmp_path, 30) == []


def test_mounts_and_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = f"36 35 98:0 / {tmp_path}/a\\040b rw - tmpfs x rw\n37 35 98:0 / {tmp_path}-other rw - tmpfs x rw\n"
    monkeypatch.setattr(Path, "read_text", lambda _: table)
    assert leftovers.mounted(tmp_path) == [f"{tmp_path}/a b"]
    (tmp_path / "x").touch()
    assert leftovers.entries(tmp_path) == ["x"]
    assert leftovers.entries(tmp_path / "none") == []
