"""Streams of a run: every event once and in order, whoever reads, however slowly, wherever it comes back (M4, M5)."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, refused, resolved, told

from moorage.api.sse import Event, Parser
from moorage.core.journal.chain import ChainVerifier
from moorage.core.journal.export import Line, parse_record
from moorage.gateway.events import Outputs, Source
from moorage.gateway.feeds import Feeds
from moorage.gateway.housekeeping import Housekeeping
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.tail import PAGE, tail
from moorage.store.errors import StoreUnavailable
from moorage.testing.gateway import LocalGateway

LOGS, TIMELINE = "/v1/runs/u1/logs/stream", "/v1/runs/u1/timeline/stream"


async def events(answer: httpx.Response) -> AsyncGenerator[Event, None]:
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


async def resumed(client: httpx.AsyncClient, path: str) -> list[Event]:
    """The same, for who is cut off, too, and comes back."""
    found: list[Event] = []
    while not found or found[-1].kind != "end":
        headers = {"last-event-id": str(found[-1].id)} if found else {}
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("GET", path, headers=headers, timeout=None) as answer:
                async for event in events(answer):
                    found.append(event)  # noqa: PERF401  what came before a cut counts
    return found


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
    ids = [event.id or 0 for event in (first, second, last)]
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
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
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


TEXTS = (b"a\nb", b"b\n\xff\nc\n", b"", b"d\ne\n")


@pytest.mark.parametrize("texts", [TEXTS, (*TEXTS, b"torn"), (b"one",), (b"\n",), ()])
async def test_the_last_lines_and_what_follows_them(tmp_path, upstream, texts: tuple[bytes, ...]) -> None:
    gateway = LocalGateway(tmp_path)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with gateway.serving():
        operator = Operator(gateway, resolved(upstream))
        runner = await agent_at_work(gateway, operator)
        await say(runner, *texts)
        await end(operator)
        lines = b"".join(texts).splitlines(keepends=True)
        for number in range(len(lines) + 2):
            found = await whole(gateway.operator, f"{LOGS}?tail={number}")
            assert written(found) == b"".join(lines[len(lines) - number :] if number <= len(lines) else lines), number
            assert found[-1].kind == "end"
        for query in ("tail=-1", "tail=100001", "tail=1&after=2", "tail=x"):
            refused(await gateway.operator.get(f"{LOGS}?{query}"), 422, "Invalid")
        again = await whole(gateway.operator, f"{LOGS}?tail=1", **{"last-event-id": "0"})
        assert written(again) == b"".join(texts), "whoever comes back has had the last lines"


async def test_the_last_lines_of_a_long_run_cost_the_pages_that_they_are_in(gateway, upstream, monkeypatch) -> None:
    """And each page is a turn: whoever reads a journal waits for a page of theirs, not for all of them."""
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    for first in range(0, 4 * PAGE, PAGE):
        lines = [output(b"%d\n" % n, n) for n in range(first, first + PAGE)]
        report = {"epoch": 1, "records": [each["records"][0] for each in lines]}
        await ok(await runner.post("/v1/self/records", json=report))
    await end(operator)
    outputs = Outputs(gateway.deps.blobs, "team-a")
    source = Source("logs", gateway.deps.store, "u1", outputs.event)
    with monkeypatch.context() as watched:
        read = spied(gateway, watched)
        for wanted, pages in ((0, 0), (1, 1), (PAGE // 2, 1), (PAGE + PAGE // 2, 2)):
            read.clear()
            turns = Turns()
            await tail(source, outputs, wanted, turns)
            assert (len(read), turns.taken) == (pages, pages)
            assert sum(read) <= pages * PAGE
    found = await whole(gateway.operator, f"{LOGS}?tail={PAGE + 3}")
    assert written(found) == b"".join(b"%d\n" % n for n in range(3 * PAGE - 3, 4 * PAGE))
    monkeypatch.setattr("moorage.gateway.tail.LOOKED_BACK", 2)
    gap, *rest, _ = await whole(gateway.operator, f"{LOGS}?tail=9")
    assert written(rest) == b"%d\n%d\n" % (4 * PAGE - 2, 4 * PAGE - 1)
    assert json.loads(gap.data) == {"reason": "Tail", "first": 0, "last": (rest[0].id or 0) - 1}


class Turns:
    """Counts them."""

    def __init__(self) -> None:
        self.taken = 0

    async def __aenter__(self) -> None:
        self.taken += 1

    async def __aexit__(self, *_: object) -> None:
        return None


def spied(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each reading of its store comes to."""
    store, read = gateway.deps.store, []
    really = store.read

    async def counted(uid: str, first: int = 0, limit: int = 1000) -> list[Any]:
        found = await really(uid, first, limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(store, "read", counted)
    monkeypatch.setattr(store, "stored", None)  # nobody begins at the first record
    return read


async def test_who_does_not_follow_gets_what_there_is_and_is_told_so(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await say(runner, b"first\n")
    found = await whole(gateway.operator, f"{LOGS}?follow=false")
    assert [event.kind for event in found] == ["output", "ready"]
    assert found[-1].id == (await operator.state())["offset"]
    await say(runner, b"second\n", start=1)
    (second, ready) = await whole(gateway.operator, f"{LOGS}?follow=false&after={found[-1].id}")
    assert (written([second]), ready.kind) == (b"second\n", "ready")
    await end(operator)
    assert [event.kind for event in await whole(gateway.operator, f"{LOGS}?follow=false")][-1] == "end"


@pytest.mark.rule("M4")
async def test_a_live_reader_that_fell_behind_is_told_what_it_missed_and_where_that_is(upstream, tmp_path) -> None:
    """Nothing is lost: the journal has it."""
    settings = GatewaySettings(stream_ring_bytes=1, stream_chunk_bytes=1)
    gateway = LocalGateway(tmp_path, settings=settings)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with gateway.serving():
        operator = Operator(gateway, resolved(upstream))
        runner = await agent_at_work(gateway, operator)
        run = await gateway.gate.ledger.open("u1")
        source = Source("logs", gateway.deps.store, "u1", Outputs(gateway.deps.blobs, "team-a").event)
        feeds = Feeds(gateway.gate)
        async with aclosing(feeds.follow(run, source, 0, live=True, follow=True)) as stream:
            reading = asyncio.ensure_future(anext(stream))
            await say(runner, b"0\n")
            first = await reading
            await say(runner, *(b"%d\n" % n for n in range(1, 9)), start=1)
            await end(operator)
            await asyncio.wait_for(until(lambda: next(iter(feeds.live)).end is not None), 50)
            found = list(Parser().feed(first + b"".join([chunk async for chunk in stream])))
        gap = next(event for event in found if event.kind == "gap")
        assert written(found) == b"0\n8\n"
        said = json.loads(gap.data)
        skipped = [e for e in await whole(gateway.operator, LOGS) if e.kind == "output"][1:8]
        assert (said["reason"], said["full"]) == ("Behind", "/v1/runs/u1/logs")
        assert said["size"] == sum(len(event.encoded()) for event in skipped)
        assert said["last"] == skipped[-1].id
        assert found[-1].kind == "end"


async def until(seen: Callable[[], bool]) -> None:
    while True:
        if seen():
            return
        await asyncio.sleep(0.01)


@pytest.mark.rule("M4")
async def test_a_reader_that_takes_nothing_slows_nobody_and_is_cut_off(tmp_path, upstream) -> None:
    """It asks and never reads; another one has everything meanwhile."""
    settings = GatewaySettings(stream_patience_ms=1_000)
    gateway = LocalGateway(tmp_path, settings=settings)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with gateway.serving():
        operator = Operator(gateway, resolved(upstream))
        runner = await agent_at_work(gateway, operator)
        assert gateway.url is not None
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        token = "operator-token"
        writer.write(f"GET {LOGS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode())
        await writer.drain()
        await reader.readline()
        texts = [f"{n} {'x' * 30_000}\n".encode() for n in range(400)]
        other = asyncio.create_task(resumed(gateway.operator, LOGS))
        await say(runner, *texts)
        await end(operator)
        assert written(await other) == b"".join(texts)
        cuts = gateway.deps.metrics.stream_cuts.labels("logs-stream", "slow")
        open_streams = gateway.deps.metrics.streams.labels("logs-stream")
        await asyncio.wait_for(until(lambda: cuts._value.get() > 0 and open_streams._value.get() == 0), 50)
        writer.close()
        assert written(await resumed(gateway.operator, LOGS)) == b"".join(texts)


async def test_a_reader_whose_rights_end_hears_no_more(tmp_path, upstream, clock) -> None:
    gateway = LocalGateway(tmp_path, settings=GatewaySettings(keep_alive_ms=20), clock=clock)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with gateway.serving():
        operator = Operator(gateway, resolved(upstream))
        await operator.start()
        reader = gateway.reader("ann", "team-a")
        async with reader.stream("GET", LOGS, timeout=None) as answer, asyncio.timeout(50):
            stream = answer.aiter_raw()
            assert await anext(stream) == b": \n\n"
            del gateway.tokens["token-of-ann"]
            clock.advance(gateway.deps.settings.stream_recheck_ms)
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in stream:
                    pass
        assert gateway.deps.metrics.stream_cuts.labels("logs-stream", "denied")._value.get() == 1


async def test_a_pruned_journal_is_a_gap_and_its_end_is_told(gateway, upstream, clock) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await say(runner, b"words\n")
    await end(operator)
    await ok(await gateway.operator.post(f"{operator.door}/release"))
    object.__setattr__(gateway.deps.settings, "journal_retention_ms", 1)
    clock.advance(60_000)
    await Housekeeping(gateway.gate).once()
    gateway.restart()
    gap, last = await whole(gateway.operator, LOGS)
    assert json.loads(gap.data) == {"reason": "Pruned", "first": 0, "last": gap.id}
    assert (last.kind, json.loads(last.data)["phase"]) == ("end", "Failed")


STRANGE = (
    {},
    {"text": 5},
    {"text": None, "data": "no base64"},
    {"data": "ab=c="},
    {"dropped": "x", "text": "kept"},
    {"dropped": -5},
    {"dropped": 2**53 - 1},
    {"stream": {"a": [1]}, "text": "a\r\n\n\u2028\x00data: x"},
    {"stream": "x" * 10_000, "text": ""},
    {"stream": "stderr", "text": "y" * (6 << 20)},
    {"text": "last"},
)


@pytest.mark.rule("J12")
async def test_whatever_a_sandbox_calls_output_ends_no_stream(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    for number, payload in enumerate(STRANGE):
        await ok(await runner.post("/v1/self/records", json=told("AGENT_OUTPUT", payload, str(number))))
    following = asyncio.create_task(whole(gateway.operator, LOGS))
    await end(operator)
    found = await following
    assert written(found) == b"kept" + b"a\r\n\n\xe2\x80\xa8\x00data: x" + b"y" * (6 << 20) + b"last"
    assert {json.loads(event.data)["stream"] for event in found if event.kind == "output"} == {"stdout", "stderr"}
    assert [json.loads(event.data)["size"] for event in found if event.kind == "gap"] == [0, 2**53 - 1]
    assert written(await whole(gateway.operator, f"{LOGS}?tail=1")).endswith(b"last")


@pytest.mark.rule("M4")
async def test_a_feed_that_fails_cuts_its_readers_and_the_next_one_serves_them(gateway, upstream, monkeypatch) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await say(runner, b"one\n")

    async def broken(*_: object) -> object:
        raise StoreUnavailable("its disk is away")

    following = asyncio.create_task(resumed(gateway.operator, LOGS))
    await asyncio.wait_for(until(lambda: gateway.deps.metrics.streams.labels("logs-stream")._value.get() == 1), 50)
    with monkeypatch.context() as patch:
        patch.setattr(Outputs, "payload", broken)
        await say(runner, b"two\n", start=1)
        cuts = gateway.deps.metrics.stream_cuts.labels("logs-stream", "failed")
        await asyncio.wait_for(until(lambda: cuts._value.get() > 0), 50)
    await end(operator)
    assert written(await following) == b"one\ntwo\n"


@pytest.mark.rule("M4")
async def test_two_hundred_readers_cost_the_store_what_one_does(gateway, upstream, monkeypatch) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    run = await gateway.gate.ledger.open("u1")
    source, feeds = (
        Source("logs", gateway.deps.store, "u1", Outputs(gateway.deps.blobs, "team-a").event),
        Feeds(gateway.gate),
    )
    reads: list[int] = []
    stored = gateway.deps.store.stored

    def counted(uid: str, first: int = 0, **more: bool) -> Any:
        reads.append(first)
        return stored(uid, first, **more)

    async def follow() -> bytes:
        events = feeds.follow(run, source, run.state.offset + 1, live=False, follow=True)
        return b"".join([chunk async for chunk in events])

    readers = [asyncio.create_task(follow()) for _ in range(200)]
    await asyncio.wait_for(until(lambda: bool(feeds.live) and feeds.live[0].readers == 200), 50)
    monkeypatch.setattr(gateway.deps.store, "stored", counted)
    await say(runner, *(b"%d\n" % n for n in range(20)))
    await end(operator)
    found = await asyncio.gather(*readers)
    assert len(set(found)) == 1
    assert written(list(Parser().feed(found[0]))) == b"".join(b"%d\n" % n for n in range(20))
    assert len(reads) < 200, "once for each that was written, and not for each that reads it, which is 4,000 times"
    assert feeds.live == ()
