"""T6 over attempts of programs that aren't ours: they decide anew, and a person's word is found, and used once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.posing_agents import SUBJECTS
from tests.contract.real_agents import path_with, resolved, run
from tests.contract.test_driver_approvals import answer
from tests.contract.test_driver_asks import MORE, SHELL

from moorage.api.wire import ResolvedAgent, ResolvedApproval
from moorage.core.run.state import PauseReason
from moorage.gateway.pausing import Pauses
from moorage.testing.models import Reply, Script
from moorage.testing.world import Run, Sandbox, World

pytestmark = pytest.mark.timeout(240)  # runners, and a real program, each started twice

LOOK = """
begin()
again = os.path.exists(os.path.join(os.environ["HOME"], "again"))
open(os.path.join(os.environ["HOME"], "again"), "w").close()
if again:
    ask("look", "Write"); verdict("look"); result("look")
"""
RUN = 'if verdict("NAME") == "yes":\n    open("ran.txt", "a").write("ran\\n")\n    result("NAME")\n'
DONE = """
if not again:
    ask("o", command="make it"); verdict("o"); result("o")
"""  # the same call, made before a safe point
LONG = f"mcp__{'x' * 130}__deploy"
NAMED = f"""
ask("n", "{LONG}"); keep("told.txt", verdict("n")); failed("n")
"""  # by a name that no person is shown
TWICE = "".join(f'ask("{name}", command="make it")\n' + RUN.replace("NAME", name) for name in ("a", "b")) + "end()"


def approval(driver: str) -> ResolvedApproval:
    return ResolvedApproval(name="shell", before="ToolCall", tools=(SHELL[driver], "*deploy"))


def posing(driver: str, folder: Path, before: str = "") -> ResolvedAgent:
    """An agent that looks around first where it goes on, and makes the same call twice, one after the other."""
    subject = SUBJECTS[driver]
    replace(subject, words=subject.words + MORE[driver]).write(folder, LOOK + before + TWICE)
    return subject.agent(f"{folder}:/usr/local/bin:/usr/bin:/bin")


async def questions(fix: Run) -> list[tuple[str, str]]:
    return [(each["key"].split(":")[1], each["status"]) for each in (await fix.state())["consents"]]


async def park(world: World, fix: Run) -> None:
    """The operator's word that nothing but a person is waited for, with the run's own time to obey it."""
    run = await world.gateway.gate.ledger.open(fix.spec.uid)
    assert await Pauses(world.gateway.gate).request(run, PauseReason.APPROVAL, "why", by="approvals")


async def one_question_left(fix: Run, second: Sandbox, before: int = 0) -> None:
    """The first call is made by the first answer, and the second one, though it is the same, waits for its own.
    `before`: how many were asked about and made before those.
    """
    await fix.until("APPROVAL_REQUESTED", before + 3, within_s=90)
    *_, (_, first), (_, other) = await questions(fix)
    assert (first, other) == ("approved", "pending")
    assert (second.tree / "ran.txt").read_text() == "ran\n"
    told = await fix.call("POST", "/commands", {"command_id": "c2", "type": "Approve", "approval": "shell"})
    assert told["state"] == "Done"
    assert await second.ended() == 0, second.said.read_text()
    assert (second.tree / "ran.txt").read_text() == "ran\nran\n"
    assert (await fix.state())["usage"]["human_approvals"] == before + 2
    told = [each.get("answered") for each in await fix.content("APPROVAL_REQUESTED")]
    assert told == [*(None for _ in range(before)), None, True, None]


@pytest.mark.rule("T6", "R1", "P6")
async def test_a_question_outlives_sandbox_and_gateway_of_a_program_that_decides_anew(tmp_path: Path) -> None:
    """Calls are counted from the last safe point, by whichever attempt: one like it, that was made before, is none."""
    async with World(tmp_path / "world") as world:
        agent = posing("acp", tmp_path / "bin", before=DONE)
        fix = await world.admit(agent=agent, approvals=(approval("acp"),))
        sandbox = await fix.start()
        await fix.until("APPROVAL_REQUESTED", within_s=90)
        await fix.call("POST", "/commands", {"command_id": "c0", "type": "Approve", "approval": "shell"})
        await fix.until("APPROVAL_REQUESTED", 2, within_s=90)
        assert (await fix.state())["iteration"] == 1, "a safe point lies between the two"
        await sandbox.kill()
        await world.restart_gateway(0)
        assert (await answer(fix, "Approve"))["state"] == "Done", "nobody works on it, and it is answered all the same"
        await fix.report("ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "NodeLost"})
        await one_question_left(fix, await fix.start(2), before=1)


@pytest.mark.rule("T6", "Q5")
async def test_a_program_that_would_only_wait_is_let_go_and_makes_its_call_in_the_next_sandbox(tmp_path: Path) -> None:
    async with World(tmp_path / "world") as world:
        agent = posing("claude-code", tmp_path / "bin", before=NAMED)
        fix = await world.admit(agent=agent, approvals=(approval("claude-code"),))
        sandbox = await fix.start()
        await fix.until("APPROVAL_REQUESTED", within_s=90)
        assert (await fix.state())["phase"] == "AwaitingApproval"
        assert "names up to 128 characters" in (sandbox.tree / "told.txt").read_text(), "and nobody was asked"
        await park(world, fix)
        assert await sandbox.ended() == 0, sandbox.said.read_text()
        assert (await fix.state())["agent_end"]["outcome"] == "paused"
        await fix.report("PAUSED", {"reason": "Approval", "message": ""})
        assert (await answer(fix, "Approve"))["state"] == "Done"
        await fix.report("RESUMED", {"reason": "Approval"})
        await one_question_left(fix, await fix.start(2))


@pytest.mark.rule("T6", "Q5")
@pytest.mark.parametrize("agent", ["claude-code", "opencode"])
async def test_a_real_agents_call_waits_without_a_sandbox_and_is_made_once(agent: str, tmp_path: Path) -> None:
    path, driver = path_with(agent, tmp_path / "bin"), "acp" if agent == "opencode" else agent
    pay = run(agent, "echo ran >> ran.txt")
    # the second one is for who goes on: an interrupted call, or a word of its own, is a step to the stand-in
    script = Script(replies=(run(agent, "echo 1 > one"), pay, pay, Reply(text="Gone on.")))
    async with World(tmp_path / "world", script=script) as world:
        assert world.model is not None
        held = ResolvedApproval(name="shell", before="ToolCall", tools=(SHELL[driver],))
        fix = await world.admit(agent=resolved(agent, path, url=world.model.url), approvals=(held,))
        sandbox = await fix.start()
        await fix.until("APPROVAL_REQUESTED", within_s=120)
        await fix.call("POST", "/commands", {"command_id": "c0", "type": "Approve", "approval": "shell"})
        await fix.until("APPROVAL_REQUESTED", 2, within_s=120)
        await park(world, fix)
        assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
        await fix.report("PAUSED", {"reason": "Approval", "message": ""})
        assert (await answer(fix, "Approve"))["state"] == "Done"
        await fix.report("RESUMED", {"reason": "Approval"})
        second = await fix.start(2)
        assert await second.ended(within_s=120) == 0, second.said.read_text()
        assert (second.tree / "ran.txt").read_text() == "ran\n"
        assert [status for _, status in await questions(fix)] == ["approved"] * 2
        assert "allows that very call once" in json.dumps(world.model.bodies[-1])
