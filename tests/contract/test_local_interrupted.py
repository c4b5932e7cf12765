"""`moorage run` killed at any moment (SIGKILL, real processes): the same command again goes on, and finishes once."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.contract.counting_agent import AGENT, STEPS
from tests.contract.local_machine import BRANCH, BUBBLEWRAP, GRADES, Machine

from moorage.points import Point
from moorage.testing.killpoints import Shot, environment, fired
from moorage.testing.trees import git

pytestmark = pytest.mark.timeout(240)  # each case starts the program two to four times


@pytest.mark.rule("R7", "R1", "R3", "K1")
@pytest.mark.parametrize("machine", GRADES, indirect=True)
def test_a_run_killed_twice_goes_on_and_finishes_once(machine: Machine) -> None:
    assert machine.killed(lambda: machine.told("ITERATION_COMPLETE") == 1)
    assert machine.silent(), "what the dead run had started goes on"
    assert machine.killed(lambda: machine.told("ITERATION_COMPLETE") == 3)
    assert machine.silent()
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert "going on with run steps" in err
    assert "after iteration 3" in err
    assert "pass_failed" not in err
    machine.whole()


@pytest.mark.rule("R7", "E5", "E6", "K1")
@pytest.mark.parametrize(
    ("machine", "point"),
    [
        pytest.param(False, "RUN_ADMITTED"),
        pytest.param(True, "POD_REGISTERED", marks=BUBBLEWRAP),
        pytest.param(False, "WORKSPACE_READY"),
        pytest.param(True, "RESULT_PROPOSED", marks=BUBBLEWRAP),
        pytest.param(False, "VERIFICATION_STARTED"),
        pytest.param(True, "VERIFICATION_RESULT", marks=BUBBLEWRAP),
        pytest.param(False, "EFFECT_INTENT"),
        pytest.param(True, "EFFECT_RECEIPT", marks=BUBBLEWRAP),
        pytest.param(False, "RUN_SUCCEEDED"),
    ],
    indirect=["machine"],
)
def test_a_run_killed_at_any_point_finishes_once(machine: Machine, point: str) -> None:
    assert machine.killed(lambda: machine.told(point) > 0)
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    machine.whole()


def test_a_temporary_folder_too_deep_for_a_socket_is_passed_over(machine: Machine, tmp_path: Path) -> None:
    machine.temporary = tmp_path / ("d" * 100)
    machine.temporary.mkdir()
    assert machine.run()[0] == 0
    machine.whole()


@pytest.mark.rule("R7")
def test_a_run_killed_before_its_admission_leaves_nothing_behind(machine: Machine) -> None:
    owners, sockets = machine.state / "owners", machine.temporary
    assert machine.killed(lambda: owners.is_dir() and any(owners.iterdir()) and any(sockets.iterdir()))
    assert machine.told("RUN_ADMITTED") == 0
    assert machine.run()[0] == 0
    machine.whole()


SLOW = f"""
if [ ! -e "$HOME/been-here" ]; then touch "$HOME/been-here"; sleep 600; fi
{AGENT}
"""


@pytest.mark.rule("R7", "X2")
def test_what_owner_and_runner_left_when_both_were_killed_writes_no_more(machine: Machine) -> None:
    machine.write(agent=SLOW)
    process = machine.start()
    while not machine.told("AGENT_STARTED") or not (agents := machine.processes_of("sleep")):
        time.sleep(0.01)
    (runner,) = machine.processes_of("moorage.runner")
    os.kill(runner, signal.SIGSTOP)  # so that it can't see its owner die
    process.kill()
    os.kill(runner, signal.SIGKILL)
    process.communicate()
    assert set(agents) <= set(machine.processes()), "nobody is left to stop the agent"
    code, _, err = machine.run()
    assert code == 0, err
    machine.whole()


@pytest.mark.rule("R7", "W2")
def test_an_interrupted_run_is_never_given_up_in_silence(machine: Machine) -> None:
    assert machine.killed(lambda: machine.told("ITERATION_COMPLETE") == 1)
    machine.write(goal="Count differently.")
    code, result, err = machine.run()
    assert (code, result) == (1, {})
    assert f"delivers to {BRANCH}, too" in err
    assert f"moorage run -f {machine.manifest}` goes on with it; --fresh here gives it up" in err
    assert machine.told("RUN_ADMITTED") == 1
    code, result, err = machine.run("--fresh")
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert "closed run steps" in err
    assert machine.told("RUN_CANCELLED", '"reason":"Interrupted"') == 1
    assert machine.told("EFFECT_INTENT") == 1
    assert machine.silent()


@pytest.mark.rule("R7")
def test_interrupted_runs_are_offered_and_run_on_beside_others(machine: Machine) -> None:
    assert machine.killed(lambda: machine.told("ITERATION_COMPLETE") == 1)
    ours = machine.manifest.read_text()
    machine.write("other", branch="moorage/other", agent=f"seq {STEPS} > all.txt")
    code, _, err = machine.run()
    assert code == 0, err
    assert "run steps of" in err
    assert f"was interrupted; `moorage run -f {machine.manifest}` goes on with it" in err
    machine.manifest.write_text(ours)
    code, _, err = machine.run()
    assert code == 0, err
    assert "after iteration 1" in err
    assert machine.told("ITERATION_COMPLETE") == STEPS
    assert git(machine.repository, "show", f"{BRANCH}:all.txt").split() == [str(n) for n in range(1, STEPS + 1)]


@pytest.mark.rule("R7", "K1")
def test_a_run_that_was_gone_on_with_and_never_told_is_told_and_not_made_anew(machine: Machine, tmp_path: Path) -> None:
    told = Shot(Point.TOLD_BEFORE)
    assert machine.killed(lambda: machine.told("ITERATION_COMPLETE") == 1)
    machine.armed = environment(tmp_path / "trace", told)
    assert machine.run()[0] == -signal.SIGKILL
    assert fired(tmp_path / "trace", told)
    machine.armed = {}
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    machine.whole()


@pytest.mark.rule("R7")
def test_a_run_whose_spec_is_not_understood_any_more_is_told_of_and_keeps_no_other_waiting(machine: Machine) -> None:
    assert machine.killed(lambda: machine.told("ITERATION_COMPLETE") == 1)
    (uid,) = [each.name for each in (machine.state / "owners").iterdir()]
    machine.forget_in_specs("$.agent.driver")
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert result["uid"] != uid
    named = f"can't read the spec that run {uid} was admitted with (agent.driver: Field required)"
    assert named in " ".join(err.split())
    assert named in " ".join(machine.doctor().split())
    assert (machine.state / "runs" / uid / "volume").is_dir(), "what it had done is kept"
    assert machine.told("RUN_SUCCEEDED") == 1


def cancelling(machine: Machine, sign: signal.Signals) -> subprocess.Popen[str]:
    """A run whose agent won't go, told to stop and at it."""
    machine.write(agent=f"trap '' TERM\n{SLOW}")
    process = machine.start()
    while not machine.processes_of("sleep"):
        time.sleep(0.01)
    process.send_signal(sign)
    while not machine.told("CANCEL_REQUESTED"):
        time.sleep(0.01)
    return process


