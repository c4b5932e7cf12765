"""`moorage run` killed at any moment (SIGKILL, real processes): the same command again goes on, and finishes once."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from moorage.testing.trees import ENV, git

MOORAGE = Path(sys.executable).parent / "moorage"
BRANCH = "moorage/steps"
STEPS = 4
AGENT = f"""
left=$(cat "$MOORAGE_REMAINING_FILE")
n=$MOORAGE_NEXT_ITERATION
while [ $n -le {STEPS} ]; do
    test ! -e $n.txt
    echo $n > $n.txt
    echo $n >> all.txt
    sleep 0.1
    echo '{{"moorage": {{"event": "iteration"}}}}'
    while [ "$(cat "$MOORAGE_REMAINING_FILE")" = "$left" ]; do sleep 0.02; done
    left=$(cat "$MOORAGE_REMAINING_FILE")
    n=$((n + 1))
done
"""
ISOLATED = shutil.which("bwrap") is not None
BUBBLEWRAP = pytest.mark.skipif(not ISOLATED, reason="no bwrap")
GRADES = [
    pytest.param(True, id="bubblewrap", marks=BUBBLEWRAP),
    pytest.param(False, id="plain"),
]


@dataclass
class Machine:
    """A user's machine: a repository, a manifest in the folder beside it, a state folder, and perhaps bubblewrap."""

    root: Path
    isolated: bool
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repository.mkdir()
        git(self.repository, "init", "-q", "-b", "main")
        (self.repository / "README").write_text("steps\n")
        git(self.repository, "add", "-A")
        git(self.repository, "commit", "-qm", "Begin")
        self.write()
        for name, text in ({} if self.isolated else {"bwrap": "#!/bin/sh\nexit 1\n"}).items():
            self.programs.mkdir()
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    @property
    def programs(self) -> Path:
        return self.root / "programs"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def manifest(self) -> Path:
        return self.root / "run.yaml"

    @property
    def env(self) -> dict[str, str]:
        temporary = self.root / "tmp"
        temporary.mkdir(exist_ok=True)
        path = f"{self.programs}:{ENV['PATH']}"
        return {"PATH": path, "HOME": str(self.root), "LANG": "C.UTF-8", "TMPDIR": str(temporary)}

    def write(self, name: str = "steps", goal: str = "Count.", branch: str = BRANCH, agent: str = AGENT) -> None:
        """The manifest; its path is relative to its own folder, which nobody's shell is in."""
        spec = {
            "workspace": {"local": {"path": "./repository"}},
            "goal": goal,
            "agent": {"driver": "command", "command": ["sh", "-euc", agent]},
            "acceptance": [{"name": "all", "run": f"test $(wc -l < all.txt) = {STEPS}", "timeout": "1m"}],
            "constraints": {"maxIterations": 100},
            "delivery": {"branch": branch},
        }
        body = {"apiVersion": "moorage.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": name}, "spec": spec}
        self.manifest.write_text(yaml.safe_dump(body))

    def start(self, *more: str) -> subprocess.Popen[str]:
        argv = [str(MOORAGE), "run", "-f", str(self.manifest), "--state", str(self.state), "-o", "json", *more]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, env=self.env, cwd="/", stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def run(self, *more: str) -> tuple[int, dict, str]:
        process = self.start(*more)
        out, err = process.communicate(timeout=50)
        return process.returncode, json.loads(out) if out else {}, err

    def killed(self, when: Callable[[], bool]) -> bool:
        """Start it and SIGKILL it in that moment; False where it ended before that."""
        process = self.start()
        while process.poll() is None and not when():
            time.sleep(0.01)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL

    def told(self, kind: str, word: str = "") -> int:
        """How many records of that type hold that word, over all runs; 0 as long as there is no store."""
        file = self.state / "gateway" / "moorage.db"
        if not file.is_file():
            return 0
        query = "SELECT 1 FROM execution_events WHERE instr(body, ?) AND instr(body, ?)"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'execution_events'").fetchall():
                return 0
            return len(db.execute(query, (f'"type":"{kind}"'.encode(), word.encode())).fetchall())

    def processes(self) -> list[int]:
        """What runs and has to do with this machine."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    told += str((entry / "cwd").readlink()).encode()
                    if str(self.root).encode() in told:
                        found.append(int(entry.name))
        return found

    def processes_of(self, word: str) -> list[int]:
        """Those of them whose command line has that word."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def silent(self) -> bool:
        """Nothing runs any more, given a moment."""
        deadline = time.monotonic() + 5
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def whole(self) -> None:
        """One run's work, once, on the user's branch, and nothing left behind."""
        assert git(self.repository, "show", f"{BRANCH}:all.txt").split() == [str(n) for n in range(1, STEPS + 1)]
        assert self.told("RUN_SUCCEEDED") == self.told("RUN_ADMITTED") == 1
        assert self.told("EFFECT_RECEIPT", "confirmed") + self.told("EFFECT_RECONCILED", "confirmed") == 1
        assert self.told("ITERATION_COMPLETE") == STEPS
        assert self.silent()
        assert list((self.state / "runs").iterdir()) == []
        assert list((self.state / "owners").iterdir()) == []
        assert list((self.root / "tmp").iterdir()) == []
        assert git(self.repository, "worktree", "list").count("\n") == 0
        assert git(self.repository, "status", "--porcelain") == ""


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, getattr(request, "param", False))
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


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


@pytest.mark.rule("R7")
def test_a_run_killed_before_its_admission_leaves_nothing_behind(machine: Machine) -> None:
    owners, sockets = machine.state / "owners", machine.root / "tmp"
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


@pytest.mark.rule("R7", "X1")
def test_a_cancel_that_was_cut_off_is_finished_and_the_run_begins_anew(machine: Machine) -> None:
    machine.write(agent=f"trap '' TERM\n{SLOW}")
    process = machine.start()
    while not machine.processes_of("sleep"):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    while not machine.told("CANCEL_REQUESTED"):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    machine.write()
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), err
    assert machine.told("RUN_CANCELLED") == 1
    assert machine.told("RUN_SUCCEEDED") == 1


@pytest.mark.rule("W2")
def test_a_run_that_lives_is_nobody_elses(machine: Machine) -> None:
    machine.write(agent=f"sleep 5\n{AGENT}")
    first = machine.start()
    while not machine.told("AGENT_STARTED"):
        time.sleep(0.01)
    code, result, _ = machine.run()
    assert (code, result["reason"]) == (1, "BranchTaken")
    assert machine.run("--fresh")[0] == 1
    first.communicate(timeout=60)
    assert first.returncode == 0
