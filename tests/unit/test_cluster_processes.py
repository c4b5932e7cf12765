import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster.processes import identify, read_pid_file, spawn, stop, stop_recorded, write_pid_file


def _start(folder: Path, *argv: str) -> Path:
    pid_file = folder / "program.pid"
    spawn(argv, log=folder / "program.log", pid_file=pid_file)
    return pid_file


def test_a_recorded_process_is_stopped_and_forgotten(tmp_path: Path) -> None:
    pid_file = _start(tmp_path, "sleep", "60")
    process = read_pid_file(pid_file)
    assert process is not None
    assert process.alive()
    stop_recorded(pid_file)
    assert not process.alive()
    assert not pid_file.exists()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    pid_file = _start(tmp_path, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    while "ready" not in (tmp_path / "program.log").read_text():
        time.sleep(0.01)
    process = read_pid_file(pid_file)
    assert process is not None
    stop(process, grace_s=0.1)
    assert not process.alive()


@pytest.mark.parametrize("stranger", [{"started": 1}, {"boot": "another"}])
def test_a_recycled_id_is_never_hit(tmp_path: Path, stranger: dict[str, object]) -> None:
    running = read_pid_file(_start(tmp_path, "sleep", "60"))
    assert running is not None
    stop(replace(running, **stranger))
    assert running.alive()
    stop(running)


def test_a_process_that_ended_by_itself_is_not_alive(tmp_path: Path) -> None:
    process = read_pid_file(_start(tmp_path, "true"))
    assert process is not None
    deadline = time.monotonic() + 40
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not process.alive()


@pytest.mark.parametrize("content", ["", "{", "12", '{"pid": 1}'])
def test_a_damaged_pid_file_names_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "damaged.pid"
    path.write_text(content)
    assert read_pid_file(path) is None
    stop_recorded(path)


def test_a_pid_file_tells_what_was_written(tmp_path: Path) -> None:
    me = identify(os.getpid())
    assert me is not None
    write_pid_file(tmp_path / "me.pid", me)
    assert read_pid_file(tmp_path / "me.pid") == me


def test_a_daemon_inherits_no_open_file(tmp_path: Path) -> None:
    handle = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(handle, True)  # as a lock held by `flock FILE COMMAND` is
    try:
        process = read_pid_file(_start(tmp_path, "sleep", "60"))
        assert process is not None
        held = {link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()}
        stop(process)
    finally:
        os.close(handle)
    assert tmp_path / "lock" not in held
