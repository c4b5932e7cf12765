"""Doors that are held open or streamed: changes, journal, diff, logs."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.gateway_script import (
    BRANCH,
    Operator,
    agent_at_work,
    beat,
    git,
    ok,
    refused,
    resolved,
    told,
    verified,
    work_done,
)

from moorage.controller.gateway_client import GatewayAway, GatewayClient, session
from moorage.core.journal.chain import Intact
from moorage.core.journal.export import verify_export
from moorage.gateway.health import PROBE_TENANT, PROVED_MS
from moorage.gateway.settings import GatewaySettings
from moorage.store.blobs import FileBlobs
from moorage.store.errors import BlobMissing, StoreUnavailable
from moorage.store.sqlite import SqliteStore
from moorage.testing.gateway import LocalGateway


async def unreachable(*_: object) -> None:
    raise StoreUnavailable("its server is away")


async def lines(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        yield json.loads(line)


@pytest.mark.rule("M5")
async def test_a_change_wakes_the_feed_at_once_and_a_cursor_resumes_it(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    async with gateway.operator.stream("GET", "/v1/changes?after=0") as answer:
        feed = lines(answer)
        first = await asyncio.wait_for(anext(feed), 40)
        assert (first["run_uid"], first["tenant"], first["name"]) == ("u1", "team-a", "fix")
        waiting = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {})))
        second = await asyncio.wait_for(waiting, 40)
        assert second != {}, "a sign of life came first: nobody woke the feed"
        assert second["cursor"] > first["cursor"]
    async with gateway.operator.stream("GET", f"/v1/changes?after={first['cursor']}") as answer:
        assert await asyncio.wait_for(anext(lines(answer)), 40) == second
    refused(await runner.get("/v1/changes"), 403, "Forbidden")


async def test_a_quiet_feed_says_that_it_lives(tmp_path) -> None:
    async with (
        LocalGateway(tmp_path, settings=GatewaySettings(keep_alive_ms=50)).serving() as gateway,
        gateway.operator.stream("GET", "/v1/changes") as answer,
    ):
        assert await asyncio.wait_for(anext(lines(answer)), 40) == {}


async def test_a_feed_ends_for_whom_the_cluster_knows_no_more(tmp_path) -> None:
    settings = GatewaySettings(keep_alive_ms=60_000, token_cache_ms=50)
    async with (
        LocalGateway(tmp_path, settings=settings).serving() as gateway,
        gateway.operator.stream("GET", "/v1/changes") as answer,
    ):
        gateway.tokens.clear()
        async with asyncio.timeout(40):
            assert [line async for line in answer.aiter_lines() if line != "{}"] == []


@pytest.mark.rule("J5")
async def test_the_exported_journal_is_intact_and_one_changed_byte_is_found(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    await work_done(gateway, operator, tmp_path)
    exported = (await gateway.reader("ann", "team-a").get("/v1/runs/u1/journal")).content
    verdict = verify_export([exported])
    assert isinstance(verdict.chain, Intact)
    assert verdict.header is not None
    state = await operator.state()
    assert (verdict.header.offset, verdict.header.hash) == (state["offset"], state["head"])
    broken = verify_export([exported.replace(b"AGENT_STARTED", b"AGENT_STARTEE")]).chain
    assert not isinstance(broken, Intact)
    assert broken.offset == (await operator.types()).index("AGENT_STARTED")
    refused(await gateway.reader("eve", "team-b").get("/v1/runs/u1/journal"), 404, "UnknownRun")


async def test_the_diff_shows_the_candidate_against_its_base(gateway, upstream, tmp_path) -> None:
    operator = Operator(gateway, resolved(upstream))
    reader = gateway.reader("ann", "team-a")
    await operator.admit()
    refused(await reader.get("/v1/runs/u1/diff"), 404, "NotFound")
    _, head = await work_done(gateway, operator, tmp_path)
    answer = await reader.get("/v1/runs/u1/diff")
    assert "+two" in answer.text
    assert "b.txt" in answer.text
    assert answer.headers["x-moorage-head"] == head


def output(text: bytes, key: str) -> dict[str, Any]:
    try:
        payload = {"stream": "stdout", "text": text.decode()}
    except UnicodeDecodeError:
        payload = {"stream": "stdout", "data": base64.b64encode(text).decode()}
    return told("AGENT_OUTPUT", payload, key)


async def test_logs_follow_until_the_end(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    await ok(await runner.post("/v1/self/records", json=output(b"first\n", "1")))
    reader = gateway.reader("ann", "team-a")
    assert (await reader.get("/v1/runs/u1/logs")).content == b"first\n"
    following = asyncio.create_task(reader.get("/v1/runs/u1/logs?follow=true"))
    await asyncio.sleep(0.05)
    await ok(await runner.post("/v1/self/records", json=output(b"\xffsecond\n", "2")))
    assert not following.done()
    await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
    assert (await asyncio.wait_for(following, 40)).content == b"first\n\xffsecond\n"


@pytest.mark.rule("I9", "I10")
async def test_what_the_journal_cites_exists_is_what_it_was_and_is_for_its_readers_alone(
    gateway, upstream, tmp_path
) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner, head = await work_done(gateway, operator, tmp_path)
    await ok(await runner.post("/v1/self/records", json=output(b"said\n", "1")))
    await verified(gateway, operator, head)
    await ok(await operator.deliver(1, head))
    gateway.restart()
    records = await operator.records()
    cited = [ref for record in records for ref in record.blobs]
    kinds = {record.type for record in records if record.blobs}
    assert {"RUN_ADMITTED", "AGENT_OUTPUT"} <= kinds
    for ref in cited:
        content = await gateway.deps.blobs.get("team-a", ref)
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (ref.sha256, ref.size)
        with pytest.raises(BlobMissing):
            await gateway.deps.blobs.get("team-b", ref)
    pushed = next(r for r in records if r.type == "EFFECT_INTENT").payload["commit"]
    assert git(tmp_path / "srv" / "shop.git", "rev-parse", f"refs/heads/{BRANCH}") == pushed == head
    theirs, strangers = gateway.reader("eve", "team-a"), gateway.reader("mallory", "team-b")
    for door in ("journal", "logs", "diff"):
        assert (await theirs.get(f"/v1/runs/u1/{door}")).status_code == 200
        assert (await strangers.get(f"/v1/runs/u1/{door}")).status_code == 404


async def test_erased_output_is_told_and_the_rest_is_shown(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await agent_at_work(gateway, operator)
    for key, text in (("1", b"gone\n"), ("2", b"kept\n")):
        await ok(await runner.post("/v1/self/records", json=output(text, key)))
    erased = next(r for r in await operator.records() if r.type == "AGENT_OUTPUT")
    await gateway.deps.blobs.delete("team-a", erased.payload_ref.sha256)
    assert (await gateway.operator.get("/v1/runs/u1/logs")).content == b"[output was erased]\nkept\n"


async def test_probes_and_metrics_ask_no_token(gateway) -> None:
    anybody = gateway.client(None)
    assert (await anybody.get("/healthz")).text == "ok\n"
    assert (await anybody.get("/readyz")).text == "ok\n"
    text = (await anybody.get("/metrics")).text
    assert 'moorage_gateway_requests_total{code="200",door="healthz",method="GET"} 1.0' in text
    assert "u1" not in text


async def test_readiness_is_a_write_that_the_store_took(gateway, clock, monkeypatch) -> None:
    anybody, store = gateway.client(None), gateway.deps.store
    assert (await anybody.get("/readyz")).status_code == 200
    version = (await store.get_session(PROBE_TENANT, "gateway")).version
    assert (await anybody.get("/readyz")).status_code == 200
    assert (await store.get_session(PROBE_TENANT, "gateway")).version == version, "asking at once again costs nothing"
    clock.advance(PROVED_MS)
    assert (await anybody.get("/readyz")).status_code == 200
    assert (await store.get_session(PROBE_TENANT, "gateway")).version == version + 1
    assert await store.list_open_sessions() == []


@pytest.mark.rule("F4")
async def test_an_operator_whose_feed_is_silent_hears_whether_a_heartbeat_would_be_taken(
    gateway, clock, monkeypatch
) -> None:
    async with session() as http:
        client = GatewayClient(http, gateway.url, lambda: "any")
        await client.ready()
        monkeypatch.setattr(gateway.deps.store, "open_session", unreachable)
        clock.advance(PROVED_MS)
        with pytest.raises(GatewayAway, match="StoreUnavailable"):
            await client.ready()


async def test_where_blobs_lie_on_the_volume_readiness_is_a_write_of_one_too(tmp_path, clock, monkeypatch) -> None:
    blobs = FileBlobs(tmp_path / "blobs", clock.now_ms)
    async with LocalGateway(tmp_path, blobs=blobs, clock=clock).serving() as gateway:
        anybody = gateway.client(None)
        assert (await anybody.get("/readyz")).status_code == 200
        assert await blobs.digests(PROBE_TENANT) == []
        monkeypatch.setattr(blobs, "put", unreachable)
        clock.advance(PROVED_MS)
        refused(await anybody.get("/readyz"), 503, "StoreUnavailable")


@pytest.mark.rule("F4")
async def test_a_bucket_that_is_away_closes_no_door_to_heartbeats(gateway, upstream, clock, monkeypatch) -> None:
    operator = Operator(gateway, resolved(upstream))
    runner = await operator.start()
    monkeypatch.setattr(gateway.deps.blobs, "put", unreachable)
    clock.advance(PROVED_MS)
    assert (await gateway.client(None).get("/readyz")).status_code == 200
    await ok(await runner.post("/v1/self/heartbeat", json=beat()))
    assert (await operator.view())["heartbeat"] is not None


async def test_a_disk_that_takes_no_writes_is_not_ready(tmp_path, clock) -> None:
    """It can still be read, so that liveness and readers see nothing of it."""
    store = SqliteStore(tmp_path / "journal.db")
    async with store, LocalGateway(tmp_path, store=store, clock=clock).serving() as gateway:
        anybody = gateway.client(None)
        assert (await anybody.get("/readyz")).status_code == 200
        store._db.execute("PRAGMA query_only = ON")
        clock.advance(PROVED_MS)
        refused(await anybody.get("/readyz"), 503, "StoreUnavailable")
        assert (await anybody.get("/healthz")).status_code == 200
        store._db.execute("PRAGMA query_only = OFF")
        assert (await anybody.get("/readyz")).status_code == 200


async def test_nobody_hears_of_an_unforeseen_error_but_the_log(tmp_path, upstream, monkeypatch) -> None:
    async with LocalGateway(tmp_path).serving() as gateway:

        async def broken(*_: object) -> None:
            raise RuntimeError("secret detail")

        monkeypatch.setattr(gateway.deps.store, "changes", broken)
        answer = await gateway.operator.get("/v1/runs")
        refused(answer, 500, "Internal")
        assert "secret detail" not in answer.text
