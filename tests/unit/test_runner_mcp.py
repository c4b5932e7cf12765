"""The tools of children as a server of the Model Context Protocol: what it answers, and what it makes of nonsense."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from moorage.api.budget import Budget
from moorage.api.children import ChildAnswer
from moorage.runner.mcp import ChildTools
from moorage.runner.relay import Relay
from moorage.testing.host import GivenChildren

TOOLS = ["spawn_run", "wait_run", "merge_run", "remaining_budget", "report_progress"]


@pytest.fixture
def children() -> GivenChildren:
    return GivenChildren()


@pytest.fixture
def tools(children: GivenChildren) -> ChildTools:
    return ChildTools(children, lambda: Budget(left={"tokens": 7}))


async def ask(tools: ChildTools, method: str, **params: Any) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}
    answer = await tools.answer(json.dumps(message).encode())
    assert answer is not None
    found = dict(json.loads(answer))
    assert (found["jsonrpc"], found["id"]) == ("2.0", 5)
    return found


async def call(tools: ChildTools, tool: str, /, **arguments: Any) -> tuple[str, bool]:
    result = (await ask(tools, "tools/call", name=tool, arguments=arguments))["result"]
    return result["content"][0]["text"], result["isError"]


async def test_a_client_is_greeted_in_its_own_version(tools: ChildTools) -> None:
    hello = (await ask(tools, "initialize", protocolVersion="2025-03-26"))["result"]
    assert (hello["protocolVersion"], hello["capabilities"]) == ("2025-03-26", {"tools": {}})
    assert await tools.answer(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}') is None
    assert (await ask(tools, "ping"))["result"] == {}


async def test_each_tool_says_what_it_takes(tools: ChildTools) -> None:
    listed = (await ask(tools, "tools/list"))["result"]["tools"]
    assert [each["name"] for each in listed] == TOOLS
    assert all(each["description"] and each["inputSchema"]["type"] == "object" for each in listed)
    assert listed[0]["inputSchema"]["required"] == ["goal"]


@pytest.mark.rule("O2")
async def test_what_is_asked_for_again_is_the_same_child(tools: ChildTools, children: GivenChildren) -> None:
    first = await call(tools, "spawn_run", goal="the parser")
    assert first == ("child: child-1\nstatus: requested", False)
    assert await call(ChildTools(children, Budget), "spawn_run", goal="the parser") == first
    assert "child-2" in (await call(tools, "spawn_run", goal="the lexer"))[0]


async def test_a_child_that_is_unknown_or_has_failed_is_an_error_for_the_model(
    tools: ChildTools, children: GivenChildren
) -> None:
    assert (await call(tools, "wait_run", name="nobody"))[1]
    await call(tools, "spawn_run", goal="the parser")
    assert (await call(tools, "merge_run", name="child-1")) == ("child-1 is started and has no commit to merge", True)
    children.over["child-1"] = ChildAnswer(name="child-1", status="ended", outcome="Failed")
    assert (await call(tools, "wait_run", name="child-1")) == ("child: child-1\nstatus: Failed", True)
    children.over["child-1"] = ChildAnswer(name="child-1", status="ended", outcome="Succeeded", commit="c" * 40)
    assert (await call(tools, "merge_run", name="child-1")) == ("merged child-1: 1 files changed", False)


@pytest.mark.parametrize(("call_s", "asked", "waited"), [(3_600, 600, 600), (45, 600, 40), (45, 0, 0)])
async def test_a_client_that_gives_up_soon_is_answered_before_that(
    children: GivenChildren, monkeypatch: pytest.MonkeyPatch, call_s: int, asked: int, waited: int
) -> None:
    spent: list[float] = []

    async def wait(name: str, within_s: float) -> ChildAnswer:
        spent.append(within_s)
        return ChildAnswer(name=name, status="started")

    monkeypatch.setattr(children, "wait", wait)
    tools = ChildTools(children, Budget, call_s=call_s)
    assert await call(tools, "wait_run", name="child-1", timeout_s=asked) == ("child: child-1\nstatus: started", False)
    assert spent == [waited]


async def test_what_is_left_is_told(tools: ChildTools) -> None:
    assert await call(tools, "remaining_budget") == ("tokens: 7", False)
    assert await call(tools, "report_progress", text="half") == ("noted: half", False)


async def test_wrong_arguments_are_told_to_the_model_and_wrong_messages_to_the_client(tools: ChildTools) -> None:
    said, failed = await call(tools, "spawn_run", goal="", tokens=-1)
    assert failed
    assert "goal" in said
    assert "tokens" in said
    assert (await ask(tools, "tools/call", name="rm"))["error"]["code"] == -32602
    assert (await ask(tools, "resources/list"))["error"]["code"] == -32601
    for body, code in ((b"{", -32700), (b"[]", -32600), (b'{"id": 1}', -32600)):
        answer = await tools.answer(body)
        assert answer is not None
        assert json.loads(answer)["error"]["code"] == code


async def test_the_relay_serves_it_beside_its_doors_and_only_where_there_are_any(
    tools: ChildTools, tmp_path: Path
) -> None:
    relay = Relay("http://127.0.0.1:9", tmp_path / "token")
    await relay.start()
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    try:
        async with httpx.AsyncClient(base_url=relay.url, trust_env=False) as http:
            assert (await http.post("/mcp", json=ping)).status_code == 404
            relay.tools = tools.answer
            answered = await http.post("/mcp", json=ping)
            assert (answered.status_code, answered.json()["result"]) == (200, {})
            told = await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            assert (told.status_code, told.content) == (202, b"")
            assert (await http.get("/mcp", headers={"accept": "text/event-stream"})).status_code == 405
    finally:
        await relay.stop()


async def test_nothing_goes_on_for_a_client_that_has_left(tmp_path: Path) -> None:
    """A wait tells that the attempt goes on: without a listener it would excuse whatever hangs beside it."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def waits(_: bytes) -> bytes | None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return None

    relay = Relay("http://127.0.0.1:9", tmp_path / "token")
    relay.tools = waits
    await relay.start()
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(relay.url.rpartition(":")[2]))
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        await begun.wait()
        writer.close()
        await over.wait()
    finally:
        await relay.stop()


async def test_a_merge_is_not_given_up_half_way(
    tools: ChildTools, children: GivenChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, on, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def merge(_: str) -> int:
        begun.set()
        await on.wait()
        over.set()
        return 1

    monkeypatch.setattr(children, "merge", merge)
    asking = asyncio.create_task(call(tools, "merge_run", name="child-1"))
    await begun.wait()
    asking.cancel()
    await asyncio.wait({asking})
    on.set()
    await over.wait()
