"""What an ACP agent has its client do: files of the worktree and commands, with an intent before each change."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.posing_agents import ACP, agent

from moorage.drivers.registry import load
from moorage.testing.drivers import Stage, Subject
from moorage.testing.drivers.stage import CheckpointRefused

pytestmark = pytest.mark.timeout(240)  # real processes; the suite's own limit is below that
WORDS = (
    ACP
    + """
calls = 0
def ask(method, **params):
    global calls
    calls += 1
    message = {"jsonrpc": "2.0", "id": f"c{calls}", "method": method, "params": {"sessionId": "s", **params}}
    say(json.dumps(message))
    while True:
        told = json.loads(sys.stdin.readline())
        if told.get("id") == f"c{calls}":
            return told
found = []
def look(method, **params):
    told = ask(method, **params)
    found.append(told.get("result", told.get("error")))
    keep("found.json", json.dumps(found))
    return told.get("result")
here = os.getcwd()
"""
)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    subject = Subject(
        driver=lambda: load("acp"),
        program="tool",
        agent=agent("acp", "anthropic-messages", "tool"),
        words=WORDS,
        hears=True,
    )
    made = Stage(tmp_path, subject)
    (made.tree / "a.txt").write_text("one\ntwo\u2028\r\nthree\n")
    yield made
    await made.clear()


async def played(stage: Stage, script: str) -> list[Any]:
    """What the agent was answered."""
    ended = await stage.play(f"begin()\n{script}\nend()")
    assert ended.outcome == "completed", (ended, stage.host.said.decode())
    assert stage.left() == []
    return list(json.loads((stage.tree / "found.json").read_text()))


async def test_files_are_read_by_lines_that_end_at_newlines(stage: Stage) -> None:
    found = await played(
        stage,
        """
look("fs/read_text_file", path=f"{here}/a.txt")
look("fs/read_text_file", path=f"{here}/a.txt", line=2, limit=1)
look("fs/read_text_file", path=f"{here}/a.txt", line=3)
look("fs/read_text_file", path=f"{here}/a.txt", line=99)
""",
    )
    assert [each["content"] for each in found] == ["one\ntwo\u2028\r\nthree\n", "two\u2028\r", "three\n", ""]
    assert stage.host.told == [], "what changes nothing is no call of its own"


async def test_a_file_is_written_after_its_intent_is_durable(stage: Stage) -> None:
    seen: list[bool] = []
    emit = stage.host.emit

    async def watched(type: str, payload: Any, **more: Any) -> None:  # noqa: A002
        seen.append((stage.tree / "b" / "c.txt").exists())
        await emit(type, payload, **more)

    stage.host.emit = watched  # type: ignore[method-assign]
    assert await played(stage, 'look("fs/write_text_file", path=f"{here}/b/c.txt", content="new")') == [{}]
    assert (stage.tree / "b" / "c.txt").read_text() == "new"
    asked, answered = stage.host.told
    assert (asked.type, asked.payload["tool"], seen) == ("TOOL_REQUEST", "fs/write_text_file", [False, True])
    assert asked.payload["arguments"] == {"path": f"{stage.tree}/b/c.txt", "bytes": 3}
    assert (answered.type, answered.payload["ok"], answered.tool_call_id) == ("TOOL_RESPONSE", True, "1.0")


@pytest.mark.parametrize("path", ["/etc/passwd", "{here}/../secret", "{here}/out", "{here}/.git/config", ""])
async def test_what_lies_outside_of_the_worktree_is_refused(stage: Stage, path: str) -> None:
    (stage.tree.parent / "secret").write_text("x")
    (stage.tree / "out").symlink_to("../secret")
    script = f'where = f"{path}"\nlook("fs/write_text_file", path=where, content="new")\n'
    if path.endswith(("passwd", "secret", "out")):
        script += 'look("fs/read_text_file", path=where)'
    assert all("code" in each and each["message"] for each in await played(stage, script))
    assert (stage.tree.parent / "secret").read_text() == "x"
    assert stage.host.told[-1].payload["ok"] is False


async def test_a_command_is_told_with_its_exit_code_and_its_output_is_read_at_any_time(stage: Stage) -> None:
    *found, _ = await played(
        stage,
        """
name = look("terminal/create", command="sh", args=["-c", "echo $WORD >out; echo $WORD; exit 3"],
            env=[{"name": "WORD", "value": "hello"}], cwd=here)["terminalId"]
