"""The stream of a namespace's runs: each where it stands, at once and whenever that changes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, refused, resolved

from moorage.api.sse import HEARTBEAT, Parser
from moorage.api.wire import Change
from moorage.core.journal.record import Assurance, Draft, RecordType, Source
from moorage.gateway.settings import GatewaySettings
from moorage.testing.gateway import LocalGateway

RUNS = "/v1/namespaces/team-a/runs/stream"
MINUTE_MS = 60_000


async def told(answer: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    parser = Parser()
    async for chunk in answer.aiter_raw():
        for event in parser.feed(chunk):
            yield {"kind": event.kind, "id": event.id, **json.loads(event.data)}


async def snapshot(client: httpx.AsyncClient, path: str = f"{RUNS}?follow=false") -> list[dict[str, Any]]:
    async with client.stream("GET", path, timeout=None) as answer:
        assert answer.status_code == 200, await answer.aread()
        async with asyncio.timeout(50):
            return [event async for event in told(answer)]


@pytest.mark.rule("M4", "I10")
async def test_live_runs_of_the_namespace_and_no_others_are_told_and_then_that_all_were(gateway, upstream) -> None:
    await agent_at_work(gateway, Operator(gateway, resolved(upstream)))
    over = Operator(gateway, resolved(upstream, uid="u2", name="over", delivery=None))
    await over.start(pod="p2")
    await ok(await over.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
    gateway.secrets.give("team-b", "git", username="ada", password=PASSWORD)
    await Operator(gateway, resolved(upstream, uid="u3", tenant="team-b")).admit()
    run, ready = await snapshot(gateway.reader("ann", "team-a"))
    assert (run["kind"], run["uid"], run["name"], run["phase"], run["doing"]) == (
        "run",
        "u1",
        "fix",
        "Running",
        "works",
    )
    assert (run["attempt"], run["iteration"], run["tokens"]) == (1, 0, 0)
    assert (ready["kind"], ready["id"]) == ("ready", (await gateway.deps.store.changes())[-1].cursor)
    refused(await gateway.reader("eve", "team-b").get(RUNS), 403, "Forbidden")
    refused(await gateway.sandbox("p1", "team-a").get(RUNS), 403, "Forbidden")


async def test_who_connects_costs_no_look_at_all_changes_of_all_namespaces(gateway, upstream, monkeypatch) -> None:
    await agent_at_work(gateway, Operator(gateway, resolved(upstream)))
    newest = (await gateway.deps.store.changes())[-1].cursor
    monkeypatch.setattr(gateway.deps.store, "changes", None)
    _, ready = await snapshot(gateway.reader("ann", "team-a"))
    assert (ready["kind"], ready["id"]) == ("ready", newest)


async def cancelling(client: httpx.AsyncClient, **headers: str) -> AsyncGenerator[dict[str, Any], None]:
    """Whatever is told until the run is Cancelling."""
    async with client.stream("GET", RUNS, headers=headers, timeout=None) as answer, aclosing(told(answer)) as stream:
        async for each in stream:
            yield each
            if each.get("phase") == "Cancelling":
                return


@pytest.mark.rule("M4", "M5")
async def test_a_change_is_told_at_once_and_a_cursor_resumes(gateway, upstream) -> None:
    operator = Operator(gateway, resolved(upstream))
    await agent_at_work(gateway, operator)
    async with asyncio.timeout(50), aclosing(cancelling(gateway.operator)) as stream:
        before = [await anext(stream), await anext(stream)]
        assert [each["kind"] for each in before] == ["run", "ready"]
        await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
        after = [each async for each in stream]
    assert after[-1]["doing"] == "cancel requested"
    ids = [each["id"] for each in (before[1], *after)]
    assert ids == sorted(set(ids))
    cursor = str(before[1]["id"])
    async with asyncio.timeout(50):
        again = [each async for each in cancelling(gateway.operator, **{"last-event-id": cursor})]
    assert {**again[-1], "now": 0} == {**after[-1], "now": 0}
    assert [each["kind"] for each in again] == ["run"] * len(again)


async def spend(gateway: LocalGateway, tokens: int, at: int, key: str) -> None:
    """A model's answer, as the model door records it."""
    draft = Draft(
        record_id=key,
        type=RecordType.MODEL_RESPONSE,
        recorded_at=at,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload={"status": 200, "usage": {"input_tokens": tokens}, "complete": True},
        request_id=key,
        turn=1,
    )
    await gateway.gate.ledger.append(await gateway.gate.ledger.open("u1"), 1, [draft])