@pytest.mark.rule("R7", "X1")
def test_a_cancel_that_was_cut_off_is_finished_and_the_run_begins_anew(machine: Machine) -> None:
    process = cancelling(machine, signal.SIGINT)
    process.kill()
    process.communicate()
    machine.write()
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert machine.told("RUN_CANCELLED") == 1
    assert machine.told("RUN_SUCCEEDED") == 1


@pytest.mark.rule("W2")
def test_a_run_that_lives_is_nobody_elses(machine: Machine) -> None:
    go = machine.root / "go"
    machine.write(agent=f"while [ ! -e {go} ]; do sleep 0.05; done\n{AGENT}")
    first = machine.start()
    while not machine.told("AGENT_STARTED"):
        time.sleep(0.01)
    code, result, err = machine.run()
    assert (code, result) == (1, {})
    assert f"has not ended, and delivers to {BRANCH}, too\nhint: wait for its end: `moorage logs -f " in err
    assert machine.run("--fresh")[0] == 1
    go.touch()
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert machine.run()[0] == 1  # its branch is there now
    assert machine.told("RUN_ADMITTED") == 1
    assert "succeeded" in machine.timeline()


@pytest.mark.rule("W5")
def test_what_is_kept_of_a_failed_run_goes_with_its_retention(machine: Machine) -> None:
    machine.write(check="false", retention={"ttlAfterFinished": "3s"})
    code, result, _ = machine.run()
    assert (code, result["reason"]) == (1, "AcceptanceFailed")
    kept = machine.state / "runs" / result["uid"]
    assert (kept / "volume" / "tree" / "all.txt").is_file()
    time.sleep(3)
    machine.write()
    assert machine.run()[0] == 0
    assert not kept.exists()
    assert machine.told("TOMBSTONE") == 1
    machine.timeline(result["uid"])


@pytest.mark.rule("R7", "X1")
def test_asked_twice_it_leaves_at_once_and_the_next_start_finishes_the_cancel(machine: Machine) -> None:
    """Whatever the first one waits for: an agent that won't go, or a journal that takes no more."""
    process = cancelling(machine, signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=50)
    assert (process.returncode, "goes on from here" in err) == (130, True), err
    assert machine.silent()
    assert machine.told("RUN_CANCELLED") == 0
    machine.write()
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert (machine.told("RUN_CANCELLED"), machine.told("RUN_SUCCEEDED")) == (1, 1)
