"""Commands to a run on this machine, by the real program: heard once and in their place, whatever dies meanwhile."""

import contextlib
import json
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator

import pytest
from tests.contract.commanded_run import Commanded, commanded
from tests.contract.local_machine import BRANCH, Machine

from moorage.testing.trees import ENV, git

pytestmark = pytest.mark.timeout(240)  # a case starts the program several times


@pytest.fixture
async def run(machine: Machine) -> AsyncIterator[Commanded]:
    async with commanded(machine) as made:
        yield made


@pytest.mark.rule("M2", "M3")
async def test_a_steer_is_heard_before_the_next_decision_and_a_follow_up_after_the_last(run: Commanded) -> None:
    process = await run.begun()
    code, receipt, err = await run.said("steer", "steps", "use tabs", "--id", "s1")
    assert (code, receipt["state"]) == (0, "Accepted"), err
    assert await run.said("steer", "steps", "use tabs", "--id", "s1") == (0, receipt, "")
    code, _, err = await run.said("steer", "steps", "use spaces", "--id", "s1")
    assert code == 1
    assert "the id of another command" in err
    assert (await run.said("follow-up", "steps", "now the docs", "--id", "f1"))[1]["state"] == "Accepted"
    run.go()
    assert (await run.ended(process))["phase"] == "Succeeded"
    first, second, third = run.heard()
    assert [text.count("use tabs") for text in (first, second, third)] == [0, 1, 1]
    assert [text.count("now the docs") for text in (first, second, third)] == [0, 0, 1]
    assert third.index("All done.") < third.index("now the docs")
    assert [run.machine.told(f"COMMAND_{word}") for word in ("ACCEPTED", "DELIVERED", "REJECTED")] == [2, 2, 0]
    code, late, _ = await run.said("steer", "steps", "use tabs", "--id", "s1")
    assert (code, late["state"], late["offset"]) == (0, "Delivered", receipt["offset"])


@pytest.mark.rule("X3", "M2")
async def test_a_cancel_ends_its_run_and_no_other_one(run: Commanded) -> None:
    process = await run.begun()
    code, receipt, err = await run.said("cancel", "steps", "--id", "c1", "--wait")
    assert code == 0, err
    assert (receipt["state"], receipt["reason"]) == ("Done", "Cancelled")
    assert (await run.ended(process))["phase"] == "Cancelled"
    code, receipt, _ = await run.said("cancel", "steps", "--id", "c2")
    assert (code, receipt["state"], receipt["reason"]) == (1, "Rejected", "RunEnded")
    run.go()
    again = run.machine.start()  # the next one is its own, whatever was said to the one before
    assert (await run.ended(again))["phase"] == "Succeeded"


@pytest.mark.rule("M3", "R7")
async def test_an_interrupted_run_hears_what_was_said_before_and_what_is_said_after(run: Commanded) -> None:
    process = await run.begun()
    assert (await run.said("steer", "steps", "use tabs", "--id", "s1"))[1]["state"] == "Accepted"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, _, err = await run.said("steer", "steps", "and short lines", "--id", "s2")
    assert code == 1
    assert "was interrupted" in err
    (run.machine.root / "begun").unlink()
    process = await run.begun()
    assert (await run.said("steer", "steps", "and short lines", "--id", "s2"))[1]["state"] == "Accepted"
    run.go()
    assert (await run.ended(process))["phase"] == "Succeeded"
    assert [run.heard()[-1].count(text) for text in ("use tabs", "and short lines")] == [1, 1]
    assert run.machine.told("COMMAND_DELIVERED") == run.machine.told("COMMAND_ACCEPTED") == 2


@pytest.mark.rule("M3", "N4")
async def test_a_message_to_an_agent_that_says_its_last_word_is_heard_before_the_result_is_accepted(
    run: Commanded,
) -> None:
    root = run.machine.root
    wait = f"touch {root}/proposing; while ! test -e {root}/said; do sleep 0.05; done"
    shim = run.machine.programs / "git"  # what the gateway looks at of a result takes as long as we like
    real = shutil.which("git", path=ENV["PATH"])
    shim.write_text(f'#!/bin/sh\ncase "$*" in */candidate*) {wait};; esac\nexec {real} "$@"\n')
    shim.chmod(0o755)
    process = await run.begun()
    run.go()
    await run.until(lambda: (root / "proposing").exists() or process.poll() is not None)
    assert (await run.said("follow-up", "steps", "now the docs", "--id", "f1"))[1]["state"] == "Accepted"
    (root / "said").touch()
    assert (await run.ended(process))["phase"] == "Succeeded"
    assert [text.count("now the docs") for text in run.heard()][-1] == 1
    assert run.machine.told("COMMAND_DELIVERED") == 1
    assert run.machine.told("EPOCH_RAISED") == 2


