"""The driver `builtin` in a real runner, against a real gateway, model door and git remote, over a stand-in model."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedCheck
from moorage.runner.exitcodes import Exit
from moorage.testing.models import Fault, Reply, Script, ToolCall, load
from moorage.testing.models.script import Usage
from moorage.testing.trees import git
from moorage.testing.world import BRANCH, MODEL_KEY, Run, Sandbox, World

pytestmark = pytest.mark.timeout(180)  # each case starts one to four runners

ROOT = Path(__file__).parents[2]
USAGE = Usage(input_tokens=100, output_tokens=10, cache_read_input_tokens=1_000, cache_creation_input_tokens=50)
DONE = Reply(text="All done.", usage=USAGE)
Make = Callable[..., Any]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def made(*replies: Reply, **more: Any) -> World:
            script = more.pop("script", None) or Script(replies=replies)
            return await stack.enter_async_context(World(tmp_path / "world", script=script, **more))

        yield made


def bash(command: str, text: str = "", **more: Any) -> Reply:
    return Reply(text=text, tools=(ToolCall(name="bash", input={"command": command}),), usage=USAGE, **more)


def speaking(world: World, protocol: str) -> ResolvedAgent:
    return ResolvedAgent(driver="builtin", model=world.scripted().model_copy(update={"protocol": protocol}))


@pytest.mark.rule("V3", "M1", "N4", "T2")
async def test_the_demo_is_mended_verified_and_delivered(make):
    files = {path.name: path.read_text() for path in (ROOT / "examples" / "demo").iterdir() if path.is_file()}
    world = await make(script=load(ROOT / "e2e" / "manifests" / "model-script.yaml"), files=files)
    check = ResolvedCheck(name="tests", run="python3 -m unittest -q")
    run = await world.admit(acceptance=(check,))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    assert await (await run.verify()).ended() == 0
    state = await run.state()
    assert state["verification"]["passed"] is True
    assert (state["iteration"], state["usage"]["tool_calls"], state["usage"]["model_requests"]) == (6, 5, 6)
    assert state["usage"]["cache_read_tokens"] == 9_074
    await run.deliver()
    diff = git(world.remote.root / "shop.git", "diff", "--name-only", "main", BRANCH)
    assert diff.split() == ["slugify.py"]
    assert {entry.api_key for entry in world.model.log} == {MODEL_KEY}
    assert set(Counter(entry.key for entry in world.model.log).values()) == {1}
    assert [p["changed"] for p in await run.content("ITERATION_COMPLETE")] == [False, False, True, True, False, False]


@pytest.mark.rule("M1", "J8")
async def test_each_call_is_sealed_before_it_runs_and_told_after(make):
    world = await make(bash("echo hi; exit 3", "I look."), DONE)
    run = await world.admit()
    assert await (await run.start()).ended() == 0
    asked, told = [(await run.content(kind))[0] for kind in ("TOOL_REQUEST", "TOOL_RESPONSE")]
    assert asked["arguments"] == {"command": "echo hi; exit 3"}
    assert (told["ok"], told["exit_code"], told["content"]) == (False, 3, "hi\n[exit code 3]")
    records = [r for r in await run.records() if r.type.startswith("TOOL_")]
    assert [(r.type, r.tool_call_id, r.turn) for r in records] == [
        ("TOOL_REQUEST", "1.0", 1),
        ("TOOL_RESPONSE", "1.0", 1),
    ]
    assert all(r.payload_ref is not None and "command" not in (r.payload or {}) for r in records), "content is erasable"
    logs = await run.content("AGENT_OUTPUT")
    assert "I look." in "".join(p["text"] for p in logs)


@pytest.mark.rule("R2", "O3")
async def test_a_decision_is_asked_for_again_only_where_it_brought_no_answer(make):
    faults = (
        Fault(kind="status", status=429, retry_after_s=0.2),
        Fault(kind="status", status=529),
        Fault(kind="cut", after=1),
    )
    world = await make(bash("echo two > a.txt", faults=faults), DONE)
    run = await world.admit()
    assert await (await run.start()).ended() == 0
    assert (await run.state())["phase"] == "Verifying"
    assert [entry.status for entry in world.model.log] == [429, 529, 200, 200, 200]
    assert (await run.state())["iteration"] == 2


async def test_a_gateway_that_restarts_while_the_model_answers_costs_no_second_tool_call(make):
    world = await make(bash("echo two > a.txt", faults=(Fault(kind="drip", seconds=0.2),)), DONE)
    run = await world.admit()
    sandbox = await run.start()
    await run.until("MODEL_REQUEST")
    await world.restart_gateway(down_s=0.3)
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    assert (await run.state())["phase"] == "Verifying"
    assert (await run.types()).count("TOOL_REQUEST") == 1


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "ModelUnauthorized"), (403, "ModelUnauthorized"), (400, "ModelRefused")]
)
async def test_a_refusal_fails_at_once_by_name(make, status, reason):
    world = await make(bash("true", faults=(Fault(kind="status", status=status, times=9, message="no way"),)))
    run = await world.admit()
    assert await (await run.start()).ended() == 0
    end = (await run.state())["agent_end"]
    assert (end["outcome"], end["reason"]) == ("failed", reason)
    assert "no way" in end["message"]
    assert len(world.model.log) == 1


@pytest.mark.rule("B3")
@pytest.mark.parametrize(
    ("limits", "iterations"),
    [
        (ResolvedLimits(max_iterations=2), 2),
        (ResolvedLimits(max_iterations=0), 0),
        (ResolvedLimits(tokens_hard=2_000), 2),
        (ResolvedLimits(tokens_hard=0), 0),
    ],
)
async def test_a_spent_budget_ends_the_work_and_keeps_it(make, limits, iterations):
    replies = [bash(f"echo {n} > a.txt") for n in range(9)]
    world = await make(*replies, DONE)
    run = await world.admit(limits=limits)
    assert await (await run.start()).ended() == 0
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["agent_end"]["reason"]) == ("exhausted", "BudgetExhausted")
    assert (state["iteration"], len(world.model.log)) == (iterations, iterations)


@pytest.mark.rule("X1", "X2")
async def test_cancel_ends_a_running_tool_at_once(make):
    world = await make(bash("echo half > half.txt; (trap '' TERM; sleep 100 & sleep 100); sleep 100"), DONE)
    run = await world.admit()
    sandbox = await run.start()
    await run.until("TOOL_REQUEST")
    async with asyncio.timeout(40):
        while not (sandbox.tree / "half.txt").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    assert await sandbox.ended(within_s=40) == 0
    assert sandbox.left() == []
    state = await run.state()
    assert (state["agent_end"]["outcome"], state["cancel_stage"], state["drift"]) == ("cancelled", "acknowledged", 1)


async def test_cancel_ends_a_silent_model(make):
    world = await make(Reply(text="x", faults=(Fault(kind="stall", times=9),)))
    run = await world.admit()
    sandbox = await run.start()
    await run.until("MODEL_REQUEST")
    await run.report("CANCEL_REQUESTED", {"reason": "user"})
    assert await sandbox.ended(within_s=40) == 0
    assert (await run.state())["agent_end"]["outcome"] == "cancelled"


WAIT = "echo lost > half.txt; while [ ! -e ../go ]; do sleep 0.05; done; cat a.txt"


async def killed_in_a_call(run: Run, epoch: int, reason: str = "NodeLost") -> Sandbox:
    """An attempt that dies while the command of its last decision runs."""
    sandbox = await run.start(epoch)
    async with asyncio.timeout(40):
        while not (sandbox.tree / "half.txt").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await sandbox.kill()
    await run.report("ATTEMPT_ENDED", {"epoch": epoch, "reason": reason, "message": "power"})
    return sandbox


@pytest.mark.rule("R1", "R2", "R3", "R4", "E2", "I4")
async def test_a_killed_attempts_last_decision_is_acted_on_and_not_asked_for_again(make):
    world = await make(bash("echo two > a.txt"), bash(WAIT), DONE)
    run = await world.admit(limits=ResolvedLimits(max_iterations=3, tokens_hard=3_000))  # 1,160 each, billed once
    first = await killed_in_a_call(run, 1)
    assert len(world.model.log) == 2
    (first.volume / "go").touch()
    second = await run.start(epoch=2)
    assert await second.ended() == 0, second.said.read_text()
    state = await run.state()
    assert (state["phase"], state["iteration"], state["drift"]) == ("Verifying", 3, 1)
    assert len(world.model.log) == state["usage"]["model_requests"] == 3, "the third decision alone is new"
    assert (state["usage"]["input_tokens"], state["usage"]["output_tokens"]) == (300, 30)
    calls = [(r.type, r.tool_call_id) for r in await run.records() if r.type.startswith("TOOL_")]
    assert calls[2:] == [("TOOL_REQUEST", "2.0"), ("TOOL_REQUEST", "2.0"), ("TOOL_RESPONSE", "2.0")]
    *before, results = world.model.bodies[2]["messages"]
    assert [message["role"] for message in before] == ["user", "assistant", "user", "assistant"]
    assert results["content"][0]["content"].startswith("two\n")
    assert "<handoff>" in results["content"][-1]["text"]
    assert [b for m in before for b in m["content"] if "cache_control" in b] == []
    assert state["checkpoint"]["iteration"] == 2
    assert git(second.tree, "show", f"{state['proposal']['commit']}:a.txt") == "two"


@pytest.mark.rule("R1", "R2")
@pytest.mark.parametrize("protocol", ["openai-responses", "openai-chat"])
async def test_it_is_so_in_the_other_protocols_too(make, protocol):
    world = await make(bash("echo two > a.txt"), bash(WAIT), DONE)
    run = await world.admit(agent=speaking(world, protocol))
    first = await killed_in_a_call(run, 1)
    (first.volume / "go").touch()
    second = await run.start(epoch=2)
    assert await second.ended() == 0, second.said.read_text()
    state = await run.state()
    assert (state["phase"], state["iteration"]) == ("Verifying", 3)
    assert len(world.model.log) == state["usage"]["model_requests"] == 3, "the third decision alone is new"
    assert {entry.api_key for entry in world.model.log} == {MODEL_KEY}
    last = json.dumps(world.model.bodies[2])
    assert last.count("echo lost") == 1
    assert "two\\n" in last
    assert "<handoff>" in last


@pytest.mark.rule("R6")
async def test_a_decision_that_kills_its_sandbox_is_not_acted_on_again(make):
    world = await make(bash("echo two > a.txt"), bash(WAIT), DONE)
    run = await world.admit()
    first = await killed_in_a_call(run, 1, "OOMKilled")
    (first.volume / "go").touch()
    assert await (await run.start(epoch=2)).ended() == 0
    (opening,) = world.model.bodies[2]["messages"]
    assert "OOMKilled" in opening["content"][0]["text"]


@pytest.mark.rule("R6")
async def test_a_decision_at_which_three_attempts_died_is_made_anew(make):
    world = await make(bash("echo two > a.txt"), bash(WAIT), DONE)
    run = await world.admit()
    for epoch in (1, 2, 3):
        sandbox = await killed_in_a_call(run, epoch)
        assert len(world.model.log) == 2
        (sandbox.tree / "half.txt").unlink()
    (sandbox.volume / "go").touch()
    assert await (await run.start(epoch=4)).ended() == 0
    assert len(world.model.bodies[2]["messages"]) == 1


@pytest.mark.rule("F3")
async def test_a_fenced_agent_decides_nothing_more(make):
    world = await make(bash("echo two > a.txt; while [ ! -e ../go ]; do sleep 0.05; done"), DONE)
    run = await world.admit()
    sandbox = await run.start()
    await run.until("TOOL_REQUEST")
    await run.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "no heartbeat"})
    await run.fence(2)
    assert await sandbox.ended() == Exit.FENCED
    assert json.loads(sandbox.log.read_text())["reason"] == "Fenced"
    assert sandbox.left() == []
    assert len(world.model.log) == 1


@pytest.mark.rule("B2", "B3")
@pytest.mark.parametrize("most", [2, 0])
async def test_no_tool_is_called_beyond_its_limit(make, most):
    both = (ToolCall(name="bash", input={"command": "echo . >> dots"}),) * 2
    world = await make(*[Reply(tools=both, usage=USAGE)] * 4, DONE)
    run = await world.admit(limits=ResolvedLimits(tool_calls_hard=most))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    state = await run.state()
    assert state["usage"]["tool_calls"] == most
    assert [(v["constraint"], v["action"]) for v in state["violations"]] == [("toolCalls", "GRACEFUL_EXIT")]
    assert (state["pause"]["reason"], state["pause"]["limit"]) == ("BudgetExhausted", "tool_calls_hard")
    dots = sandbox.tree / "dots"
    assert (dots.read_text() if dots.exists() else "") == ".\n" * most


@pytest.mark.rule("C7")
async def test_the_file_says_what_is_left_of_all_that_is_limited(make):
    look = "cat $MOORAGE_REMAINING_FILE > seen.json"
    world = await make(bash(look), DONE)
    run = await world.admit(limits=ResolvedLimits(tool_calls_hard=3, effects_hard=0, wall_clock_ms=3_600_000))
    sandbox = await run.start()
    assert await sandbox.ended() == 0, sandbox.said.read_text()
    seen = json.loads((sandbox.tree / "seen.json").read_text())
    assert (seen["tool_calls"], seen["effects"], seen["tokens"], seen["exhausted"]) == (2, 0, None, None)
    assert seen["ends_at"] is not None
    left = json.loads((sandbox.tree.parent / ".moorage" / "agent" / "remaining.json").read_text())
    assert left["tool_calls"] == 2
