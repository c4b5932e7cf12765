"""N4: an agent says that it is done, in a real runner against a real gateway: checked, told, verified, gone on with."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.contract.real_agents import AGENTS, path_with, resolved
from tests.contract.real_agents import run as asks_for

from moorage.api.wire import ResolvedAgent, ResolvedCheck, ResolvedContinuation, ResolvedModel, SecretRef
from moorage.testing.models import Reply, Script, ToolCall
from moorage.testing.models.script import Conversation
from moorage.testing.trees import git
from moorage.testing.world import BRANCH, Run, World

PATIENCE_S = 200.0  # of a machine that does much else
pytestmark = pytest.mark.timeout(600)  # each case starts several sandboxes

CHECK = ResolvedCheck(name="tests", run="echo looking; grep -q two a.txt || { echo 'FAIL: a.txt says one'; exit 3; }")
ROUNDS = ResolvedContinuation(check_rounds=2, nudges=True)
Make = Callable[..., Any]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def made(*replies: Reply, conversations: tuple[Conversation, ...] = ()) -> World:
            script = Script(replies=replies, conversations=conversations)
            return await stack.enter_async_context(World(tmp_path / "world", script=script))

        yield made


def bash(command: str) -> Reply:
    return Reply(tools=(ToolCall(name="bash", input={"command": command}),))


def through(world: World, agent: ResolvedAgent, continuation: ResolvedContinuation) -> ResolvedAgent:
    """The agent with the world's model behind the gateway."""
    assert world.model
    behind = {"base_url": world.model.url, "credentials": SecretRef(name="model", key="apiKey")}
    model = agent.model.model_copy(update=behind) if agent.model else None
    return agent.model_copy(update={"model": model, "continuation": continuation})


def agent(world: World, continuation: ResolvedContinuation = ROUNDS) -> ResolvedAgent:
    model = ResolvedModel(provider="p", protocol="anthropic-messages", base_url="http://unused", name="scripted")
    return through(world, ResolvedAgent(driver="builtin", model=model), continuation)


def real(world: World, name: str, tmp_path: Path, continuation: ResolvedContinuation = ROUNDS) -> ResolvedAgent:
    return through(world, resolved(name, path_with(name, tmp_path / "bin")), continuation)


def said(world: World, words: str) -> list[int]:
    """The requests that have these words."""
    assert world.model
    return [at for at, body in enumerate(world.model.bodies) if words in json.dumps(body, ensure_ascii=False)]


def asked(world: World, request: int) -> str:
    assert world.model
    return str(world.model.bodies[request])


async def delivered(world: World, run: Run, epoch: int = 1) -> str:
    assert await (await run.verify(epoch)).ended(PATIENCE_S) == 0
    assert (await run.state())["verification"]["passed"] is True
    await run.deliver(epoch)
    return git(world.remote.root / "shop.git", "show", f"{BRANCH}:a.txt")


@pytest.mark.rule("N4", "V3")
async def test_the_first_done_fails_acceptance_is_told_the_facts_and_the_second_succeeds(make):
    world = await make(
        bash("echo 2 > a.txt"), Reply(text="Done."), bash("echo two > a.txt"), Reply(text="Really done.")
    )
    run = await world.admit(agent=agent(world), acceptance=(CHECK,))
    sandbox = await run.start()
    assert await sandbox.ended(PATIENCE_S) == 0, sandbox.said.read_text()
    told = asked(world, 2)
    for fact in ("Acceptance `tests` failed", "ended with exit code 3", "FAIL: a.txt says one"):
        assert fact in told
    checks = await run.content("COMPLETION_CHECKED")
    assert [(c["round"], c["status"]) for c in checks] == [(1, "objected"), (2, "clear")]
    decisions = await run.content("CONTINUATION_DECIDED")
    assert [(d["decision"], d["kind"], d["iteration"]) for d in decisions] == [("nudge", "PreComplete", 2)]
    assert all(r.payload and "text" not in r.payload for r in await run.records() if r.type == "COMPLETION_CHECKED")
    state = await run.state()
    assert (state["phase"], state["agent_end"]["summary"]) == ("Verifying", "Really done.")
    assert await delivered(world, run) == "two"


