"""What no result can hold is told wherever people look, and never taken for the agent's work."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.local_machine import BRANCH, ISOLATED, MOORAGE, Machine

from moorage.testing.trees import git


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, ISOLATED)
    yield made
    made.close()


def diff(machine: Machine) -> str:
    argv = [str(MOORAGE), "diff", "steps", "--state", str(machine.state)]
    return subprocess.run(argv, env=machine.env, capture_output=True, text=True, check=True).stdout


def test_new_files_that_a_result_lacks_are_told_by_name_and_reason(machine: Machine):
    agent = "echo x > x; truncate -s 400M big; git init -q vendor; echo 1 > vendor/f; mkdir .GIT; echo c > .GIT/config"
    machine.write(agent=agent, check="test -e x && test ! -e big")
    code, end, err = machine.run()
    assert (code, end.get("phase")) == (0, "Succeeded"), err
    assert git(machine.repository, "diff", "--name-only", f"main..{BRANCH}") == "x"
    for told in ("big: over the cap", "vendor/: a git repository", ".GIT/config: a name that git refuses"):
        assert told in end["message"]
        assert told in diff(machine)
    assert "1 files, 3 left out (" in machine.timeline()
    applied = subprocess.run(
        ["git", "apply", "--stat"], input=diff(machine), capture_output=True, text=True, check=True
    )
    assert "1 file changed" in applied.stdout


SUBMODULE = """printf '[submodule "x"]\\n\\tpath = -x\\n\\turl = http://x/y\\n' > .gitmodules"""


@pytest.mark.parametrize("when", ["checkpoint", "result", "commit"])
def test_content_that_git_refuses_ends_the_run_by_its_path_and_is_not_made_again(machine: Machine, when: str):
    after = {
        "checkpoint": """echo '{"moorage": {"event": "iteration"}}'; while sleep 1; do :; done""",
        "result": "true",
        "commit": "git add .gitmodules; git commit -qm sub; git rm -q .gitmodules; echo x > x",
    }
    machine.write(agent=f"{SUBMODULE}; {after[when]}", check="true")
    code, end, err = machine.run()
    assert code != 0, err
    assert (end["phase"], end["reason"]) == ("Failed", "ContentRefused")
    assert ".gitmodules: gitmodulesPath: disallowed submodule path: -x" in end["message"]
    assert machine.told("AGENT_STARTED") == 1


@pytest.mark.parametrize(
    ("agent", "reason", "named"),
    [
        ("truncate -s 300M README", "ResultTooLarge", "README: over the cap"),
        ("rm README; mkfifo README", "PathRefused", "README: neither a file nor a link"),
        ("truncate -s 300M big; git add big; git commit -qm big", "ResultTooLarge", "big: over the cap"),
    ],
    ids=["grown", "pipe", "committed"],
)
def test_a_file_of_the_repository_that_a_result_cannot_hold_ends_the_run(
    machine: Machine, agent: str, reason: str, named: str
):
    machine.write(agent=f"echo x > x; {agent}", check="true", delivery={"branch": BRANCH, "allowEmpty": True})
    code, end, err = machine.run()
    assert code != 0, err
    assert (end["phase"], end["reason"]) == ("Failed", reason)
    assert named in end["message"]
    assert git(machine.repository, "branch", "--list", BRANCH) == ""
    assert machine.told("VERIFICATION_STARTED") == machine.told("EFFECT_INTENT") == 0
    assert machine.told("DRIFT_SAVED") == 1


def test_a_file_that_outgrew_its_last_checkpoint_is_not_delivered_as_it_was_there(machine: Machine):
    agent = """
echo small > new
left=$(cat "$MOORAGE_REMAINING_FILE")
echo '{"moorage": {"event": "iteration"}}'
while [ "$(cat "$MOORAGE_REMAINING_FILE")" = "$left" ]; do sleep 0.02; done
truncate -s 300M new
"""
    machine.write(agent=agent, check="true")
    _, end, err = machine.run()
    assert (end.get("phase"), end.get("reason")) == ("Failed", "ResultTooLarge"), err
