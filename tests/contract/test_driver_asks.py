"""T6 for programs that aren't ours: a call waits for a person, and all else goes on that the program says and hears."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.posing_agents import SUBJECTS

from moorage.drivers.port import Parked
from moorage.testing.drivers import Stage

pytestmark = pytest.mark.timeout(120)

CLAUDE_CODE = """
answers = {}
def decided(name, tool, command):
    use = {"type": "tool_use", "id": name, "name": tool, "input": {"command": command}}
    say(json.dumps({"type": "assistant", "message": {"content": [use]}, "parent_tool_use_id": None}))
def ask(name, tool="Bash", command="x"):
    decided(name, tool, command)
    asked = {"tool_use_id": name, "tool_name": tool, "tool_input": {"command": command}}
    asked = {"subtype": "hook_callback", "input": asked}
    say(json.dumps({"type": "control_request", "request_id": name, "request": asked}))
def verdict(name):
    while name not in answers:
        told = read().get("response", {})
        if "request_id" in told:
            answers[told["request_id"]] = told["response"]["hookSpecificOutput"]
    told = answers[name]
    return "yes" if told["permissionDecision"] == "allow" else told["permissionDecisionReason"]
def words(verdict):
    return verdict
def failed(name):
    done = {"type": "tool_result", "tool_use_id": name, "content": "no", "is_error": True}
    say(json.dumps({"type": "user", "message": {"content": [done]}}))
def unasked(name):
    decided(name, "Bash", "x")
    result(name)
def ask_again(name):
    asked = {"subtype": "can_use_tool", "tool_use_id": name, "tool_name": "Bash", "input": {"command": "x"}}
    say(json.dumps({"type": "control_request", "request_id": "again", "request": asked}))
    while (told := read().get("response", {})).get("request_id") != "again":
        pass
    return told["response"]["behavior"]
"""
ACP = """
KINDS = {"Bash": "execute", "Write": "edit"}
answers = {}
def told(name, tool, command):
    return {"toolCallId": name, "title": "x", "kind": KINDS[tool], "rawInput": {"command": command}}
def ask(name, tool="Bash", command="x"):
    options = [{"optionId": "no", "kind": "reject_once"}, {"optionId": "yes", "kind": "allow_once"}]
    params = {"sessionId": "s", "toolCall": told(name, tool, command), "options": options}
    say(json.dumps({"jsonrpc": "2.0", "id": name, "method": "session/request_permission", "params": params}))
def verdict(name):
    while name not in answers:
        heard = json.loads(sys.stdin.readline())
        if "result" in heard:
            answers[heard["id"]] = heard["result"]["outcome"]["optionId"]
    return answers[name]
def words(verdict):
    assert verdict == "no", verdict
    end()
    return hear()
def failed(name):
    update({"sessionUpdate": "tool_call_update", "toolCallId": name, "status": "failed"})
def unasked(name):
    update({"sessionUpdate": "tool_call", "status": "in_progress", **told(name, "Bash", "x")})
    result(name)
def ask_again(name):
    answers.clear()
    ask(name)
    return {"yes": "allow"}[verdict(name)]
"""
MORE = {"claude-code": CLAUDE_CODE, "acp": ACP}
SHELL = {"claude-code": "Bash", "acp": "execute"}
WAITS = 'begin(); ask("a"); keep("waits", "")\n'


@pytest.fixture(params=MORE)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def stage(driver: str, tmp_path: Path) -> AsyncIterator[Stage]:
    subject = SUBJECTS[driver]
    made = Stage(tmp_path, replace(subject, words=subject.words + MORE[driver]))
    made.host.asked[SHELL[driver]] = asyncio.get_running_loop().create_future()
    yield made
    await made.clear()


@pytest.fixture
def word(driver: str, stage: Stage) -> asyncio.Future[str | None]:
    """What a person says of the shell's calls, once they do."""
    return stage.host.asked[SHELL[driver]]


