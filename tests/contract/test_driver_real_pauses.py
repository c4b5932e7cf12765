"""Real agents whose run pauses: the conversation goes on from the safe point, and nothing is asked twice."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.contract.real_agents import USAGE, path_with, resolved, run

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedTimeouts
from moorage.core.run.state import PauseReason
from moorage.gateway.pausing import Pauses
from moorage.testing.models import Reply, Script
from moorage.testing.world import Run, World

pytestmark = pytest.mark.timeout(300)  # real programs, started twice

GONE_ON: Mapping[str, int] = {"claude-code": 1, "codex": 0, "pi": 0}
"""Answers of its own that an agent puts before what it is told when it goes on: the stand-in takes them for a step."""
EACH = 1_110  # tokens of an answer


@pytest.fixture(params=GONE_ON)
def agent(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(agent: str, tmp_path: Path) -> str:
    return path_with(agent, tmp_path / "bin")


def steps(agent: str, *commands: str) -> Script:
    more = ("true",) * GONE_ON[agent]
    return Script(replies=(*(run(agent, command) for command in (*commands, *more)), Reply(text="Gone on.")))


async def goes_on(world: World, work: Run, agent: str, before: int) -> None:
    """The operator's part from the end of the first sandbox to that of the second, and what must hold then."""
    await work.report("PAUSED", {"reason": "x", "message": ""})
    await work.report("RESUMED", {"reason": "x"})
    again = await work.start(2)
    assert await again.ended(within_s=120) == 0, again.said.read_text()
    state, model = await work.state(), world.model
    assert model is not None
    assert (state["agent_end"]["outcome"], state["agent_end"]["summary"]) == ("completed", "Gone on.")
    asked = [entry.reply for entry in model.log]
    assert asked[:before] == list(range(before))
    assert (asked, asked[-1]) == (sorted(set(asked)), before + GONE_ON[agent]), (
        "the conversation went on where it stood"
    )
    assert len({entry.key for entry in model.log}) == len(model.log), "no decision is asked for twice"
    assert state["strikes"] == 0


@pytest.mark.rule("C3", "B3", "P6")
async def test_an_agent_whose_model_is_refused_to_it_goes_on_once_the_limit_is_raised(agent, path, tmp_path):
    async with World(tmp_path / "world", script=steps(agent, "echo 1 > one", "echo 2 > two")) as world:
        limits = ResolvedLimits(tokens_hard=EACH + 1)
        work = await world.admit(agent=resolved(agent, path, url=world.model.url), limits=limits)
        sandbox = await work.start()
        assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
        state = await work.state()
        assert state["agent_end"]["outcome"] in {"paused", "exhausted"}, state["agent_end"]
        assert state["pause"]["limit"] == "tokens_hard"
        assert state["iteration"] >= 2
        await work.report("LIMITS_RAISED", {"limits": {"tokens_hard": 100 * EACH}, "by": "spec"})
        await goes_on(world, work, agent, before=2)
        usage = (await work.state())["usage"]
        assert usage["input_tokens"] + usage["output_tokens"] + usage["cache_read_tokens"] >= 2 * EACH


@pytest.mark.rule("Q5", "P6")
async def test_an_agent_that_is_to_pause_is_left_at_its_next_safe_point_and_goes_on_from_there(agent, path, tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"
    wait = f"touch {begun}; until test -e {go}; do sleep 0.1; done; echo 2 > two"
    async with World(tmp_path / "world", script=steps(agent, "echo 1 > one", wait)) as world:
        work = await world.admit(agent=resolved(agent, path, url=world.model.url))
        sandbox = await work.start()
        async with asyncio.timeout(120):
            while not begun.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ledger = world.gateway.gate.ledger
        pauses = Pauses(world.gateway.gate)
        assert await pauses.request(await ledger.open(work.spec.uid), PauseReason.COMMAND, "why", by="ada")
        go.touch()
        assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
        state = await work.state()
        assert (state["agent_end"]["outcome"], state["iteration"], state["drift"]) == ("paused", 2, 0)
        assert (sandbox.tree / "two").read_text() == "2\n"
        await goes_on(world, work, agent, before=2)


@pytest.mark.rule("B3", "C3")
@pytest.mark.parametrize("agent", ["codex", "pi"], indirect=True)
async def test_of_fifty_calls_in_one_decision_no_more_are_made_than_the_run_may(agent, path, tmp_path):
    """Neither asks before its calls, and both run them side by side."""
    calls = tuple(run(agent, f"echo {number} > made-{number}").tools[0] for number in range(50))
    script = Script(replies=(Reply(text="I work.", tools=calls, usage=USAGE),))
    async with World(tmp_path / "world", script=script) as world:
        work = await world.admit(
            agent=resolved(agent, path, url=world.model.url),
            limits=ResolvedLimits(tool_calls_hard=3),
            timeouts=ResolvedTimeouts(pause_ms=1_000),
        )
        sandbox = await work.start()
        assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
        state = await work.state()
        assert state["agent_end"]["outcome"] in {"paused", "exhausted"}, state["agent_end"]
        assert state["pause"]["limit"] == "tool_calls_hard"
        assert len([each for each in sandbox.tree.iterdir() if each.name.startswith("made-")]) <= 3
        assert state["usage"]["tool_calls"] <= 3
        assert len(world.model.log) == 1, "no further decision is bought"
        assert sandbox.left() == []
