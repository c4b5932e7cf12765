"""What the drivers of real agents make of what those agents printed (tests/recorded), however the bytes are cut."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from moorage.api.wire import ResolvedAgent
from moorage.drivers.claude_code.events import ClaudeCodeEvents
from moorage.drivers.codex.events import CodexEvents
from moorage.drivers.facts import Answered, Asked, Dialect, Ended, Settled
from moorage.drivers.jsonlines import LINE_CAP, AgentListener, Launch
from moorage.drivers.pi.events import PiEvents
from moorage.drivers.port import Outcome
from moorage.drivers.program import MORE, SUMMARY_CAP
from moorage.drivers.sessions import Conversation
from moorage.testing.host import LocalHost, task_for

RECORDED = Path(__file__).parents[1] / "recorded"
IMAGES = Path(__file__).parents[2] / "sandbox-images"
DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "claude-code": lambda: ClaudeCodeEvents(iter("abc").__next__),
    "codex": CodexEvents,
    "pi": PiEvents,
}
AGENTS = tuple(DIALECTS)
KINDS: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("system", "assistant", "user", "control_request", "control_response", "result"),
    "codex": ("item.started", "item.completed", "turn.completed", "turn.failed", "error", "thread.started"),
    "pi": (
        *("session", "message_end", "turn_end", "tool_execution_start", "tool_execution_end"),
        *("agent_end", "auto_retry_end"),
    ),
}
ITEMS: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("tool_use", "tool_result", "text"),
    "codex": ("command_execution", "mcp_tool_call", "agent_message", "file_change", "reasoning"),
    "pi": ("text", "toolCall"),
}
FIELDS: Mapping[str, tuple[str, ...]] = {
    "claude-code": (
        *("content", "subtype", "input", "tool_use_id", "tool_input", "tool_name", "inputTokens", "id", "name"),
        *("is_error", "text"),
    ),
    "codex": (
        *("id", "text", "message", "error", "usage", "tool", "exit_code", "aggregated_output", "status", "arguments"),
        *("server", "input_tokens", "output_tokens"),
    ),
    "pi": ("role", "content", "text", "stopReason", "errorMessage", "usage", "input"),
}
PLACES: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("message", "request", "modelUsage", "errors", "result", "subtype", "is_error", "request_id"),
    "codex": ("item", "error", "usage", "message", "thread_id"),
    "pi": ("message", "result", "toolResults", "id", "args", "isError"),
}
VALUES: tuple[object, ...] = (None, True, 1, -1, 1.5, "x", [], {}, [[]], [{}], {"message": []}, {"input": "x"})


def dialect(agent: str) -> Dialect:
    return DIALECTS[agent]()


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "tree").mkdir()
    return LocalHost(tmp_path / "tree")


PATHS = {"codex": "/model/v1/responses"} | dict.fromkeys(("claude-code", "pi"), "/model/v1/messages")


def request(agent: str, calls: int) -> bytes:
    """What it asks its model after so many calls, as much of it as tells that they are over."""
    ids = [f"c{n}" for n in range(calls)]
    if agent != "codex":
        results = [{"type": "tool_result", "tool_use_id": each} for each in ids]
        return json.dumps({"messages": [{"role": "user", "content": results}]}).encode()
    asked = [{"type": "function_call", "name": "exec_command", "call_id": each} for each in ids]
    return json.dumps(
        {"input": [*asked, *({"type": "function_call_output", "call_id": each} for each in ids)]}
    ).encode()


def decisions(agent: str, said: bytes) -> Iterator[tuple[bytes, int]]:
    """What it prints, cut where it asks its model again, each with the number of calls that are over by then."""
    told, under_way, over, part = dialect(agent), set[str](), 0, b""
    for line in said.splitlines(keepends=True):
        part += line
        event = parsed(line)
        facts = told.facts(event) or ()
        under_way |= decided(event) | {fact.call for fact in facts if isinstance(fact, Asked)}
        ended = {fact.call for fact in facts if isinstance(fact, Answered)}
        under_way -= ended
        over += len(ended)
        turned = any(isinstance(fact, Settled) and fact.more for fact in facts)
        if turned or (agent != "pi" and ended and not under_way):
            yield part, over
            part = b""
    yield part, 0


def decided(event: Mapping[str, Any]) -> set[str]:
    """The calls of a decision that Claude Code tells as a whole."""
    content = event["message"].get("content") if event.get("type") == "assistant" else None
    return {part["id"] for part in content or () if part["type"] == "tool_use"}


def parsed(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) and isinstance(event.get("type"), str) else {}


async def heard(host: LocalHost, agent: str, said: bytes, *, size: int = 1 << 16) -> Outcome:
    """The outcome of a program that prints so, in pieces of `size` bytes, asks where it did, and exits with 0."""

    async def chunks() -> AsyncIterator[bytes]:
        await host.hold.ask(PATHS[agent], request(agent, 0))
        for part, over in decisions(agent, said):
            for at in range(0, len(part), size):
                yield part[at : at + size]
            if over:
                await host.hold.ask(PATHS[agent], request(agent, over))

    task = task_for(host, ResolvedAgent(driver=agent))
    remember = Conversation(task.home, agent).remember
    asked = iter([frozenset[str]()])  # at first none; after that, whatever it asks with
    kept = frozenset(f"c{n}" for n in range(99))
    launch = Launch((), {}, b"", dialect(agent), remember, lambda: next(asked, kept))
    with host.held() as requests:
        listener = AgentListener(task, host, launch, requests)
        attending = asyncio.create_task(listener.attend())
        await listener.hear(chunks())
        attending.cancel()
        await asyncio.wait({attending})
    return listener.judge(0)


def recorded(agent: str, name: str) -> bytes:
    return (RECORDED / f"{agent}-{name}.jsonl").read_bytes()


def calls(host: LocalHost) -> list[str]:
    """Tool calls, each by its place, its tool, and how it ended."""
    ended = [told for told in host.told if told.type == "TOOL_RESPONSE"]
    return [f"{told.tool_call_id} {told.payload['tool']} {told.payload['ok']}" for told in ended]


MENDED = {
    "claude-code": ["1.0 Bash True", "2.0 Bash False"],
    "codex": ["1.0 command_execution True", "2.0 command_execution False"],
    "pi": ["1.0 bash True", "2.0 bash False"],
}
EDITED = {
    "claude-code": ["1.0 Read True", "1.1 Write True", "2.0 Bash True", "2.1 Bash True", "2.2 Bash False"],
    "codex": [
        "1.0 file_change True",
        *(f"{n}.0 command_execution {ok}" for n, ok in ((2, True), (3, False), (4, True))),
    ],
    "pi": ["1.0 edit True", "1.1 write True", "2.1 bash True", "2.2 bash False", "2.0 bash True"],
}


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("size", [1, 7, 64, 4096, 1 << 20])
async def test_facts_are_the_same_however_the_bytes_are_cut(host, agent, size):
    outcome = await heard(host, agent, recorded(agent, "mended"), size=size)
    assert (outcome.outcome, outcome.summary) == ("completed", "All done.")
    assert calls(host) == MENDED[agent]
    assert host.told[-1].payload["exit_code"] == 3
    assert host.iterations == [1, 2, 3]
    total = {name: sum(each.get(name, 0) for each in host.usage) for name in host.usage[-1]}
    assert total == {"input_tokens": 300, "output_tokens": 30, "cache_read_tokens": 3_000}
    lines = host.said.decode().splitlines()
    assert next(line for line in lines if "metadata" not in line) == "I look."
    assert lines[-1] == "All done."


@pytest.mark.parametrize("agent", AGENTS)
async def test_edits_and_parallel_calls_are_told_by_their_places(host, agent):
    assert (await heard(host, agent, recorded(agent, "edited"))).outcome == "completed"
    assert sorted(calls(host)) == sorted(EDITED[agent])
    asked = next(told for told in host.told if told.type == "TOOL_REQUEST")
    assert "a.txt" in str(asked.payload["arguments"])


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    ("name", "end", "says"),
    [
        ("refused", ("failed", "ModelUnauthorized"), "no way"),
        ("spent", ("exhausted", "BudgetExhausted"), "BudgetExhausted: the run's token limit of 5 is used up (7)"),
        ("over", ("completed", "Completed"), ""),
        ("gave-up", ("failed", "AgentFailed"), ""),
        ("said-nothing", ("completed", "Completed"), ""),
        ("no-such-tool", ("completed", "Completed"), ""),
    ],
)
async def test_how_it_ended_is_judged_by_its_words_and_never_by_its_exit_code(host, agent, name, end, says):
    ended = await heard(host, agent, recorded(agent, name))
    assert (ended.outcome, ended.reason) == end
    assert says in ended.message
    assert '{"' not in ended.message


CUT = [("claude-code", "AgentFailed"), ("codex", "OutputLimit"), ("pi", "OutputLimit")]


@pytest.mark.parametrize(("agent", "reason"), CUT)
async def test_an_answer_that_was_cut_is_told_apart_where_its_program_does_not_go_on_by_itself(host, agent, reason):
    ended = await heard(host, agent, recorded(agent, "cut-short"))
    assert (ended.outcome, ended.reason) == ("failed", reason)
    assert "output" in ended.message


@pytest.mark.parametrize("agent", AGENTS)
async def test_an_end_before_the_last_word_is_unknown_wherever_it_comes(host, agent):
    lines = recorded(agent, "mended").splitlines(keepends=True)
    while b"command_lifecycle" in lines[-1]:  # Claude Code's, after its last word
        lines.pop()
    for kept in range(len(lines)):
        ended = await heard(LocalHost(host.tree), agent, b"".join(lines[:kept]))  # what each one does is done once
        assert (ended.outcome, ended.reason) == ("unknown", "NoLastWord")


@pytest.mark.parametrize("agent", AGENTS)
async def test_success_after_a_refused_key_is_failure_unless_a_decision_came_after_it(host, agent):
    mended, refused = (recorded(agent, name).splitlines(keepends=True) for name in ("mended", "refused"))
    ends, decided = (
        (b"turn.failed", b"agent_end", b'"type":"result"'),
        (b'"item.completed"', b'"turn_end"', b'"type":"user"'),
    )
    told = [line for line in refused if b"401" in line and not any(end in line for end in ends)]
    last = max(at for at, line in enumerate(mended) if any(word in line for word in decided))
    ended = await heard(host, agent, b"".join([*mended[:last], *told, *mended[last:]]))
    assert (ended.outcome, ended.reason) == ("failed", "ModelUnauthorized")
    assert (await heard(host, agent, b"".join([*told, *mended]))).outcome == "completed"


@pytest.mark.parametrize("agent", AGENTS)
async def test_what_it_has_never_said_before_is_kept_as_it_is(host, agent):
    strange = [
        b'{"type":"quite.new","of":[1,2]}\n',
        b'{"no":"type"}\n',
        b'{"type":["a"]}\n',
        b"{ half\n",
        b"\xff\xfe \x00 no text\n",
        "a line\u2028that another ends\n".encode(),
        b'{"type":"quite.new","text":"' + b"[" * 5_000 + b'"}\n',
        b'{"type":' + b"[" * 100_000 + b"\n",
    ]
    whole = recorded(agent, "mended")
    ended = await heard(host, agent, b"".join(strange) + whole, size=999)
    assert ended.outcome == "completed"
    assert host.said.startswith(b"".join(strange))
    assert host.iterations == [1, 2, 3]


@pytest.mark.parametrize("agent", AGENTS)
def test_no_shape_of_an_event_is_too_strange(agent):
    for kind, place, field, value in product(KINDS[agent], PLACES[agent], FIELDS[agent], VALUES):
        parts = [{"type": item, "role": "assistant", field: value} for item in (*ITEMS[agent], "nothing known")]
        for inner in ({field: value}, *parts, {"content": parts, "subtype": "hook_callback", "input": parts[0]}):
            found = dialect(agent).facts({"type": kind, place: inner})
            assert found is None or isinstance(found, list)
        assert isinstance(dialect(agent).facts({"type": kind, place: value}) or [], list)


async def test_numbers_past_all_reason_are_none(host):
    huge = b"9" * 400
    done = b'{"type":"item.completed","item":{"id":"i","type":"command_execution","exit_code":%s}}\n' % huge
    over = b'{"type":"turn.completed","usage":{"input_tokens":%s,"output_tokens":-5}}\n' % huge
    assert (await heard(host, "codex", done + over)).outcome == "completed"
    assert all("exit_code" not in told.payload for told in host.told)
    assert host.usage == [{}, {}]


async def test_the_type_of_an_overlong_last_word_is_enough(host):
    """pi repeats the whole conversation at its end."""
    *lines, last = recorded("pi", "mended").splitlines(keepends=True)
    assert last.startswith(b'{"type":"agent_end"')
    long = last.replace(b'"messages":[', b'"messages":["' + b"x" * (LINE_CAP + 10) + b'",')
    assert (await heard(host, "pi", b"".join([*lines, long]))).outcome == "completed"
    assert b"xxx" in host.said


async def test_what_follows_in_an_overlong_line_is_never_an_event(host):
    false = b'{"type":"turn.completed","usage":{}}\n'
    ended = await heard(host, "codex", b'{"type":"nothing","text":"' + b"x" * LINE_CAP + b"y" + false, size=1 << 16)
    assert ended.outcome == "unknown"
    parts = [b'{"type":"nothing","text":"' + b"x" * LINE_CAP, false]
    assert (await heard(host, "codex", b"".join(parts), size=len(parts[0]))).outcome == "unknown"


LAST_WORDS = "x" * 10_000
WORDS = {
    "claude-code": (
        {"type": "assistant", "message": {"content": [{"type": "text", "text": LAST_WORDS}]}},
        {"type": "result", "subtype": "success", "is_error": False},
    ),
    "codex": (
        {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": LAST_WORDS}},
        {"type": "turn.completed", "usage": {}},
    ),
    "pi": (
        {
            "type": "message_end",
            "message": {
                "role": "assistant",
                "stopReason": "stop",
                "content": [{"type": "text", "text": LAST_WORDS}],
            },
        },
        {"type": "agent_end"},
    ),
}


@pytest.mark.parametrize("agent", AGENTS)
async def test_last_words_of_any_length_are_whole_in_the_log_and_said_to_be_cut_elsewhere(host, agent):
    ended = await heard(host, agent, b"".join(json.dumps(each).encode() + b"\n" for each in WORDS[agent]))
    assert ended.outcome == "completed"
    assert (len(ended.summary), ended.summary.endswith(MORE)) == (SUMMARY_CAP, True)
    assert f"{LAST_WORDS}\n".encode() in host.said


class Forgetful(LocalHost):
    """Counts what it is told."""

    size = 0

    async def output(self, _: str, data: bytes) -> None:
        self.size += len(data)


SECONDS = 3_600
PROGRESS = {
    "claude-code": b'{"type":"system","subtype":"status","text":"at work, second %d"}\n',
    "codex": b'{"type":"item.updated","item":{"id":"i","type":"reasoning","text":"at work, second %d"}}\n',
    "pi": b'{"type":"message_update","text":"at work, second %d"}\n',
}


@pytest.mark.rule("J12")
@pytest.mark.parametrize("agent", AGENTS)
async def test_an_output_that_drips_for_an_hour_fills_no_memory(host, agent):
    """Events in pieces, and words whose line ends much later; no clock is waited for between them."""
    forgetful = Forgetful(host.tree)
    held: list[int] = []
    launch = Launch((), {}, b"", dialect(agent), lambda _: None)
    task = task_for(forgetful, ResolvedAgent(driver=agent))

    async def dripping() -> AsyncIterator[bytes]:
        for second in range(SECONDS):
            event = PROGRESS[agent] % second
            yield event[:9]
            yield event[9:]
            yield b"words of second %d " % second + b"x" * 500 + (b"\n" if second % 2 else b"")
            if second % 900 == 0 or second == SECONDS - 1:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        with forgetful.held() as requests:
            await AgentListener(task, forgetful, launch, requests).hear(dripping())
    finally:
        tracemalloc.stop()
    assert forgetful.size > SECONDS * 500, "all of it is kept by whoever keeps it"
    assert max(held) - held[0] < 256 * 1024, held


def test_the_recordings_are_of_the_versions_that_are_installed():
    """Whoever raises a version records anew."""
    packages = {agent: json.loads((IMAGES / agent / "package.json").read_text()) for agent in AGENTS}
    locked = {agent: each.get("dependencies") or each["optionalDependencies"] for agent, each in packages.items()}
    assert locked == {
        "claude-code": {f"@anthropic-ai/claude-code-linux-{machine}": "2.1.332" for machine in ("arm64", "x64")},
        "codex": {"@openai/codex": "0.169.0"},
        "pi": {"@mariozechner/pi-coding-agent": "0.73.1"},
    }


def told(state: str, name: str) -> dict[str, Any]:
    return {"type": "command_lifecycle", "command_uuid": name, "state": state}


RESULT = {"type": "result", "subtype": "success", "is_error": False}


def test_an_end_of_claude_codes_is_none_while_something_that_was_said_to_it_waits():
    events = ClaudeCodeEvents(iter(("goal", "more")).__next__)
    events.user("Mend it.")
    assert [events.facts(told(state, "goal")) for state in ("queued", "started")] == [[], []]
    assert json.loads(events.user("With tabs."))["uuid"] == "more"
    assert [type(fact) for fact in events.facts(RESULT) or ()] == [Settled]
    events.facts(told("queued", "more"))
    assert [type(fact) for fact in events.facts(RESULT) or ()] == [Settled]
    events.facts(told("started", "more"))
    assert [type(fact) for fact in events.facts(RESULT) or ()] == [Settled, Ended]


def test_one_that_tells_nothing_of_what_was_said_ends_by_its_word():
    events = ClaudeCodeEvents(iter(("goal",)).__next__)
    events.user("Mend it.")
    assert [type(fact) for fact in events.facts(RESULT) or ()] == [Settled, Ended]


def test_an_end_of_claude_codes_is_none_while_a_helper_of_its_own_works():
    events = ClaudeCodeEvents(iter("a").__next__)
    for kind, ends in (("local_agent", False), ("local_bash", True)):
        changed = {"type": "system", "subtype": "background_tasks_changed", "tasks": [{"task_type": kind}]}
        assert events.facts(changed) == []
        assert any(isinstance(fact, Ended) for fact in events.facts(RESULT) or ()) is ends