async def waits(stage: Stage) -> None:
    """Until the call has its question."""
    await stage.found("waits")
    async with asyncio.timeout(60):
        while not stage.host.waiting:  # noqa: ASYNC110  another process asks
            await asyncio.sleep(0.02)


def kinds(stage: Stage) -> list[tuple[str, str | None]]:
    return [(fact.type, fact.tool_call_id) for fact in stage.host.told]


@pytest.mark.rule("T6", "E1")
async def test_a_call_of_a_program_runs_once_a_person_allows_it(
    driver: str, stage: Stage, word: asyncio.Future[str | None]
) -> None:
    script = 'keep("verdict", verdict("a")); keep("again", ask_again("a")); result("a"); end()'
    async with stage.playing(WAITS + script) as working:
        await waits(stage)
        assert (stage.host.waiting, kinds(stage)) == ([("1.0", SHELL[driver])], [("TOOL_REQUEST", "1.0")])
        assert not (stage.tree / "verdict").exists()
        word.set_result(None)
        ended = await working
    assert (ended.outcome, (stage.tree / "verdict").read_text()) == ("completed", "yes")
    assert (stage.tree / "again").read_text() == "allow"
    assert len(stage.host.waiting) == 1, "asked twice about one call, a person is asked once"
    assert kinds(stage) == [("TOOL_REQUEST", "1.0"), ("TOOL_RESPONSE", "1.0")]


@pytest.mark.rule("T6")
async def test_one_that_is_refused_hears_why_and_goes_on(stage: Stage, word: asyncio.Future[str | None]) -> None:
    script = 'said = verdict("a"); failed("a"); keep("heard", words(said)); ask("b", "Write"); verdict("b")\n'
    async with stage.playing(WAITS + script + 'result("b"); end()') as working:
        await waits(stage)
        word.set_result("refused by ada: not today")
        ended = await working
    assert ended.outcome == "completed", (ended, stage.host.said.decode())
    assert "refused by ada: not today" in (stage.tree / "heard").read_text()
    assert [fact.payload["ok"] for fact in stage.host.told if fact.type == "TOOL_RESPONSE"] == [False, True]


@pytest.mark.rule("T6")
@pytest.mark.parametrize("driver", ["acp"], indirect=True)
async def test_one_that_can_be_told_no_reason_with_its_answer_decides_nothing_before_it_is_told(
    stage: Stage, word: asyncio.Future[str | None]
) -> None:
    script = 'verdict("a"); keep("refused", ""); until("go"); failed("a"); keep("heard", hear()); end()'
    async with stage.playing(WAITS + script) as working:
        await waits(stage)
        assert await stage.asks() == b""
        word.set_result("refused by ada: not today")
        await stage.found("refused")
        (stage.tree / "go").touch()
        assert b"Steered" in await stage.asks("a"), "it would go on with what its model makes of a bare no"
        assert (await working).outcome == "completed"
    assert (stage.tree / "heard").read_text() == "execute x: refused by ada: not today"


@pytest.mark.rule("T6")
async def test_another_call_runs_meanwhile(stage: Stage, word: asyncio.Future[str | None]) -> None:
    script = """
ask("b", "Write"); verdict("b"); result("b")
assert "a" not in answers
keep("verdict", verdict("a")); result("a"); end()
"""
    async with stage.playing(WAITS + script) as working:
        await waits(stage)
        await stage.told("TOOL_RESPONSE")
        assert kinds(stage) == [("TOOL_REQUEST", "1.0"), ("TOOL_REQUEST", "1.1"), ("TOOL_RESPONSE", "1.1")]
        assert stage.host.iterations == [], "no safe point while a call waits"
        word.set_result(None)
        assert (await working).outcome == "completed"
    assert (stage.tree / "verdict").read_text() == "yes"