@pytest.mark.rule("N2", "N4")
async def test_whoever_only_repeats_that_it_is_done_is_ended_and_judged(make):
    world = await make(bash("echo 2 > a.txt"), Reply(text="Done."))
    rounds = ResolvedContinuation(check_rounds=9, nudges=True)
    run = await world.admit(agent=agent(world, rounds), acceptance=(CHECK,))
    assert await (await run.start()).ended(PATIENCE_S) == 0
    end = (await run.state())["agent_end"]
    assert (end["outcome"], end["reason"]) == ("completed", "NoProgress"), "acceptance has the last word"
    assert world.model
    assert len(world.model.log) == 4, "one decision, and three times the same end"
    assert await (await run.verify()).ended(PATIENCE_S) == 0
    assert (await run.state())["verification"]["passed"] is False


@pytest.mark.rule("N4")
async def test_what_a_check_leaves_is_not_delivered_and_what_the_agent_ignores_helps_nobody(make):
    leaves = ResolvedCheck(name="leaves", run="touch left.txt; test ! -e helper.log")
    world = await make(bash("echo '*.log' > .gitignore; echo x > helper.log; echo two > a.txt"), Reply(text="Done."))
    run = await world.admit(agent=agent(world), acceptance=(leaves, CHECK))
    sandbox = await run.start()
    assert await sandbox.ended(PATIENCE_S) == 0
    assert [c["status"] for c in await run.content("COMPLETION_CHECKED")] == ["clear"]
    assert not (sandbox.tree / "left.txt").exists()
    assert await delivered(world, run) == "two"
    assert "left.txt" not in git(world.remote.root / "shop.git", "ls-tree", "--name-only", BRANCH)


@pytest.mark.rule("N4")
async def test_an_end_without_the_change_that_was_asked_for_is_told_so(make):
    world = await make(Reply(text="Done."), bash("echo two > a.txt"), Reply(text="Really done."))
    run = await world.admit(agent=agent(world), acceptance=())
    assert await (await run.start()).ended(PATIENCE_S) == 0
    assert "no file differs from where you began" in asked(world, 1)
    assert (await run.state())["proposal"]["empty"] is False


