"""O2: the tools by which a model starts children of its run and waits for them."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from moorage.api.budget import Budget
from moorage.api.children import ChildAnswer, SpawnRequest
from moorage.api.wire import ResolvedAgent, ResolvedChildren, ResolvedModel
from moorage.drivers.builtin.driver import BuiltinDriver
from moorage.drivers.builtin.relatives import pending
from moorage.drivers.builtin.tools import Toolbox
from moorage.drivers.port import ChildRefused, Outcome
from moorage.testing.host import LocalHost, task_for
from moorage.testing.models import Reply, Script, StandIn, ToolCall
from moorage.testing.serving import listening

MODEL = ResolvedModel(provider="p", protocol="anthropic-messages", base_url="http://unused", name="scripted")
DONE = Reply(text="All done.")

OURS = {"spawn_run", "wait_run", "merge_run", "remaining_budget", "report_progress"}


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "tree").mkdir()
    return LocalHost(tmp_path / "tree")


def toolbox(host: LocalHost, *, parental: bool = True) -> Toolbox:
    return Toolbox(host.tree, host.tree.parent, host, parental=parental)


def test_only_an_agent_that_may_have_children_is_told_of_them(host: LocalHost) -> None:
    usual = {each.name for each in toolbox(host, parental=False).definitions()}
    assert {each.name for each in toolbox(host).definitions()} == usual | OURS
    assert not usual & OURS


@pytest.mark.rule("O2")
async def test_a_call_that_is_made_again_starts_no_other_child(host: LocalHost) -> None:
    first = await toolbox(host).run("spawn_run", {"goal": "the parser", "tokens": 300}, "3.0")
    again = await toolbox(host).run("spawn_run", {"goal": "the parser", "tokens": 300}, "3.0")
    other = await toolbox(host).run("spawn_run", {"goal": "the lexer"}, "3.1")
    assert first.ok
    assert first.text == again.text == "child: child-1\nstatus: requested"
    assert "child-2" in other.text
    assert (host.child_runs.asked["3.0"].tokens, host.child_runs.asked["3.1"].tokens) == (300, None)


async def test_how_a_child_ended_is_told_whole(host: LocalHost) -> None:
    tools = toolbox(host)
    await tools.run("spawn_run", {"goal": "the parser"}, "1.0")
    assert (await tools.run("wait_run", {"name": "child-1", "timeout_s": 0})).text == "child: child-1\nstatus: started"
    host.child_runs.over["child-1"] = ChildAnswer(
        name="child-1", status="ended", outcome="Succeeded", summary="done", commit="c" * 40, used={"tokens": 9}
    )
    told = await tools.run("wait_run", {"name": "child-1"})
    assert told.ok
    assert told.text.splitlines()[1:] == [
        "status: Succeeded",
        f"commit: {'c' * 40}",
        "used: tokens: 9",
        "it said: done",
    ]
    host.child_runs.over["child-1"] = ChildAnswer(name="child-1", status="ended", outcome="Failed")
    assert not (await tools.run("wait_run", {"name": "child-1"})).ok


async def test_a_refusal_is_told_in_words(host: LocalHost) -> None:
    told = await toolbox(host).run("wait_run", {"name": "nobody"})
    assert (told.ok, told.text) == (False, "this run has no child nobody")
    assert not (await toolbox(host).run("spawn_run", {"goal": ""})).ok


async def test_what_is_left_is_told_by_dimension(host: LocalHost) -> None:
    assert (await toolbox(host).run("remaining_budget", {})).text == "nothing is limited"
    host.budget = Budget(left={"tokens": 70, "toolCalls": 0})
    assert (await toolbox(host).run("remaining_budget", {})).text == "tokens: 70, toolCalls: 0"
    assert (await toolbox(host).run("report_progress", {"text": "half"})).text == "noted: half"


def spawn(goal: str) -> Reply:
    return Reply(tools=(ToolCall(name="spawn_run", input={"goal": goal}),))


async def drive(host: LocalHost, *replies: Reply) -> tuple[Outcome, StandIn]:
    stand_in = StandIn(Script(replies=replies))
    async with listening(Starlette(routes=[Mount("/model", stand_in.app)])) as url:
        agent = ResolvedAgent(driver="builtin", model=MODEL, children=ResolvedChildren(max=3, concurrent=3))
        return await BuiltinDriver().run(task_for(host, agent, relay_url=url), host), stand_in


@pytest.mark.rule("N3")
async def test_an_agent_that_is_done_hears_once_what_became_of_its_children(host: LocalHost) -> None:
    outcome, stand_in = await drive(host, spawn("the parser"), DONE, DONE)
    assert outcome.outcome == "completed"
    assert "These still work: child-1" in str(stand_in.bodies[2]["messages"][-1]["content"])
    decided = [told.payload["kind"] for told in host.told if told.type == "CONTINUATION_DECIDED"]
    assert decided == ["PendingBackgroundTask"]
    assert host.iterations == [1, 2, 3]


@pytest.mark.rule("N3")
async def test_children_that_end_while_they_are_waited_for_are_told_as_ended(host: LocalHost) -> None:
    await host.child_runs.spawn(SpawnRequest(epoch=1, key="1.0", goal="g"))
    alive, looks = host.child_runs.living, 0

    async def living() -> tuple[str, ...]:
        """The child ends after the first look."""
        nonlocal looks
        looks += 1
        found = await alive()
        if looks == 1:
            host.child_runs.over["child-1"] = ChildAnswer(name="child-1", status="ended", outcome="Succeeded")
        return found

    host.child_runs.living = living  # type: ignore[method-assign]
    told = await pending(host.child_runs)
    assert told is not None
    assert "ended meanwhile: child-1 (Succeeded)" in told
    assert "still work" not in told
    assert await pending(host.child_runs) is None


@pytest.mark.rule("N3")
async def test_a_child_of_which_nothing_can_be_said_keeps_no_agent_from_its_end(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = toolbox(host)
    for key in ("1.0", "1.1"):
        await tools.run("spawn_run", {"goal": "the parser"}, key)
    wait = host.child_runs.wait
    host.child_runs.over["child-2"] = ChildAnswer(name="child-2", status="ended", outcome="Failed")

    async def waited(name: str, within_s: float) -> ChildAnswer:
        if name == "child-1":
            raise ChildRefused("run u2 is not known here")
        return await wait(name, within_s)

    async def living() -> tuple[str, ...]:
        return ("child-1", "child-2")

    monkeypatch.setattr(host.child_runs, "wait", waited)
    monkeypatch.setattr(host.child_runs, "living", living)
    told = await pending(host.child_runs, 0)
    assert told is not None
    assert "child-2 (Failed)" in told
