"""`moorage logs -f` beside the process that owns the run: lines come while the run lives, and an end comes, too."""

import json
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from tests.contract.local_machine import MOORAGE, Machine

pytestmark = pytest.mark.timeout(240)  # each starts a few processes of the program, on a machine that may be busy
WAIT_S = 200
TALKING = "echo first; while [ ! -e {go} ]; do sleep 0.05; done; echo second; echo 1 > one.txt"


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.write(agent=TALKING.format(go=machine.root / "go"), check="test -e one.txt")
    return machine


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
    assert following.communicate(timeout=WAIT_S)[0] == "second\n"
    assert following.returncode == 0
    run.communicate(timeout=WAIT_S)
    assert run.returncode == 0


def test_following_a_run_ends_with_its_owner_and_says_so(machine: Machine) -> None:
    run = machine.start()
    until(lambda: machine.told("AGENT_OUTPUT"))
    following = follow(machine)
    assert following.stdout is not None
    assert following.stdout.readline() == "first\n"
    run.kill()
    run.communicate()
    out, err = following.communicate(timeout=WAIT_S)
    assert (following.returncode, out) == (1, "")
    assert "error: steps was interrupted: nobody works on it\nhint: `moorage run -f` of its manifest" in err
    assert err.startswith("to go on from here: --since-cursor ")


def begin(machine: Machine, *argv: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [str(MOORAGE), *argv, "--state", str(machine.state)], env=machine.env, stdout=pipe, stderr=pipe, text=True
    )
    machine.started.append(process)
    return process


def test_the_timeline_and_the_list_of_live_runs_are_followed_from_other_terminals_too(machine: Machine) -> None:
    run = machine.start()
    until(lambda: machine.told("AGENT_OUTPUT"))
    timeline = begin(machine, "timeline", "steps", "-f", "-o", "json")
    watching = begin(machine, "top", "--watch", "-o", "json")
    assert watching.stdout is not None
    first = json.loads(watching.stdout.readline())
    assert (first["name"], first["phase"], first["doing"]) == ("steps", "Running", "works")
    look = begin(machine, "top")
    out, _ = look.communicate(timeout=WAIT_S)
    assert out.splitlines()[1].split()[:3] == ["steps", "Running", "works"]
    (machine.root / "go").touch()
    rows = [json.loads(line) for line in timeline.communicate(timeout=WAIT_S)[0].splitlines()]
    assert timeline.returncode == 0
    assert [row["seq"] for row in rows[:-1] if row["type"] == "RUN_SUCCEEDED"] == [rows[-1]["end"]["offset"]]
    while (told := json.loads(watching.stdout.readline()))["phase"] != "Succeeded":
        assert told["name"] == "steps"
    run.communicate(timeout=WAIT_S)
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=WAIT_S)
    assert (watching.returncode, err) == (130, "")


def test_ctrl_c_leaves_a_follower_at_once_and_it_says_how_to_go_on(machine: Machine) -> None:
    run = machine.start()
    until(lambda: machine.told("AGENT_OUTPUT"))
    following = follow(machine)
    assert following.stdout is not None
    assert following.stdout.readline() == "first\n"
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=WAIT_S)
    assert (following.returncode, out) == (130, "")
    cursor = err.removeprefix("to go on from here: --since-cursor ").strip()
    assert cursor.isdecimal()
    again = begin(machine, "logs", "steps", "-f", "--since-cursor", cursor)
    (machine.root / "go").touch()
    assert again.communicate(timeout=WAIT_S)[0] == "second\n"
    run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, "a surface that drops cancels no run"


def test_a_run_that_nobody_pushes_on_is_listed_as_interrupted(machine: Machine) -> None:
    run = machine.start()
    until(lambda: machine.told("AGENT_OUTPUT"))
    run.kill()
    run.communicate()
    (told,) = json.loads(begin(machine, "top", "-o", "json").communicate(timeout=WAIT_S)[0])
    assert (told["phase"], told["doing"]) == ("Interrupted", "nobody works on it")