async def test_the_rate_counts_the_last_minutes_and_survives_a_restart(gateway, upstream, clock) -> None:
    operator = Operator(gateway, resolved(upstream))
    await agent_at_work(gateway, operator)
    now = clock.now_ms()
    clock.advance(10 * MINUTE_MS)
    await spend(gateway, 100_000, now + MINUTE_MS, "old")
    await spend(gateway, 500, clock.now_ms() - MINUTE_MS, "new")
    run, _ = await snapshot(gateway.operator)
    assert (run["tokens"], run["tokens_per_minute"]) == (100_500, 100)
    await spend(gateway, 1_000, clock.now_ms(), "newer")
    assert (await snapshot(gateway.operator))[0]["tokens_per_minute"] == 300
    gateway.restart()
    assert (await snapshot(gateway.operator))[0]["tokens_per_minute"] == 300
    clock.advance(5 * MINUTE_MS)
    assert (await snapshot(gateway.operator))[0]["tokens_per_minute"] == 0


async def test_rates_fall_where_nothing_happens(tmp_path, upstream, clock) -> None:
    gateway = LocalGateway(tmp_path, settings=GatewaySettings(keep_alive_ms=20), clock=clock)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with gateway.serving():
        await agent_at_work(gateway, Operator(gateway, resolved(upstream)))
        await spend(gateway, 600, clock.now_ms(), "one")
        async with gateway.operator.stream("GET", RUNS, timeout=None) as answer, aclosing(told(answer)) as stream:
            assert (await anext(stream))["tokens_per_minute"] > 0
            clock.advance(5 * MINUTE_MS)
            while (await anext(stream)).get("tokens_per_minute") != 0:
                pass


async def test_a_run_whose_journal_is_broken_hides_no_other(tmp_path, upstream) -> None:
    gateway = LocalGateway(tmp_path)
    gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
    async with gateway.serving():
        await agent_at_work(gateway, Operator(gateway, resolved(upstream)))
        broken = Operator(gateway, resolved(upstream, uid="u2", name="broken", delivery=None))
        await broken.start(pod="p2")
        kept = gateway.deps.store._runs["u2"].events  # type: ignore[attr-defined]
        kept[1] = kept[1]._replace(hash="0" * 64)
        gateway.restart()
        told_of = {each["name"]: each for each in await snapshot(gateway.operator) if each["kind"] == "run"}
        assert told_of["fix"]["phase"] == "Running"
        assert (told_of["broken"]["phase"], told_of["broken"]["doing"]) == ("Unreadable", "JournalCorrupted")


async def test_a_reader_hears_signs_of_life_while_only_others_runs_change(tmp_path, clock, monkeypatch) -> None:
    """And it is with them that its right is looked at again."""
    settings = GatewaySettings(overview_pause_ms=1, keep_alive_ms=20_000)
    gateway = LocalGateway(tmp_path, settings=settings, clock=clock)

    async def busy(after: int = 0, limit: int = 1000) -> list[Change]:
        clock.advance(8_000)
        return [Change(cursor=after + 1, tenant="team-b", name="n", run_uid="u9")][:limit]

    async with gateway.serving():
        monkeypatch.setattr(gateway.deps.store, "changes", busy)
        reader = gateway.reader("ann", "team-a")
        async with reader.stream("GET", f"{RUNS}?after=0", timeout=None) as answer, asyncio.timeout(50):
            stream = answer.aiter_raw()
            assert await anext(stream) == HEARTBEAT
            del gateway.tokens["token-of-ann"]
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in stream:
                    pass