look("terminal/wait_for_exit", terminalId=name)
look("terminal/output", terminalId=name)
look("terminal/release", terminalId=name)
look("terminal/output", terminalId=name)
""",
    )
    end = {"exitCode": 3, "signal": None}
    assert found[1:] == [end, {"output": "hello\n", "truncated": False, "exitStatus": end}, {}]
    assert (stage.tree / "out").read_text() == "hello\n"
    asked, answered = stage.host.told
    assert asked.payload["arguments"]["args"] == ["-c", "echo $WORD >out; echo $WORD; exit 3"]
    assert (answered.payload["ok"], answered.payload["exit_code"], answered.payload["content"]) == (False, 3, "hello\n")


async def test_other_requests_are_served_while_one_waits_for_a_commands_end(stage: Stage) -> None:
    found = await played(
        stage,
        """
name = look("terminal/create", command="while ! test -e go; do sleep 0.02; done; echo gone")["terminalId"]
wait = {"sessionId": "s", "terminalId": name}
say(json.dumps({"jsonrpc": "2.0", "id": "w", "method": "terminal/wait_for_exit", "params": wait}))
look("terminal/output", terminalId=name)
look("fs/write_text_file", path=f"{here}/go", content="")
while json.loads(sys.stdin.readline()).get("id") != "w": pass
look("terminal/output", terminalId=name)
""",
    )
    assert found[1] == {"output": "", "truncated": False}
    assert found[3]["output"] == "gone\n"


async def test_a_command_is_killed_with_its_tree_and_only_its_last_output_is_kept(stage: Stage) -> None:
    found = await played(
        stage,
        """
line = "echo 012345678é9; trap '' TERM; sleep 1000 & touch up; wait"
name = look("terminal/create", command=line, outputByteLimit=3)["terminalId"]
while not os.path.exists("up"): time.sleep(0.02)
look("terminal/kill", terminalId=name)
look("terminal/output", terminalId=name)
look("terminal/create", command="sleep 1000")
""",
    )
    assert found[2] == {"output": "9\n", "truncated": True, "exitStatus": {"exitCode": None, "signal": "SIGKILL"}}


async def test_what_it_wants_during_a_call_of_its_own_belongs_to_that(stage: Stage) -> None:
    await played(stage, 'call("a"); look("fs/write_text_file", path=f"{here}/b.txt", content="x"); result("a")')
    assert [(each.type, each.payload["tool"]) for each in stage.host.told] == [
        ("TOOL_REQUEST", "execute"),
        ("TOOL_RESPONSE", "execute"),
    ]
    assert "[fs/write_text_file b.txt: ok]" in stage.host.said.decode()


@pytest.mark.parametrize(
    "wanted",
    [
        'look("fs/no_such")',
        'look("terminal/output", terminalId=["x"])',
        'look("terminal/create", command=["a"])',
        'look("terminal/create", command="no-such-program-anywhere", args=["x"])',
        'look("terminal/create", command="a", args=["\\0"])',
        'look("fs/read_text_file", path=7)',
        'look("fs/write_text_file")',
    ],
)
async def test_what_can_not_be_done_is_answered_too(stage: Stage, wanted: str) -> None:
    (error,) = await played(stage, wanted)
    assert error["message"], error


async def test_a_conversation_is_loaded_where_the_agent_can_and_told_anew_where_it_fails(stage: Stage) -> None:
    await stage.play("begin(); end()")
    loading = """
