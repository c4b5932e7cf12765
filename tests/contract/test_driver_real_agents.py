"""Real, unmodified agents, from npm, driven against the stand-in model: what they do is told as facts."""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.real_agents import AGENTS, DONE, DRIVERS, PROTOCOLS, USAGE, model_door, path_with, resolved, run

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedCheck, SecretRef
from moorage.app.tracing import named
from moorage.core.models import spoken as protocols
from moorage.drivers.port import Driver
from moorage.drivers.registry import load
from moorage.drivers.sessions import AGAIN, APART
from moorage.telemetry.spans import Span, woven
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Fault, Reply, Script, ToolCall
from moorage.testing.models.script import Conversation
from moorage.testing.trees import git
from moorage.testing.world import BRANCH, MODEL_KEY, World

COUNTING = frozenset({"claude-code", "codex", "pi"})  # those that tell of their use
# opencode takes seconds to start; what its driver makes of these is in tests/contract/test_driver_contract.py
QUICK = tuple(agent for agent in AGENTS if agent != "opencode")
quick = pytest.mark.parametrize("agent", QUICK, indirect=True)
pytestmark = pytest.mark.timeout(300)  # real programs, started twice where a conversation goes on


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> str:
    return request.param


def driver(agent: str) -> Driver:
    return load(DRIVERS.get(agent, agent))


@pytest.fixture
def path(agent: str, tmp_path: Path) -> str:
    return path_with(agent, tmp_path / "bin")


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("one\n")
    return LocalHost(tree)


async def test_it_mends_a_file_and_tells_each_call(agent, path, host):
    steps = (run(agent, "cat a.txt", text="I look."), run(agent, "echo two > a.txt; exit 3"), DONE)
    async with model_door(host, *steps) as (url, model):
        outcome = await driver(agent).run(task_for(host, resolved(agent, path), relay_url=url), host)
    assert (outcome.outcome, outcome.summary) == ("completed", "All done.")
    assert (host.tree / "a.txt").read_text() == "two\n"
    assert [entry.status for entry in model.log] == [200, 200, 200]
    assert [(t.type, t.tool_call_id) for t in host.told] == [
        ("TOOL_REQUEST", "1.0"),
        ("TOOL_RESPONSE", "1.0"),
        ("TOOL_REQUEST", "2.0"),
        ("TOOL_RESPONSE", "2.0"),
    ]
    assert host.iterations == [1, 2, 3]
    total = {name: sum(each.get(name, 0) for each in host.usage) for name in host.usage[-1]}
    counted = {"input_tokens": 300, "output_tokens": 30, "cache_read_tokens": 3_000}
    assert total == (counted if agent in COUNTING else {})


@pytest.mark.parametrize(
    ("status", "end"), [(401, ("failed", "ModelUnauthorized")), (400, ("exhausted", "BudgetExhausted"))]
)
@quick
async def test_a_refusal_of_the_model_is_no_success_whatever_the_exit_code(agent, path, host, status, end):
    message = "BudgetExhausted: the run's token limit is used up" if status == 400 else "no way"
    fault = Fault(kind="status", status=status, times=99, message=message)
    async with model_door(host, Reply(text="Fine.", faults=(fault,))) as (url, _):
        ended = await driver(agent).run(task_for(host, resolved(agent, path), relay_url=url), host)
    assert (ended.outcome, ended.reason) == end
    assert message in ended.message


@quick
async def test_a_failure_that_it_gets_over_is_none(agent, path, host):
    fault = Fault(kind="status", status=500)
    first = run(agent, "echo two > a.txt").model_copy(update={"faults": (fault,)})
    async with model_door(host, first, DONE) as (url, _):
        ended = await driver(agent).run(task_for(host, resolved(agent, path), relay_url=url), host)
    assert (ended.outcome, (host.tree / "a.txt").read_text()) == ("completed", "two\n")


