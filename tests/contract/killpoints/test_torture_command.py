"""`moorage torture` on a user's own run: clean where the agent is, and each finding with the seed that repeats it."""

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.local_machine import BRANCH, MOORAGE, Machine

from moorage.testing import leftovers
from moorage.testing.trees import git

pytestmark = pytest.mark.timeout(240)


def torture(machine: Machine, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [str(MOORAGE), "torture", "-f", str(machine.manifest), "--kills", "1", *more]
    return subprocess.run(argv, env=machine.env, cwd="/", capture_output=True, text=True, check=False)


@pytest.mark.rule("K2")
def test_an_agent_that_goes_on_is_clean_and_the_users_repository_is_left_alone(machine: Machine) -> None:
    before = git(machine.repository, "for-each-ref")
    done = torture(machine, "--seed", "3")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.splitlines()[-1].endswith("0 duplicates, 0 losses, 0 divergences, 0 leftovers, 0 unknown")
    assert git(machine.repository, "for-each-ref") == before
    assert not machine.state.exists()
    assert list(machine.temporary.iterdir()) == []


@pytest.mark.rule("K2")
def test_an_agent_whose_result_differs_is_found_with_its_seed(machine: Machine) -> None:
    machine.write(agent="date +%s%N > all.txt", check="test -s all.txt")
    done = torture(machine, "--seed", "7")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout.startswith("seed 7, ")
    assert "divergence: tree is " in done.stdout
    (command,) = [line.partition("again: ")[2] for line in done.stdout.splitlines() if "again: " in line]
    moorage, *more = shlex.split(command)
    again = subprocess.run([MOORAGE, *more], env=machine.env, cwd="/", capture_output=True, text=True, check=False)
    assert moorage == "moorage"
    assert again.returncode == 1, (again.stdout, again.stderr)
    assert "divergence: tree is " in again.stdout
    assert torture(machine, "--seed", "7", "--any-tree").returncode == 0


def told(pid: int) -> bytes:
    """Its command line; nothing where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def ignored(request: pytest.FixtureRequest) -> Iterator[None]:
    """What this process ignores, its children are born to ignore; what it has a handler for, they aren't."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if request.param else signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("ignored", "sign"),
    [(False, signal.SIGINT), (False, signal.SIGTERM), (True, signal.SIGTERM)],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM in a shell's background"],
    indirect=["ignored"],
)
@pytest.mark.usefixtures("ignored")
def test_one_that_is_interrupted_ends_all_that_it_started(machine: Machine, sign: signal.Signals) -> None:
    machine.write(agent="sleep 600")
    argv = [str(MOORAGE), "torture", "-f", str(machine.manifest)]
    process = subprocess.Popen(argv, env=machine.env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    machine.started.append(process)
    while not any(b"sleep" in told(pid) for pid in leftovers.running(machine.temporary)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(sign)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert leftovers.running(machine.temporary) == []
    assert list(machine.temporary.iterdir()) == []


def test_our_own_torture_ends_all_its_runs_and_tells_how_far_it_came(machine: Machine) -> None:
    argv = [sys.executable, "-m", "moorage.testing", "--jobs", "2"]
    process = subprocess.Popen(argv, env=machine.env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    machine.started.append(process)
    while not any(leftovers.running(each) for each in machine.temporary.glob("moorage-torture-*/trial-1")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b" runs: 0 duplicates, " in said.splitlines()[-1]
    assert leftovers.running(machine.temporary) == []
    assert list(machine.temporary.iterdir()) == []


def test_shots_that_are_none_are_refused(machine: Machine) -> None:
    done = torture(machine, "--shots", "append/within")
    assert done.returncode == 2
    assert "append/within:3:kill" in done.stderr


def test_a_run_that_does_not_succeed_undisturbed_is_no_measure(machine: Machine) -> None:
    machine.write(agent="true", check="false")
    done = torture(machine)
    assert done.returncode == 2
    assert "the undisturbed run must succeed first" in done.stderr
    assert BRANCH not in git(machine.repository, "for-each-ref")
