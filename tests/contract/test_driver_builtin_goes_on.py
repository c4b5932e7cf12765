"""R4, C3: an attempt of `builtin` goes on with the conversation of the one before, and with what came of its calls."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.real_agents import model_door, resolved
from tests.contract.test_driver_builtin import DONE, Make, bash, make, speaking

from moorage.api.budget import ResolvedLimits
from moorage.api.work import CallResult
from moorage.core.run.state import PauseReason
from moorage.drivers.builtin.messages import MessagesConversation
from moorage.drivers.port import Past
from moorage.drivers.registry import load
from moorage.gateway.pausing import Pauses
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Fault
from moorage.testing.world import Run, World

__all__ = ["make"]  # a fixture

pytestmark = pytest.mark.timeout(180)  # each case starts two or three runners

LOOK = bash("echo two > a.txt; echo first look", text="I look.")
AGAIN = bash("echo second look")


async def raised(world: World, run: Run, tokens: int) -> None:
    """The operator has the run pause, somebody raises the limit, and it goes on."""
    gate = world.gateway.gate
    assert await Pauses(gate).request(await gate.ledger.open("u1"), PauseReason.BUDGET, "used up", by="limits")
    await run.report("LIMITS_RAISED", {"limits": {"tokens_hard": tokens}, "by": "spec"})
    await run.report("PAUSED", {"reason": "BudgetExhausted", "message": ""})
    await run.report("RESUMED", {"reason": "BudgetExhausted"})


def in_order(told: str, *parts: str) -> None:
    places = [told.index(part) for part in parts]
    assert places == sorted(places), places


@pytest.mark.rule("R4", "C3")
@pytest.mark.parametrize("protocol", ["anthropic-messages", "openai-responses", "openai-chat"])
async def test_a_run_whose_limit_is_raised_goes_on_in_its_conversation(make: Make, protocol: str) -> None:
    world = await make(LOOK, AGAIN, DONE)
    run = await world.admit(agent=speaking(world, protocol), limits=ResolvedLimits(tokens_hard=2_000))
    assert await (await run.start()).ended() == 0
    await raised(world, run, 1_000_000)
    second = await run.start(epoch=2)
    assert await second.ended() == 0, second.said.read_text()
    state = await run.state()
    assert (state["phase"], state["iteration"], state["usage"]["tool_calls"]) == ("Verifying", 3, 2)
    assert len(world.model.bodies) == 3
    told = json.dumps(world.model.bodies[2])
    in_order(told, "I look.", "first look\\n", "second look\\n", "<handoff>", "it was paused, and goes on")
    assert told.count("echo first look") == told.count("echo second look") == 1


@pytest.mark.rule("R4", "B3")
async def test_an_attempt_that_was_killed_undecided_is_gone_on_with_and_used_no_iteration(make: Make) -> None:
    world = await make(LOOK, bash("cat a.txt", faults=(Fault(kind="stall"),)), DONE)
    run = await world.admit(limits=ResolvedLimits(max_iterations=3))
    first = await run.start()
    await run.until("MODEL_REQUEST", count=2)
    await first.kill()
    await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "power"})
    second = await run.start(epoch=2)
    assert await second.ended() == 0, second.said.read_text()
    told = json.dumps(world.model.bodies[2])
    in_order(told, "first look\\n", "<handoff>", "NodeLost")
    assert told.count("echo first look") == 1
    state = await run.state()
    assert (state["phase"], state["iteration"]) == ("Verifying", 4)  # 2 was begun, three are complete


def past_of(talk: MessagesConversation, call: str) -> Past:
    talk.say("mend a.txt")
    tool = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": call}}
    answer = {"type": "message", "role": "assistant", "content": [tool], "stop_reason": "tool_use", "usage": {}}
    return Past(talk.request("scripted", ()), json.dumps(answer).encode())


@pytest.mark.rule("R4")
@pytest.mark.parametrize("known", [True, False], ids=["known", "lost"])
async def test_a_decision_whose_results_nobody_knows_is_left_out_and_that_is_said(
    tmp_path: Path, *, known: bool
) -> None:
    (tmp_path / "tree").mkdir()
    host = LocalHost(tmp_path / "tree")
    past = past_of(MessagesConversation(), "echo seen")
    came = {0: CallResult(index=0, ok=True, content="seen\n")} if known else {}
    async with model_door(host, DONE) as (url, model):
        task = task_for(host, resolved("builtin", "", "anthropic-messages"), handoff="as it stands", next_iteration=2)
        ended = await load("builtin").run(replace(task, relay_url=url, past=replace(past, results=came)), host)
    assert ended.outcome == "completed", ended
    (body,) = model.bodies
    assert ("echo seen" in str(body)) is known
    assert ("their results are lost" in str(body)) is not known