@pytest.mark.rule("B3")
@quick
async def test_no_decision_follows_the_last_iteration_that_there_may_be(agent, path, host):
    steps = [run(agent, f"echo {n} > a.txt") for n in range(9)]
    task = task_for(host, resolved(agent, path), limits=ResolvedLimits(max_iterations=2))
    async with model_door(host, *steps, DONE) as (url, _):
        ended = await driver(agent).run(replace(task, relay_url=url), host)
    assert (ended.outcome, host.iterations) == ("exhausted", [1, 2])


@quick
async def test_a_goal_over_128_kib_reaches_the_model_whole(agent, path, host):
    goal = "Mend it. " * 20_000 + "The last words."
    async with model_door(host, DONE) as (url, model):
        ended = await driver(agent).run(task_for(host, resolved(agent, path), relay_url=url, goal=goal), host)
    assert ended.outcome == "completed"
    assert goal in str(model.bodies[0])


@pytest.mark.parametrize("agent", ["claude-code"], indirect=True)
async def test_what_a_helper_of_its_own_does_is_told_within_its_call(agent, path, host):
    asked = ToolCall(name="Task", input={"description": "d", "prompt": "Help me.", "subagent_type": "general-purpose"})
    helper = (run(agent, "echo two > a.txt").tools[0].model_copy(update={"id": "helped"}),)
    helping = Conversation(when="Help me.", replies=(Reply(tools=helper, usage=USAGE), Reply(text="Helped.")))
    async with model_door(host, Reply(tools=(asked,), usage=USAGE), DONE, conversations=(helping,)) as (url, _):
        outcome = await driver(agent).run(task_for(host, resolved(agent, path), relay_url=url), host)
    assert (outcome.outcome, outcome.summary) == ("completed", "All done.")
    assert (host.tree / "a.txt").read_text() == "two\n"
    told = [(t.type, t.tool_call_id, t.payload["tool"]) for t in host.told]
    assert told == [
        ("TOOL_REQUEST", "1.0", "Agent"),
        ("TOOL_REQUEST", "1.1", "Bash"),
        ("TOOL_RESPONSE", "1.1", "Bash"),
        ("TOOL_RESPONSE", "1.0", "Agent"),
    ]
    assert host.iterations == [1, 2]


@pytest.mark.parametrize("agent", ["claude-code"], indirect=True)
async def test_what_its_own_rules_forbid_is_the_sandboxs_to_decide(agent, path, host):
    names = (".claude/settings.json", ".git/hooks/pre-commit", "../beside.txt")
    files = [host.tree / name for name in names]
    calls = (ToolCall(name="Write", input={"file_path": str(each), "content": "{}"}) for each in files)
    async with model_door(host, Reply(tools=tuple(calls), usage=USAGE), DONE) as (url, _):
        outcome = await driver(agent).run(task_for(host, resolved(agent, path), relay_url=url), host)
    assert outcome.outcome == "completed"
    assert [each.read_text() for each in files] == ["{}"] * 3
    assert [(t.type, t.tool_call_id) for t in host.told if t.type == "TOOL_REQUEST"] == [
        ("TOOL_REQUEST", f"1.{index}") for index in range(3)
    ]


@pytest.mark.rule("X2")
async def test_a_stop_ends_it_and_all_that_it_started(agent, path, host):
    async with model_door(host, run(agent, "echo begun > begun; sleep 1000"), DONE) as (url, _):
        working = asyncio.create_task(driver(agent).run(task_for(host, resolved(agent, path), relay_url=url), host))
        async with asyncio.timeout(120):
            while not (host.tree / "begun").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        host.stopping.set()
        ended = await working
    assert (ended.outcome, ended.reason) == ("cancelled", "Stopped")


