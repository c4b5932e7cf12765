"""`moorage torture` on a user's own run: clean where the agent is, and each finding with the seed that repeats it."""

import subprocess

import pytest
from tests.contract.local_machine import BRANCH, MOORAGE, Machine

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
    assert done.stdout.splitlines()[-1].endswith("0 duplicates, 0 losses, 0 divergences, 0 unknown")
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
    assert torture(machine, "--seed", "7", "--any-tree").returncode == 0


def test_a_run_that_does_not_succeed_undisturbed_is_no_measure(machine: Machine) -> None:
    machine.write(agent="true", check="false")
    done = torture(machine)
    assert done.returncode == 2
    assert "the undisturbed run must succeed first" in done.stderr
    assert BRANCH not in git(machine.repository, "for-each-ref")
