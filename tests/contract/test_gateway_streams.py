"""Streams of a run: every event once and in order, whoever reads, however slowly, wherever it comes back (M4, M5)."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from tests.gateway_script import Operator, agent_at_work, ok, refused, resolved, told

from moorage.api.sse import Event, Parser
from moorage.core.journal.chain import ChainVerifier
from moorage.core.journal.export import Line, parse_record
from moorage.gateway.settings import GatewaySettings
from moorage.testing.gateway import LocalGateway

LOGS, TIMELINE = "/v1/runs/u1/logs/stream", "/v1/runs/u1/timeline/stream"


async def events(answer: httpx.Response) -> AsyncIterator[Event]:
    parser = Parser()
    async for chunk in answer.aiter_raw():
        for event in parser.feed(chunk):
            yield event


async def whole(client: httpx.AsyncClient, path: str, **headers: str) -> list[Event]:
    """To the end of a run that ends."""
    async with client.stream("GET", path, headers=headers, timeout=None) as answer:
        assert answer.status_code == 200, await answer.aread()
        async with asyncio.timeout(50):
            return [event async for event in events(answer)]


def output(text: bytes, key: int | str) -> dict[str, Any]:
    try:
        payload = {"stream": "stdout", "text": text.decode()}
    except UnicodeDecodeError:
        payload = {"stream": "stdout", "data": base64.b64encode(text).decode()}
    return told("AGENT_OUTPUT", payload, str(key))


def written(found: list[Event]) -> bytes:
    """What the agent wrote, of these events."""
    said = [json.loads(event.data) for event in found if event.kind == "output"]
    return b"".join(each["text"].encode() if "text" in each else base64.b64decode(each["data"]) for each in said)


async def say(runner: httpx.AsyncClient, *texts: bytes, start: int = 0) -> None:
    for number, text in enumerate(texts, start):
        await ok(await runner.post("/v1/self/records", json=output(text, number)))


async def end(operator: Operator) -> None:
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": "it failed"}))


@pytest.mark.rule("M4")
async def test_output_comes_as_it_is_written_and_the_end_comes_last(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await say(runner, b"first\n")
    async with gateway.reader("ann", "team-a").stream("GET", LOGS, timeout=None) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with asyncio.timeout(50), aclosing(events(answer)) as stream:
            first = await anext(stream)
            assert json.loads(first.data) == {"at": 7, "epoch": 1, "stream": "stdout", "text": "first\n"}
            await say(runner, b"\xffsecond\n", start=1)
            second = await anext(stream)
            assert written([second]) == b"\xffsecond\n"
            await end(operator)
            last = await anext(stream)
            assert last.kind == "end"
            said = json.loads(last.data)
            assert (said["phase"], said["reason"], said["message"]) == ("Failed", "AgentFailed", "it failed")
            assert [event async for event in stream] == []
    ids = [event.id for event in (first, second, last)]
    assert ids == sorted(set(ids))


@pytest.mark.rule("M4")
async def test_whoever_comes_back_with_a_cursor_misses_nothing_and_hears_nothing_twice(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await say(runner, *(b"line %d\n" % n for n in range(9)))
    await end(operator)
    reader = gateway.reader("ann", "team-a")
    found = await whole(reader, LOGS)
    assert written(found) == b"".join(b"line %d\n" % n for n in range(9))
    for at, event in enumerate(found):
        assert await whole(reader, LOGS, **{"last-event-id": str(event.id)}) == (found[at + 1 :] or found[-1:])
        assert await whole(reader, f"{LOGS}?after={event.id}") == (found[at + 1 :] or found[-1:])
    refused(await reader.get(LOGS, headers={"last-event-id": "x"}), 422, "Invalid")


@pytest.mark.rule("M4")
async def test_the_timeline_is_the_journal_itself_and_can_be_verified_as_it_comes(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await say(runner, b"words\n")
    await end(operator)
    reader = gateway.reader("ann", "team-a")
    chain, types = ChainVerifier(), []
    for event in await whole(reader, f"{TIMELINE}?all=true"):
        if event.kind == "record":
            assert chain.feed(parse_record(Line(1, 0, event.data))) is None
            assert chain.last is not None
            assert chain.last.seq == event.id
            types.append(chain.last.type)
    assert types == await operator.types()
    facts = [parse_record(Line(1, 0, e.data)) for e in await whole(reader, TIMELINE) if e.kind == "record"]
    assert [json.loads(each.body)["type"] for each in facts] == [kind for kind in types if kind != "AGENT_OUTPUT"]


@pytest.mark.rule("I10")
async def test_strangers_are_told_what_they_would_be_told_of_a_run_that_is_not_there(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await operator.start()
    for path in (LOGS, TIMELINE):
        refused(await gateway.reader("eve", "team-b").get(path), 404, "UnknownRun")
        refused(await gateway.client(None).get(path), 401, "Unauthenticated")


async def test_erased_output_is_a_gap_that_says_what_is_missing(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await say(runner, b"gone\n", b"kept\n")
    erased = next(r for r in await operator.records() if r.type == "AGENT_OUTPUT")
    await gateway.deps.blobs.delete("team-a", erased.payload_ref.sha256)
    await end(operator)
    gap, kept, _ = await whole(gateway.operator, LOGS)
    assert (gap.kind, json.loads(gap.data)) == ("gap", {"reason": "Erased", "first": gap.id, "last": gap.id})
    assert written([kept]) == b"kept\n"


@pytest.fixture
async def small(tmp_path, upstream) -> AsyncIterator[LocalGateway]:
    """A gateway whose rings hold next to nothing."""
    settings = GatewaySettings(stream_ring_bytes=400, stream_chunk_bytes=100, stream_page_bytes=300, keep_alive_ms=50)
    gateway = LocalGateway(tmp_path, settings=settings)
    gateway.secrets.give("team-a", "git", username="ada", password="correct horse")
    async with gateway.serving():
        yield gateway


@pytest.mark.rule("M4", "M5")
async def test_what_has_left_the_ring_comes_from_the_journal(small: LocalGateway, upstream) -> None:
    operator = Operator(small, resolved(upstream))
    runner = await agent_at_work(small, operator)
    reader = small.reader("ann", "team-a")
    async with reader.stream("GET", LOGS, timeout=None) as answer, aclosing(events(answer)) as stream:
        await say(runner, b"0\n")
        found = [await anext(stream)]
        others = [asyncio.create_task(whole(reader, LOGS)) for _ in range(8)]
        await say(runner, *(b"%d\n" % n for n in range(1, 60)), start=1)
        await end(operator)
        found += [event async for event in stream]
        for each in [found, *await asyncio.gather(*others)]:
            assert written(each) == b"".join(b"%d\n" % n for n in range(60))
            assert each[-1].kind == "end"


async def test_a_quiet_stream_says_that_it_lives(small: LocalGateway, upstream) -> None:
    operator = Operator(small, resolved(upstream))
    await agent_at_work(small, operator)
    async with small.operator.stream("GET", LOGS, timeout=None) as answer, asyncio.timeout(50):
        async for chunk in answer.aiter_raw():
            assert chunk == b": \n\n"
            break