async def test_a_conversation_that_survived_goes_on_and_hears_of_the_handoff(agent, path, host):
    script = (run(agent, "echo two > a.txt"), DONE, run(agent, "cat a.txt"), Reply(text="Really done."))
    task = task_for(host, resolved(agent, path))
    async with model_door(host, *script) as (url, model):
        assert (await driver(agent).run(replace(task, relay_url=url), host)).outcome == "completed"
        again = replace(task, relay_url=url, next_iteration=3, iterations_used=2, handoff="Two steps are done.")
        ended = await driver(agent).run(again, host)
    assert (ended.outcome, ended.summary) == ("completed", "Really done.")
    assert [entry.reply for entry in model.log] == [0, 1, 2, 3]
    assert "Two steps are done." in str(model.bodies[2])
    assert host.iterations == [1, 2, 3, 4]


@pytest.mark.rule("T2", "L4", "V3", "H1")
async def test_in_a_real_runner_its_work_is_delivered_and_it_never_sees_the_key(agent, path, tmp_path):
    script = Script(replies=(run(agent, "env > env.txt; echo two > a.txt", text="I mend it."), DONE))
    async with World(tmp_path / "world", script=script) as world:
        chosen = resolved(agent, path, url=world.model.url)
        model = chosen.model.model_copy(update={"credentials": SecretRef(name="model", key="apiKey")})
        check = ResolvedCheck(name="two", run="grep -qx two a.txt")
        work = await world.admit(agent=chosen.model_copy(update={"model": model}), acceptance=(check,))
        sandbox = await work.start()
        assert await sandbox.ended(within_s=120) == 0, sandbox.said.read_text()
        assert await (await work.verify()).ended(within_s=120) == 0
        state = await work.state()
        assert state["verification"]["passed"] is True, state["agent_end"]
        assert (state["iteration"], state["usage"]["tool_calls"], state["usage"]["model_requests"]) == (2, 1, 2)
        assert state["usage"]["cache_read_tokens"] == 2_000
        await work.deliver()
        seen = git(world.remote.root / "shop.git", "show", f"{BRANCH}:env.txt")
        assert MODEL_KEY not in seen
        assert {entry.api_key for entry in world.model.log} == {MODEL_KEY}
        assert {entry.protocol for entry in world.model.log} == {PROTOCOLS[agent]}
        done = await work.content("ITERATION_COMPLETE")
        assert [(p["iteration"], p["changed"], p.get("held_ms") is not None) for p in done] == [
            (1, True, True),
            (2, False, False),
        ]
        logs = "".join(each["text"] for each in await work.content("AGENT_OUTPUT"))
        assert "I mend it." in logs
        spans = list(woven(named(work.spec), iter(await work.records())))
        assert_traced(chosen.driver, [span for span in spans if "gen_ai.operation.name" in span.attributes])


def assert_traced(driver: str, spans: list[Span]) -> None:
    """H1: two decisions and the call of the first one lie in what the agent did; none has a word of it."""
    (invoked,) = [span for span in spans if span.name == f"invoke_agent {driver}"]
    inside = sorted(span.name.split()[0] for span in spans if span.parent_id == invoked.span_id)
    assert inside == ["chat", "chat", "execute_tool"]
    assert all(span.error is None and invoked.start <= span.start <= span.end <= invoked.end for span in spans)
    chats = [span for span in spans if span.name == "chat scripted"]
    assert [chat.attributes["gen_ai.usage.input_tokens"] for chat in chats] == [1_100, 1_100], "cached ones, too"
    assert not [each for each in ("I mend it.", "env.txt", "a.txt") if each in str(spans)]


def carried(agent: str, body: object) -> list[str]:
    """The tool calls whose results a request carries."""
    assert isinstance(body, dict)
    return [each.call for each in protocols.PROTOCOLS[PROTOCOLS[agent]].carried(body)]


GONE_ON: Mapping[str, tuple[tuple[str, ...], ...]] = {"claude-code": (("echo cut > cut",),), "codex": (), "pi": ()}


