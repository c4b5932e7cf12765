"""What a local run says that it came to, against what is there: real processes of the real program."""

import json
import subprocess
from typing import Any

import pytest
from tests.contract.local_machine import BRANCH, MOORAGE, Machine

from moorage.cli.exits import Exit
from moorage.testing.trees import git

ONE = {"agent": "echo 1 > one.txt", "check": "test -e one.txt"}


def moorage(machine: Machine, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [str(MOORAGE), "--state", str(machine.state), *argv]
    return subprocess.run(command, env=machine.env, capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.parametrize("delivery", [None, {"branch": BRANCH, "push": False}], ids=["none", "no push"])
def test_a_run_that_delivers_nothing_says_where_its_commit_can_be_seen(
    machine: Machine, delivery: dict[str, Any] | None
) -> None:
    machine.write(**ONE, delivery=delivery)
    code, result, err = machine.run()
    assert (code, result["phase"]) == (0, "Succeeded"), (result, err)
    assert result["workspace"] == {"branch": None, "repository": None}
    assert len(result["result"]["commit"]) == 40
    assert git(machine.repository, "branch", "--list", BRANCH) == ""
    assert "+++ b/one.txt" in moorage(machine, "diff", result["uid"]).stdout


def test_a_list_tells_what_became_of_each_run(machine: Machine) -> None:
    machine.write(**ONE)
    first = machine.run()[1]["uid"]
    machine.write(agent="sleep 50", branch="moorage/other")
    assert machine.killed(lambda: machine.told("AGENT_STARTED") > 1)
    told = json.loads(moorage(machine, "list", "-o", "json").stdout)
    assert [(each["phase"], each["branch"]) for each in told] == [
        ("Interrupted", "moorage/other"),
        ("Succeeded", BRANCH),
    ]
    assert told[1]["uid"] == first


def test_a_run_that_is_out_of_time_says_only_that(machine: Machine) -> None:
    machine.write(agent="sleep 50", constraints={"wallClock": "2s"})
    code, result, err = machine.run()
    assert (code, result["phase"], result["reason"]) == (Exit.PAUSED, "Paused", "BudgetExhausted")
    assert not [word for word in ("Traceback", "ASGI", "uvicorn") if word in err], err


def test_a_run_whose_output_has_nowhere_to_go_ends_as_it_ends(machine: Machine) -> None:
    machine.write(**ONE)
    command = [str(MOORAGE), "--state", str(machine.state), "run", "-f", str(machine.manifest)]
    closed = ["sh", "-c", '"$@" >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, env=machine.env, check=False, timeout=50).returncode == 0
    assert git(machine.repository, "show", f"{BRANCH}:one.txt") == "1"