def hear():
    global prompt
    while True:
        told = json.loads(sys.stdin.readline())
        if told["method"] == "initialize":
            answer(told["id"], {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
        if told["method"] == "session/load":
            keep("loaded", told["params"]["sessionId"])
            update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Of old."}})
            update({"sessionUpdate": "tool_call", "toolCallId": "old", "status": "completed", "kind": "edit"})
            LOADED
        if told["method"] == "session/new":
            answer(told["id"], {"sessionId": "s2"})
        if told["method"] == "session/prompt":
            prompt = told["id"]
            return told["params"]["prompt"][0]["text"] + told["params"]["sessionId"]
keep("heard", hear())
end()
"""
    await stage.play(loading.replace("LOADED", 'answer(told["id"], {})'))
    assert (stage.tree / "loaded").read_text() == "s"
    assert (stage.tree / "heard").read_text().startswith("Another attempt")
    assert (stage.tree / "heard").read_text().endswith("s")
    failed = 'say(json.dumps({"jsonrpc": "2.0", "id": told["id"], "error": {"code": 1, "message": "gone"}}))'
    await stage.play(loading.replace("LOADED", failed))
    assert (stage.tree / "heard").read_text() == "make the tests passs2"
    assert stage.host.told == []
    assert b"Of old." not in stage.host.said


async def test_an_agent_of_another_version_is_refused_by_name(stage: Stage) -> None:
    ended = await stage.play(
        'told = json.loads(sys.stdin.readline()); answer(told["id"], {"protocolVersion": 2}); for_ever()'
    )
    assert (ended.outcome, ended.reason) == ("failed", "AgentFailed")
    assert "speaks ACP 2" in ended.message


async def test_a_stop_is_said_before_it_is_enforced(stage: Stage) -> None:
    script = """
begin(); call("a"); keep("begun", "")
while json.loads(sys.stdin.readline()).get("method") != "session/cancel": pass
keep("cancelled", "")
answer(prompt, {"stopReason": "cancelled"})
for_ever()
"""
    assert (await stage.played_until("begun", script)).outcome == "cancelled"
    assert (stage.tree / "cancelled").exists()
    assert stage.left() == []


async def test_a_receipt_that_the_host_refuses_ends_it(stage: Stage) -> None:
    emit = stage.host.emit

    async def refusing(type: str, payload: Any, **more: Any) -> None:  # noqa: A002
        if type == "TOOL_RESPONSE":
            raise CheckpointRefused
        await emit(type, payload, **more)

    stage.host.emit = refusing  # type: ignore[method-assign]
    with pytest.raises(CheckpointRefused):
        await stage.play('begin(); ask("terminal/create", command="echo 1"); end()')
    assert stage.left() == []


async def test_one_that_asks_and_asks_and_hears_no_answer_can_be_stopped(stage: Stage) -> None:
    script = """
begin()
params = {"sessionId": "s", "toolCall": {"toolCallId": "a"}, "options": []}
ask = {"jsonrpc": "2.0", "id": "x" * 4096, "method": "session/request_permission", "params": params}
for _ in range(50): say(json.dumps(ask))
keep("begun", "")  # by now its stdin holds no more of our answers
while True: say(json.dumps(ask))
"""
    assert (await stage.played_until("begun", script)).outcome == "cancelled"
    assert stage.left() == []


async def test_names_of_the_models_door_are_filled_in(stage: Stage) -> None:
    given = stage.subject.agent("")
    filled = given.model_copy(update={"args": ("--url=$(MOORAGE_MODEL_URL)", "$(MOORAGE_MODEL)", "$(NOBODYS)", "$$")})
    stage.subject = Subject(
        driver=stage.subject.driver,
        program="tool",
        agent=lambda path: filled.model_copy(update={"env": {"PATH": path, "KEY": "$(MOORAGE_MODEL_KEY)"}}),
        words=WORDS,
    )
    await stage.play('begin(); keep("argv", json.dumps([*sys.argv[1:], os.environ["KEY"]])); end()')
    told = json.loads((stage.tree / "argv").read_text())
    assert told == ["--url=http://127.0.0.1:9/model/v1", "m", "$(NOBODYS)", "$$", "dummy"]
    assert os.environ.get("MOORAGE_MODEL_KEY") is None


@pytest.mark.rule("T6")
@pytest.mark.parametrize("refused", [None, "refused by ada: not today"])
async def test_a_change_of_its_own_waits_for_a_person_and_it_is_heard_meanwhile(
    stage: Stage, refused: str | None
) -> None:
    word = stage.host.asked["fs/write_text_file"] = asyncio.get_running_loop().create_future()
    script = """
begin()
params = {"sessionId": "s", "path": f"{here}/b.txt", "content": "new"}
say(json.dumps({"jsonrpc": "2.0", "id": "w", "method": "fs/write_text_file", "params": params}))
look("fs/read_text_file", path=f"{here}/a.txt", line=1, limit=1)
told = json.loads(sys.stdin.readline())
keep("told.json", json.dumps(told.get("result", told.get("error"))))
end()
"""
    async with stage.playing(script) as working:
        await stage.found("found.json")
        assert stage.host.waiting == [("1.0", "fs/write_text_file")]
        assert not (stage.tree / "b.txt").exists()
        word.set_result(refused)
        assert (await working).outcome == "completed"
    assert (stage.tree / "b.txt").exists() is (refused is None)
    told = json.loads((stage.tree / "told.json").read_text())
    assert told == ({} if refused is None else {"code": -32602, "message": refused})
    assert [fact.payload.get("ok") for fact in stage.host.told] == [None, refused is None]
