"""`moorage logs -f` beside the process that owns the run: lines come while the run lives, and an end comes, too."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.local_machine import MOORAGE, Machine

TALKING = "echo first; while [ ! -e {go} ]; do sleep 0.05; done; echo second; echo 1 > one.txt"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, isolated=False)
    made.write(agent=TALKING.format(go=tmp_path / "go"), check="test -e one.txt")
    yield made
    made.close()


def until(seen: Callable[[], object]) -> None:
    """As long as the test may last."""
    while not seen():
        time.sleep(0.05)


def follow(machine: Machine) -> subprocess.Popen[str]:
    argv = [str(MOORAGE), "logs", "steps", "-f", "--state", str(machine.state)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, env=machine.env, stdout=pipe, stderr=pipe, text=True)
    machine.started.append(process)
    return process


def test_following_a_run_of_another_process_shows_each_line_as_it_comes_and_ends_with_it(machine: Machine) -> None:
    run = machine.start()
    until(lambda: machine.told("AGENT_OUTPUT"))
    following = follow(machine)
    assert following.stdout is not None
    assert following.stdout.readline() == "first\n"
    (machine.root / "go").touch()
    assert following.communicate(timeout=50)[0] == "second\n"
    assert following.returncode == 0
    run.communicate(timeout=50)
    assert run.returncode == 0


def test_following_a_run_ends_with_its_owner_and_says_so(machine: Machine) -> None:
    run = machine.start()
    until(lambda: machine.told("AGENT_OUTPUT"))
    following = follow(machine)
    assert following.stdout is not None
    assert following.stdout.readline() == "first\n"
    run.kill()
    run.communicate()
    out, err = following.communicate(timeout=50)
    assert (following.returncode, out) == (1, "")
    assert "error: steps was interrupted: nobody works on it\nhint: `moorage run -f` of its manifest" in err
    assert err.startswith("to go on from here: --since-cursor ")
