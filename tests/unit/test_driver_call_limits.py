"""B3: what becomes of a program's tool call that its run may not make any more."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from moorage.api.budget import Budget
from moorage.api.wire import ResolvedAgent
from moorage.drivers.claude_code.events import ClaudeCodeEvents
from moorage.drivers.codex.events import CodexEvents
from moorage.drivers.facts import Dialect
from moorage.drivers.jsonlines import AgentListener, Launch, Line, Speech
from moorage.drivers.pi.events import PiEvents
from moorage.drivers.program import Spent
from moorage.testing.host import LocalHost, task_for

RECORDED = Path(__file__).parents[1] / "recorded"
DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "claude-code": lambda: ClaudeCodeEvents(iter("abc").__next__),
    "codex": CodexEvents,
    "pi": PiEvents,
}


class Limited(LocalHost):
    """A host whose gateway says at the second call that there may be no more."""

    async def emit(self, type: str, payload: Mapping[str, Any], **ids: Any) -> None:  # noqa: A002  the port's
        await super().emit(type, payload, **ids)
        if [told.type for told in self.told].count("TOOL_REQUEST") > 1:
            self.budget = Budget(exhausted="no more calls")


@pytest.fixture
def host(tmp_path: Path) -> Limited:
    (tmp_path / "tree").mkdir()
    return Limited(tmp_path / "tree")


def listener(host: Limited, agent: str, line: Line | None = None) -> AgentListener:
    launch = Launch((), {}, b"", DIALECTS[agent](), lambda _: None)

    async def none() -> Any:
        for nothing in ():
            yield nothing

    return AgentListener(task_for(host, ResolvedAgent(driver=agent)), host, launch, none(), line)


@pytest.mark.rule("B3")
@pytest.mark.parametrize("agent", DIALECTS)
async def test_one_call_too_many_stops_the_program(host: Limited, agent: str) -> None:
    async def said() -> Any:
        yield (RECORDED / f"{agent}-edited.jsonl").read_bytes()

    with pytest.raises(Spent, match="no more calls"):
        await listener(host, agent).hear(said())
    asked = [told for told in host.told if told.type == "TOOL_REQUEST"]
    assert len(asked) == 2, "the one too many is a fact, too"


@pytest.mark.rule("B3")
async def test_who_asks_before_it_calls_is_answered_only_where_it_may(host: Limited) -> None:
    answers: list[dict[str, Any]] = []

    async def say(data: bytes) -> None:
        answers.append(json.loads(data))

    async def said() -> Any:
        for call in ("a", "b"):
            asked = {"tool_use_id": call, "tool_name": "Bash", "tool_input": {"command": "true"}}
            request = {"subtype": "hook_callback", "callback_id": "h", "input": asked}
            yield json.dumps({"type": "control_request", "request_id": call, "request": request}).encode() + b"\n"

    with pytest.raises(Spent, match="no more calls"):
        await listener(host, "claude-code", Line(say, Speech(), None)).hear(said())
    assert [answer["response"]["request_id"] for answer in answers] == ["a"]