def interrupted(agent: str, begun: Path) -> tuple[Reply, ...]:
    """Two decisions with three calls, one whose call ends only in the second attempt, a look around, and the end.

    Claude Code puts an answer of its own before what it is told when it goes on, which the stand-in takes for a step.
    """
    cut = f"echo cut > cut; test -e {begun} || {{ touch {begun}; sleep 1000; }}"
    steps = (("echo 1 > one",), ("echo 2 > two", "echo 3 > three"), (cut,), *GONE_ON[agent], ("ls",))
    return (*(run(agent, *commands) for commands in steps), Reply(text="Gone on."))


@pytest.mark.rule("P2", "P6", "R1", "R2", "R3")
@pytest.mark.parametrize("lost", [False, True], ids=["volume-kept", "volume-lost"])
@pytest.mark.parametrize("agent", GONE_ON, indirect=True)
async def test_after_a_lost_sandbox_conversation_and_tree_go_on_from_one_safe_point(agent, path, tmp_path, lost):
    begun = tmp_path / "begun"
    async with World(tmp_path / "world", script=Script(replies=interrupted(agent, begun))) as world:
        work = await world.admit(agent=resolved(agent, path, url=world.model.url))
        sandbox = await work.start()
        async with asyncio.timeout(120):
            while not begun.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await sandbox.kill()
        if lost:
            shutil.rmtree(work.volume)
        at = (await work.state())["checkpoint"]["commit"]
        await work.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "gone"})
        again = await work.start(2)
        assert await again.ended(within_s=120) == 0, again.said.read_text()
        state, model = await work.state(), world.model
        assert (state["agent_end"]["outcome"], state["agent_end"]["summary"]) == ("completed", "Gone on.")
        replies = [entry.reply - len(GONE_ON[agent]) for entry in model.log[3:]]
        assert replies == [2, 3, 4], "the conversation went on where it stood"
        assert len({entry.key for entry in model.log}) == len(model.log), "no decision is asked for twice"
        assert AGAIN in str(model.bodies[3])
        calls = carried(agent, model.bodies[2])
        assert len(calls) == 3
        assert carried(agent, model.bodies[3]) == calls, "it knows of what is in the tree, and of no more"
        ready = (await work.content("WORKSPACE_READY"))[-1]
        names = git(again.tree, "ls-tree", "--name-only", ready["head"]).split()
        assert (ready["head"], names) == (at, ["a.txt", "one", "three", "two"])
        assert (again.tree / "cut").read_text() == "cut\n"
        done = [p["iteration"] for p in await work.content("ITERATION_COMPLETE")]
        assert (len(done), sorted(set(done))) == (5, done)
        assert len(await work.content("DRIFT_SAVED")) == (0 if lost else 1)


@pytest.mark.rule("R1", "R3")
@pytest.mark.parametrize("agent", ["opencode"], indirect=True)
async def test_one_whose_files_nobody_knows_goes_on_with_what_survived_and_hears_that_it_may_be_ahead(
    agent, path, tmp_path
):
    cut = f"echo cut > cut; touch {tmp_path / 'begun'}; sleep 1000"
    script = Script(replies=(run(agent, "echo 1 > one"), run(agent, cut), Reply(text="Gone on.")))
    async with World(tmp_path / "world", script=script) as world:
        work = await world.admit(agent=resolved(agent, path, url=world.model.url))
        sandbox = await work.start()
        async with asyncio.timeout(120):
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await sandbox.kill()
        await work.report("ATTEMPT_ENDED", {"epoch": 1, "reason": "NodeLost", "message": "gone"})
        again = await work.start(2)
        assert await again.ended(within_s=120) == 0, again.said.read_text()
        assert (await work.state())["agent_end"]["outcome"] == "completed"
        assert sorted(each.name for each in again.tree.iterdir()) == [".git", "a.txt", "one"]
        assert [entry.reply for entry in world.model.log] == [0, 1, 2], "the conversation went on"
        assert APART in str(world.model.bodies[-1])
