"""T6: what an ACP agent has us do, and what it asks its model, while one of its calls waits for a person."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from moorage.api.wire import ResolvedAgent
from moorage.drivers.acp.desk import Desk
from moorage.drivers.acp.events import AcpEvents
from moorage.drivers.asking import UNKNOWN
from moorage.drivers.jsonlines import MAX_OPEN, AgentListener, Launch, Line, Speech
from moorage.testing.host import LocalHost, task_for

pytestmark = pytest.mark.rule("T6")
OPTIONS = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]


class Agent:
    """One in the middle of its first turn; `heard` is what it was told since, while it `reads`."""

    def __init__(self, host: LocalHost) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.host, self.heard = host, list[dict[str, Any]]()
        task = task_for(host, ResolvedAgent(driver="acp"))
        events = AcpEvents(host.tree, str, None)
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self._desk = Desk(task, host, {}, self._hear)
        line = Line(self._hear, Speech(), self._desk)
        launch = Launch((), {}, b"", events, lambda _: None)
        self._listener = AgentListener(task, host, launch, self._requests(), line)
        self._parts = [asyncio.create_task(self._listener.hear(self._words()))]
        self._parts.append(asyncio.create_task(self._listener.attend()))
        self.say(id=0, result={"protocolVersion": 1})
        self.say(id=2, result={"sessionId": "s"})

    def say(self, **message: Any) -> None:
        self._said.put_nowait(json.dumps(message).encode() + b"\n")

    def ask(self, call: str, kind: str = "execute") -> None:
        tool = {"toolCallId": call, "kind": kind, "title": "x", "rawInput": {"command": "make"}}
        params = {"toolCall": tool, "options": OPTIONS}
        self.say(id=call, method="session/request_permission", params=params)

    def over(self, call: str) -> None:
        update = {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed"}
        self.say(method="session/update", params={"update": update})

    def want(self, number: str, command: str = "touch ran") -> None:
        self.say(id=number, method="terminal/create", params={"command": command, "cwd": str(self.host.tree)})

    def answers(self) -> dict[str, Any]:
        return {each["id"]: each for each in self.heard if isinstance(each.get("id"), str)}

    async def asks_its_model(self, call: str) -> bytes:
        asked = {"messages": [{"role": "tool", "tool_call_id": call, "content": "ok"}]}
        return await self.host.hold.ask("/model/v1/chat/completions", json.dumps(asked).encode())

    async def end(self) -> None:
        for part in reversed(self._parts):
            part.cancel()
            await asyncio.gather(part, return_exceptions=True)
        await self._desk.close()

    @property
    def unheard(self) -> int:
        return self._said.qsize()

    async def _hear(self, data: bytes) -> None:
        await self.reads.wait()
        self.heard.append(json.loads(data))

    async def _words(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._said.get()

    async def _requests(self) -> AsyncIterator[Any]:
        with self.host.held() as requests:
            async for each in requests:
                yield each


async def until(found: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not found():  # noqa: ASYNC110  a reader and its tasks bring it about
            await asyncio.sleep(0.005)


@pytest.fixture
async def host(tmp_path: Path) -> LocalHost:
    (tmp_path / "tree").mkdir()
    made = LocalHost(tmp_path / "tree")
    for tool in ("execute", "terminal/create"):
        made.asked[tool] = asyncio.get_running_loop().create_future()
    return made


@pytest.fixture
async def agent(host: LocalHost) -> AsyncIterator[Agent]:
    made = Agent(host)
    yield made
    await made.end()


async def test_nothing_is_done_for_a_call_that_waits(host: LocalHost, agent: Agent) -> None:
    agent.ask("a")
    agent.want("t")
    await until(lambda: len(host.waiting) > 1 or agent.heard[2:])
    assert host.waiting == [("1.0", "execute"), ("1.1", "terminal/create")]
    assert not (host.tree / "ran").exists()
    host.asked["terminal/create"].set_result("refused by ada")
    await until(lambda: "t" in agent.answers())
    assert agent.answers()["t"]["error"]["message"] == "refused by ada"
    host.asked["execute"].set_result(None)
    await until(lambda: "a" in agent.answers())
    agent.want("u")
    await until(lambda: "u" in agent.answers())
    assert "result" in agent.answers()["u"], "what is done for one that may run is a part of it"
    assert len(host.waiting) == 2


@pytest.mark.parametrize("calls", [0, 2])
async def test_one_that_wants_more_at_once_than_anybody_writes_down_is_refused(
    host: LocalHost, agent: Agent, calls: int
) -> None:
    for number in range(calls):
        agent.ask(f"call {number}")
    most = MAX_OPEN - calls
    for number in range(most + 2):
        agent.want(f"{number}")
    await until(lambda: str(most + 1) in agent.answers())
    assert len(host.waiting) == MAX_OPEN
    refused = {name: each["error"]["message"] for name, each in agent.answers().items()}
    assert refused == {str(most): UNKNOWN, str(most + 1): UNKNOWN}


async def test_one_that_wants_ever_more_and_reads_no_answer_is_not_read_on(host: LocalHost, agent: Agent) -> None:
    await until(lambda: len(agent.heard) == 2)
    agent.reads.clear()
    for number in range(2 * MAX_OPEN):
        agent.want(f"{number}")
    await until(lambda: len(host.waiting) == MAX_OPEN)
    await asyncio.sleep(0.1)
    assert agent.unheard == MAX_OPEN - 1
    agent.reads.set()
    await until(lambda: len(agent.answers()) == MAX_OPEN)


async def test_no_safe_point_withdraws_the_question_of_a_call_that_waits(host: LocalHost, agent: Agent) -> None:
    agent.ask("b", "edit")
    agent.ask("a")
    agent.over("b")
    await until(lambda: any(fact.type == "TOOL_RESPONSE" for fact in host.told))
    assert await agent.asks_its_model("b") == b""
    assert host.iterations == []
    host.asked["execute"].set_result(None)
    await until(lambda: "a" in agent.answers())
    agent.over("a")
    assert await agent.asks_its_model("a") == b""
    assert host.iterations == [1]