async def test_a_run_that_is_not_there_and_words_that_are_none(run: Commanded) -> None:
    code, _, err = await run.said("steer", "steps", "use tabs")
    assert code == 3
    assert "no run was ever made here" in err
    code, _, err = await run.said("steer", "steps", "  ")
    assert (code, "TEXT is empty" in err) == (2, True)


@pytest.mark.rule("T6", "R7")
async def test_a_result_waits_for_its_approval_over_a_kill_and_is_delivered_once(run: Commanded) -> None:
    machine = run.machine
    machine.write(agent="echo 1 > all.txt", check="test -e all.txt", approvals=[{"name": "push", "before": "Delivery"}])
    process = machine.start()
    await run.until(lambda: machine.told("APPROVAL_REQUESTED") == 1 or process.poll() is not None)
    process.kill()
    process.communicate()
    assert git(machine.repository, "branch", "--list", BRANCH) == ""
    process = machine.start()

    async def approved() -> bool:
        return (await run.said("approve", "steps", "push", "--id", "a1"))[0] == 0

    while not await approved():  # whoever goes on has to have begun
        assert process.poll() is None, process.communicate()
    assert (await run.ended(process))["phase"] == "Succeeded"
    assert machine.told("APPROVAL_REQUESTED") == machine.told("APPROVAL_DECIDED") == 1
    assert git(machine.repository, "show", f"{BRANCH}:all.txt") == "1"


def recorded_at(machine: Machine, kind: str) -> int:
    """When the only record of that type was made (ms)."""
    with contextlib.closing(sqlite3.connect(machine.state / "gateway" / "moorage.db")) as db:
        bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM execution_events")]
    (found,) = [body["recorded_at"] for body in bodies if body["type"] == kind]
    return int(found)


@pytest.mark.rule("T6")
def test_a_result_that_nobody_answers_for_is_refused_once_its_time_is_over_and_never_before(machine: Machine) -> None:
    asked = {"name": "push", "before": "Delivery", "rejectAfter": "2s"}
    machine.write(agent="echo 1 > all.txt", check="test -e all.txt", approvals=[asked])
    code, result, err = machine.run()
    assert (code, result["phase"], result["reason"]) == (1, "Failed", "ApprovalRejected"), err
    assert machine.told("APPROVAL_REQUESTED") == machine.told("APPROVAL_DECIDED") == 1
    asked_at, decided_at = (recorded_at(machine, f"APPROVAL_{word}") for word in ("REQUESTED", "DECIDED"))
    assert decided_at - asked_at >= 2_000
    assert git(machine.repository, "branch", "--list", BRANCH) == ""


@pytest.mark.rule("T6", "R7", "Q5")
@pytest.mark.parametrize("word", ["approve", "reject"])
async def test_a_run_that_was_let_go_while_it_waits_is_answered_without_a_process_and_goes_on_by_that(
    run: Commanded, word: str
) -> None:
    machine = run.machine
    run.asking({"name": "shell", "before": "ToolCall", "tools": ["bash"]})
    run.go()
    process = machine.start()
    await run.until(lambda: machine.told("APPROVAL_REQUESTED") == 1 or process.poll() is not None)
    assert (await run.said("pause", "steps", "--id", "p1"))[1]["state"] == "Accepted"  # as a minute without an answer
    assert (await run.ended(process))["phase"] == "Paused"
    code, _, err = await run.said("cancel", "steps", "--id", "c1")
    assert (code, "nobody works on it" in err) == (1, True)
    argv = (word, "steps", "shell", "--note", "not today", "--id", "a1")
    code, receipt, err = await run.said(*argv)
    assert (code, receipt["state"]) == (0, "Done"), err
    assert "the tool bash is to run: command=" in receipt["message"]
    assert await run.said(*argv) == (0, receipt, "")
    assert not (machine.root / "begun").exists()
    approved = (await run.ended(machine.start()))["phase"] == "Succeeded"
    answered = machine.told("APPROVAL_REQUESTED", '"answered":true')  # whoever goes on has come to it
    assert machine.told("APPROVAL_REQUESTED") - answered == machine.told("APPROVAL_DECIDED") == answered == 1
    assert approved == (machine.root / "begun").exists() == (word == "approve")
    assert ("not today" in run.heard()[-1]) == (word == "reject")