@pytest.mark.rule("T6", "X2")
async def test_a_stop_ends_one_that_waits_and_its_call_never_runs(
    stage: Stage, word: asyncio.Future[str | None]
) -> None:
    signals = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    async with stage.playing(signals + WAITS + 'keep("verdict", verdict("a")); for_ever()') as working:
        await waits(stage)
        stage.host.stopping.set()
        word.set_result(None)
        assert (await working).outcome == "cancelled"
    assert stage.left() == []
    assert not (stage.tree / "verdict").exists(), "an answer that comes too late begins nothing"


@pytest.mark.rule("T6", "P6")
async def test_what_one_that_waits_says_as_it_is_stopped_is_no_safe_point(stage: Stage) -> None:
    gives_up = 'signal.signal(signal.SIGTERM, lambda *_: (failed("a"), end(), sys.exit(0)))\n'
    async with stage.playing(gives_up + WAITS + "for_ever()") as working:
        await waits(stage)
        stage.host.stopping.set()
        assert (await working).outcome == "cancelled"
    assert stage.host.iterations == [], "the next attempt begins before the call, and asks for it again"
    assert kinds(stage) == [("TOOL_REQUEST", "1.0")]


@pytest.mark.rule("T6", "M3")
async def test_a_message_gets_through_while_a_call_waits(
    driver: str, stage: Stage, word: asyncio.Future[str | None]
) -> None:
    script = 'keep("verdict", verdict("a")); result("a"); keep("heard", hear()); end()'
    async with stage.playing(WAITS + script) as working:
        await waits(stage)
        await stage.host.messages.say("Steer", "Use tabs.")
        while driver == "claude-code" and not stage.host.messages.taken:  # noqa: ASYNC110  it hears at any time
            await asyncio.sleep(0.02)
        word.set_result(None)
        assert (await working).outcome == "completed"
    assert ((stage.tree / "verdict").read_text(), (stage.tree / "heard").read_text()) == ("yes", "Use tabs.")


@pytest.mark.rule("T6", "Q5")
async def test_one_that_would_only_wait_is_let_go_once_nothing_else_runs(
    stage: Stage, word: asyncio.Future[str | None]
) -> None:
    script = 'ask("b", "Write"); verdict("b"); keep("runs", ""); until("go"); result("b"); verdict("a")'
    async with stage.playing(WAITS + script) as working:
        await waits(stage)
        await stage.found("runs")
        word.set_exception(Parked())
        await asyncio.sleep(0.3)
        assert not working.done(), "another call is under way"
        (stage.tree / "go").touch()
        ended = await working
    assert (ended.outcome, ended.reason) == ("paused", "Paused")
    assert kinds(stage)[-1] == ("TOOL_RESPONSE", "1.1")
    assert stage.left() == []


@pytest.mark.rule("T6")
async def test_a_call_that_runs_unasked_is_no_work_that_is_taken(stage: Stage) -> None:
    ended = await stage.play('begin(); unasked("a"); end()')
    assert (ended.outcome, ended.reason) == ("failed", "ApprovalNotAsked")
    assert "without asking" in ended.message
    assert stage.left() == []


@pytest.mark.rule("T6")
async def test_what_breaks_a_question_ends_the_agent(stage: Stage, word: asyncio.Future[str | None]) -> None:
    async with stage.playing(WAITS + 'verdict("a")') as working:
        await waits(stage)
        word.set_exception(ConnectionError("fenced"))
        with pytest.raises(ConnectionError, match="fenced"):
            await working
    assert stage.left() == []


@pytest.mark.rule("T6")
async def test_a_call_that_its_agent_gives_up_holds_up_nothing(stage: Stage, word: asyncio.Future[str | None]) -> None:
    async with stage.playing(WAITS + 'until("go"); failed("a"); end()') as working:
        await waits(stage)
        (stage.tree / "go").touch()
        assert (await working).outcome == "completed"
    assert word.cancelled(), "nobody is asked any more"
    assert [fact.payload.get("ok") for fact in stage.host.told] == [None, False]