@pytest.mark.rule("N4", "R4")
async def test_a_failed_verification_is_gone_on_from_in_a_new_attempt_that_is_told_why(make):
    steps = (bash("echo 2 > a.txt"), Reply(text="Done."), bash("echo two > a.txt"))
    world = await make(*steps, Reply(text="Mended."))
    run = await world.admit(agent=agent(world, ResolvedContinuation()), acceptance=(CHECK,))
    assert await (await run.start()).ended(PATIENCE_S) == 0
    assert await (await run.verify()).ended(PATIENCE_S) == 0
    summary = (await run.state())["verification"]["summary"]
    await run.report("ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "AcceptanceFailed", "message": summary})
    state = await run.state()
    assert (state["phase"], state["rounds"], state["strikes"]) == ("Recovering", 1, 0)
    assert world.model
    before = len(world.model.log)
    assert await (await run.start(2)).ended(PATIENCE_S) == 0
    opening = asked(world, before)
    assert opening.index("Done.") < opening.index("<handoff>"), "the conversation goes on"
    for fact in ("was not accepted", "Acceptance failed on", "FAIL: a.txt says one", "make the tests pass"):
        assert fact in opening
    assert await delivered(world, run, 2) == "two"


@pytest.mark.rule("N4")
@pytest.mark.parametrize("name", AGENTS)
async def test_a_real_agent_hears_of_it_in_its_own_conversation(make, name, tmp_path):
    steps = (asks_for(name, "echo 2 > a.txt"), Reply(text="Done."), asks_for(name, "echo two > a.txt"))
    world = await make(*steps, Reply(text="Really done."))
    run = await world.admit(agent=real(world, name, tmp_path), acceptance=(CHECK,))
    sandbox = await run.start()
    assert await sandbox.ended(PATIENCE_S) == 0, sandbox.said.read_text()
    told = said(world, "Acceptance `tests` failed")
    assert told
    assert set(told) <= set(said(world, "Done.")), "the conversation goes on"
    state = await run.state()
    assert (state["phase"], state["agent_end"]["summary"]) == ("Verifying", "Really done.")
    assert await delivered(world, run) == "two"


@pytest.mark.rule("N4", "R4", "P2")
@pytest.mark.parametrize("name", ["claude-code", "codex", "pi"])
async def test_a_real_agent_goes_on_with_its_conversation_after_a_failed_verification(make, name, tmp_path):
    steps = (asks_for(name, "echo 2 > a.txt"), Reply(text="Done."), asks_for(name, "echo two > a.txt"))
    world = await make(*steps, Reply(text="Really done."))
    run = await world.admit(agent=real(world, name, tmp_path, ResolvedContinuation()), acceptance=(CHECK,))
    assert await (await run.start()).ended(PATIENCE_S) == 0
    assert await (await run.verify()).ended(PATIENCE_S) == 0
    await run.report("ATTEMPT_ENDED", {"epoch": 1, "role": "runner", "reason": "AcceptanceFailed", "message": "no"})
    second = await run.start(2)
    assert await second.ended(PATIENCE_S) == 0, second.said.read_text()
    told = said(world, "Acceptance failed on")
    assert told
    assert set(told) <= set(said(world, "Done.")), "the conversation goes on"
    assert said(world, "FAIL: a.txt says one")
    assert await delivered(world, run, 2) == "two"


@pytest.mark.rule("N1")
@pytest.mark.parametrize("name", ["codex", "pi"])
async def test_a_real_agent_goes_on_where_its_answer_was_cut(make, name, tmp_path):
    cut = Reply(text="Half an", stop_reason="max_tokens")
    world = await make(cut, asks_for(name, "echo two > a.txt"), Reply(text="Done."))
    run = await world.admit(agent=real(world, name, tmp_path), acceptance=(CHECK,))
    sandbox = await run.start()
    assert await sandbox.ended(PATIENCE_S) == 0, sandbox.said.read_text()
    assert "Go on exactly where it stopped" in asked(world, 1)
    assert (await run.state())["agent_end"]["outcome"] == "completed"
    assert await delivered(world, run) == "two"


@pytest.mark.rule("N2", "N4")
@pytest.mark.parametrize("name", AGENTS)
async def test_a_real_agent_that_only_repeats_itself_does_not_use_up_the_quota(make, name, tmp_path):
    world = await make(asks_for(name, "echo 2 > a.txt"), Reply(text="Done."))
    often = ResolvedContinuation(check_rounds=20)
    run = await world.admit(agent=real(world, name, tmp_path, often), acceptance=(CHECK,))
    sandbox = await run.start()
    assert await sandbox.ended(PATIENCE_S) == 0, sandbox.said.read_text()
    end = (await run.state())["agent_end"]
    assert (end["outcome"], end["reason"]) == ("completed", "NoProgress")
    assert "FAIL: a.txt says one" in end["message"]
    decisions = await run.content("CONTINUATION_DECIDED")
    assert [d["decision"] for d in decisions] == ["nudge", "nudge", "terminate"]


@pytest.mark.rule("N6")
@pytest.mark.parametrize("name", ["claude-code", "codex", "pi"])
async def test_a_real_agent_that_goes_in_circles_is_told_the_facts_and_then_ended(make, name, tmp_path):
    world = await make(*[asks_for(name, "cat a.txt")] * 30)
    run = await world.admit(agent=real(world, name, tmp_path), acceptance=(CHECK,))
    sandbox = await run.start()
    assert await sandbox.ended(PATIENCE_S) == 0, sandbox.said.read_text()
    end = (await run.state())["agent_end"]
    assert (end["outcome"], end["reason"]) == ("failed", "NoProgress")
    assert "was called 10 times" in end["message"]
    assert said(world, "was called 5 times"), "in its own conversation"
    decisions = await run.content("CONTINUATION_DECIDED")
    assert [(d["decision"], d["kind"]) for d in decisions] == [("nudge", "Circle")]
    assert (await run.state())["usage"]["tool_calls"] == 10
    assert sandbox.left() == []


@pytest.mark.rule("N4", "V3")
async def test_a_check_that_cannot_be_made_stands_against_nothing(make):
    world = await make(bash('echo two > a.txt; rm -rf "$TMPDIR"; echo > "$TMPDIR"'), Reply(text="Done."))
    run = await world.admit(agent=agent(world), acceptance=(CHECK,))
    sandbox = await run.start()
    assert await sandbox.ended(PATIENCE_S) == 0, sandbox.said.read_text()
    (check,) = await run.content("COMPLETION_CHECKED")
    assert (check["status"], check["checks"]) == ("unchecked", []), "something stands in its place"
    assert await delivered(world, run) == "two"
