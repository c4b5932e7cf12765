"""Two gateways over one PostgreSQL: each answers as if it were the only one (M5, J3, F3, F4)."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from structlog.testing import capture_logs
from tests.contract.test_gateway_streams import events
from tests.gateway_script import PASSWORD, Operator, agent_at_work, beat, commit, git, ok, refused, resolved, told

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedAgent, ResolvedChildren, ResolvedModel
from moorage.app.peers import open_peers
from moorage.core.journal.chain import Intact
from moorage.core.journal.heads import SigningKey
from moorage.core.run.observed import Heartbeat
from moorage.gateway.gate import Gate
from moorage.gateway.housekeeping import Housekeeping
from moorage.gateway.settings import GatewaySettings
from moorage.store.blobs import MemoryBlobs
from moorage.store.errors import SigningKeyMismatch
from moorage.store.postgres import PostgresStore
from moorage.store.postgres_peers import PostgresPeers
from moorage.store.reading import verify_stored
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer
from moorage.testing.models import Reply, Script, StandIn
from moorage.testing.models.script import Usage
from moorage.workspace.mirror import MirrorKey

pytestmark = pytest.mark.timeout(120)  # servers, and beats of two seconds

DAY_MS = 86_400_000
LONG_MS = 120_000  # whoever hears nothing in a test is told only after this


class Pair:
    """Two gateways that share database and blobs, with mirrors of their own."""

    def __init__(self, gateways: tuple[LocalGateway, LocalGateway]) -> None:
        self.gateways = gateways
        self.one, self.other = gateways

    def sandboxes(self, pod: str) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        return self.one.sandbox(pod, "team-a"), self.other.sandbox(pod, "team-a")


@pytest.fixture
async def pair(postgres: str, tmp_path: Path, clock: StepClock) -> AsyncIterator[Pair]:
    blobs, key = MemoryBlobs(clock.now_ms), SigningKey.new()
    settings = GatewaySettings(orders_wait_ms=LONG_MS, keep_alive_ms=LONG_MS, token_cache_ms=LONG_MS)
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for name in ("one", "other"):
            store = await stack.enter_async_context(await PostgresStore.open(postgres))
            peers = await stack.enter_async_context(await PostgresPeers.open(postgres, clock))
            gateway = LocalGateway(
                tmp_path / name, store=store, blobs=blobs, clock=clock, settings=settings, head_key=key, peers=peers
            )
            gateway.secrets.give("team-a", "git", username="ada", password=PASSWORD)
            made.append(await stack.enter_async_context(gateway.serving()))
        yield Pair((made[0], made[1]))


@pytest.mark.rule("M5", "J3")
async def test_what_one_was_told_the_other_one_answers_with(pair: Pair, upstream: GitServer) -> None:
    """Nothing that was acknowledged at one is news to the other: not even where it held the run in memory before."""
    operator, elsewhere = Operator(pair.one, resolved(upstream)), Operator(pair.other, resolved(upstream))
    await operator.start()
    replays = pair.other.deps.metrics.replays
    assert (await elsewhere.state())["offset"] == (await operator.state())["offset"]
    before = replays._value.get()
    for epoch in range(2, 6):
        asked, answering = (operator, elsewhere) if epoch % 2 else (elsewhere, operator)
        await ok(await asked.fence(epoch))
        view = await answering.view()
        assert (view["state"]["epoch"], view["signature"]) == (epoch, (await asked.view())["signature"])
    assert replays._value.get() == before  # only what was new was read


@pytest.mark.rule("F3")
async def test_an_owner_that_was_fenced_at_one_is_refused_at_the_other(pair: Pair, upstream: GitServer) -> None:
    operator = Operator(pair.one, resolved(upstream))
    await operator.start()
    here, there = pair.sandboxes("p1")
    await ok(await here.get("/v1/self"))
    await ok(await there.get("/v1/self"))
    await ok(await operator.fence(2))
    refused(await there.post("/v1/self/records", json=told("AGENT_STARTED", {})), 409, "Fenced")
    assert (await ok(await there.post("/v1/self/heartbeat", json=beat())))["stop"] == "fenced"


@pytest.mark.rule("M5")
async def test_who_waits_at_one_is_woken_by_what_the_other_writes(pair: Pair, upstream: GitServer) -> None:
    operator = Operator(pair.one, resolved(upstream))
    await operator.start()
    _, there = pair.sandboxes("p1")
    async with pair.other.operator.stream("GET", "/v1/changes") as feed:
        lines = feed.aiter_lines()
        await anext(lines)
        orders = asyncio.create_task(there.get("/v1/self/orders", params={"after": 0}, timeout=LONG_MS))
        await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
        (last,) = await pair.one.deps.store.changes()
        assert (await ok(await orders))["stop"] == "cancel"
        while json.loads(await anext(lines)).get("cursor", 0) < last.cursor:
            pass


@pytest.mark.rule("M4", "M5")
async def test_what_is_written_at_one_is_streamed_by_the_other_at_once(pair: Pair, upstream: GitServer) -> None:
    """No sign of life comes within the test: what wakes the stream is the other gateway's word alone."""
    operator = Operator(pair.one, resolved(upstream))
    await operator.start()
    here, _ = pair.sandboxes("p1")
    async with pair.other.operator.stream("GET", "/v1/runs/u1/logs/stream", timeout=None) as answer:
        stream = events(answer)
        for number in range(5):
            body = told("AGENT_OUTPUT", {"stream": "stdout", "text": f"{number}\n"}, str(number))
            await ok(await here.post("/v1/self/records", json=body))
            assert json.loads((await anext(stream)).data)["text"] == f"{number}\n"
        await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
        assert [event.kind async for event in stream] == ["end"]


@pytest.mark.rule("M5")
async def test_a_lost_wake_up_costs_a_keep_alive_period_at_most(
    pair: Pair, upstream: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears anything here; whoever waits looks for himself."""
    monkeypatch.setattr(pair.other.deps.peers, "_heard", [])
    object.__setattr__(pair.other.deps.settings, "keep_alive_ms", 50)
    operator = Operator(pair.one, resolved(upstream))
    await operator.start()
    _, there = pair.sandboxes("p1")
    orders = asyncio.create_task(there.get("/v1/self/orders", params={"after": 0}, timeout=LONG_MS))
    await ok(await operator.report(1, "CANCEL_REQUESTED", {"reason": "user"}))
    assert (await ok(await orders))["stop"] == "cancel"


@pytest.mark.rule("J3", "I1", "S4")
async def test_writers_at_both_lose_nothing_and_are_all_acknowledged(pair: Pair, upstream: GitServer) -> None:
    """Forty reports to one run, at either gateway and all at once: each is acknowledged and there, in one chain."""
    operator = Operator(pair.one, resolved(upstream))
    await operator.start()
    clients, chance = pair.sandboxes("p1"), random.Random(4)
    payload: dict[str, Any] = {"tool": "sh"}

    async def report(number: int) -> Any:
        body = told("TOOL_REQUEST", payload, str(number))
        return await ok(await chance.choice(clients).post("/v1/self/records", json=body))

    await asyncio.gather(*(report(number) for number in range(40)))
    ids = {record.record_id for record in await operator.records()}
    assert {f"r1:TOOL_REQUEST:{number}" for number in range(40)} <= ids
    assert isinstance(await verify_stored(pair.one.deps.store, "u1"), Intact)
    states: list[Any] = [None, {}]
    while states[0] != states[1]:  # a record of their own may come between the two looks
        states = [(await Operator(gateway, operator.spec).view())["state"] for gateway in pair.gateways]


@pytest.mark.rule("F4")
async def test_one_that_is_frozen_while_it_answers_says_that_it_could_hear_nobody(
    pair: Pair, upstream: GitServer, clock: StepClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it read of a heartbeat before may be old by then: its owner gets a full period all the same."""
    operator = Operator(pair.one, resolved(upstream))
    await operator.start()
    read = pair.one.deps.peers.heartbeat

    async def frozen(run_uid: str) -> Heartbeat | None:
        found = await read(run_uid)
        clock.advance(60_000)
        return found

    monkeypatch.setattr(pair.one.deps.peers, "heartbeat", frozen)
    assert (await operator.view())["up_since"] == clock.now_ms()


@pytest.mark.rule("F4")
async def test_a_heartbeat_at_one_is_known_at_the_other(pair: Pair, upstream: GitServer, clock: StepClock) -> None:
    operator, elsewhere = Operator(pair.one, resolved(upstream)), Operator(pair.other, resolved(upstream))
    await operator.start()
    here, there = pair.sandboxes("p1")

    async def known(at: Operator, seq: int) -> Any:
        while True:
            found = (await at.view())["heartbeat"]
            if found is not None and found["progress_seq"] == seq:
                return found
            await asyncio.sleep(0.05)

    assert (await elsewhere.view())["heartbeat"] is None
    await ok(await here.post("/v1/self/heartbeat", json=beat(seq=3)))
    first = await known(elsewhere, 3)
    clock.advance(5_000)
    await ok(await there.post("/v1/self/heartbeat", json=beat(seq=4)))
    assert await known(operator, 4) == await known(elsewhere, 4)
    assert (await known(operator, 4))["heard_at"] == first["heard_at"] + 5_000
    assert {(await at.view())["heartbeat"]["heard_at"] for at in (operator, elsewhere) for _ in range(5)} == {
        clock.now_ms()
    }


@pytest.mark.rule("W2", "O6")
async def test_two_gateways_that_saw_a_branch_at_two_places_give_one_base(
    pair: Pair, upstream: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has fetched; before it says so the branch moves, and the other one fetches and is first to say so."""
    operator = Operator(pair.one, resolved(upstream))
    await operator.admit()
    await ok(await operator.fence(1))
    await operator.register("p1", 1)
    here, there = pair.sandboxes("p1")
    fetched, go = asyncio.Event(), asyncio.Event()
    ensure = pair.other.deps.mirrors.ensure

    async def slow(*args: Any) -> Any:
        found = await ensure(*args)
        fetched.set()
        await go.wait()
        return found

    monkeypatch.setattr(pair.other.deps.mirrors, "ensure", slow)
    slowly = asyncio.create_task(there.get("/v1/self"))
    await fetched.wait()
    moved = await asyncio.to_thread(commit, tmp_path / "seed", "moved.txt", "on\n")
    await asyncio.to_thread(git, tmp_path / "seed", "push", "-q", "origin", "main")
    first = (await ok(await here.get("/v1/self")))["git"]["base"]
    go.set()
    assert (await ok(await slowly))["git"]["base"] == first
    assert (await operator.types()).count("BASE_FIXED") == 1
    assert first in {moved, await asyncio.to_thread(git, tmp_path / "seed", "rev-parse", "HEAD~1")}
    for gateway in pair.gateways:
        assert await gateway.deps.mirrors.has_commit(MirrorKey("team-a", "w1"), first)


@pytest.mark.rule("J6")
async def test_a_gateway_with_another_key_is_refused_by_name(postgres: str, clock: StepClock) -> None:
    first, second = SigningKey.new(), SigningKey.new()
    async with open_peers(postgres, clock, first):
        pass
    async with open_peers(postgres, clock, first):
        pass
    with pytest.raises(SigningKeyMismatch, match=f"{first.verifying.id}.*{second.verifying.id}"):
        async with open_peers(postgres, clock, second):
            pass


@pytest.mark.rule("J7", "J8")
async def test_two_that_keep_house_at_once_get_in_each_others_way_nowhere(
    pair: Pair, upstream: GitServer, clock: StepClock
) -> None:
    """One prunes what the other would verify, and collects what the other would count: nothing is missing to either."""
    for number in range(5):
        operator = Operator(pair.one, resolved(upstream, uid=f"u{number}", delivery=None))
        await operator.start(pod=f"p{number}")
        await ok(await operator.report(1, "RUN_FAILED", {"reason": "AgentFailed", "message": ""}))
        await ok(await pair.other.operator.post(f"{operator.door}/release"))
    orphan = await pair.one.deps.blobs.put("team-a", b"nobody needs this")
    clock.advance(2 * DAY_MS)
    houses = [
        Housekeeping(Gate(replace(g.deps, settings=replace(g.deps.settings, journal_retention_ms=DAY_MS))))
        for g in pair.gateways
    ]
    with capture_logs() as logs:
        await asyncio.gather(*(house.once() for house in houses for _ in range(2)))
    assert [each for each in logs if each["log_level"] in {"warning", "error"}] == []
    assert sorted(each["run_uid"] for each in logs if each["event"] == "journal_pruned") == [f"u{n}" for n in range(5)]
    assert await pair.one.deps.store.list_sealed() == []
    assert orphan.sha256 not in await pair.one.deps.blobs.digests("team-a")
    assert (await Operator(pair.other, resolved(upstream, uid="u0")).state())["phase"] == "Failed"


@pytest.mark.rule("I1", "J5")
async def test_a_journal_that_was_repaired_at_one_goes_on_at_the_other(
    pair: Pair, upstream: GitServer, postgres: str
) -> None:
    """The other one still holds in memory what was dropped."""
    operator, elsewhere = Operator(pair.one, resolved(upstream)), Operator(pair.other, resolved(upstream))
    await operator.start()
    offset = (await elsewhere.state())["offset"]
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as db:
        await db.execute("SET session_replication_role = replica")
        await db.execute("ALTER TABLE execution_events DISABLE TRIGGER ALL")
        await db.execute("UPDATE execution_events SET body = body || ' ' WHERE seq = %s", (offset,))
        await db.execute("ALTER TABLE execution_events ENABLE ALWAYS TRIGGER execution_events_append_only")
    person = pair.one.reader("local", None)
    await ok(await person.post(f"{operator.door}/repair", json={"reason": "a test", "user": "ann"}))
    assert (await elsewhere.state())["generation"] == 2
    assert (await elsewhere.state()) == (await operator.state())
    await ok(await elsewhere.fence(2))
    assert (await operator.state())["epoch"] == 2


@pytest.mark.rule("B2", "B3")
async def test_both_keep_one_budget(pair: Pair, upstream: GitServer) -> None:
    """Requests at either wait for what those at the other have reserved, and are woken when it comes back."""
    usage, body = (
        Usage(input_tokens=10, output_tokens=5),
        {"max_tokens": 300, "messages": [{"role": "user", "content": "x"}]},
    )
    async with StandIn(Script(replies=(Reply(text="y", usage=usage),))).serving() as provider:
        model = ResolvedModel(provider="p", protocol="anthropic-messages", base_url=provider.url, name="m")
        spec = resolved(upstream, limits=ResolvedLimits(tokens_hard=6 * 15))
        agent = spec.agent.model_copy(update={"model": model})
        operator = Operator(pair.one, spec.model_copy(update={"agent": agent}))
        await agent_at_work(pair.one, operator)
        doors = pair.sandboxes("p1")
        asking = [
            doors[n % 2].post("/model/v1/messages", json=body | {"model": "m", "temperature": n / 100}, timeout=LONG_MS)
            for n in range(16)
        ]
        answers = [answer.status_code for answer in await asyncio.gather(*asking)]
    assert (answers.count(200), answers.count(400)) == (6, 10)
    assert len(provider.log) == 6
    used = (await Operator(pair.other, operator.spec).state())["usage"]
    assert (used["input_tokens"], used["output_tokens"], used["model_requests"]) == (60, 30, 6)


@pytest.mark.rule("B2", "O2")
async def test_children_that_are_asked_for_at_both_are_each_one_and_share_one_budget(
    pair: Pair, upstream: GitServer
) -> None:
    """Each call is made at both at once, as by a runner that got no answer."""
    agent = ResolvedAgent(driver="command", command=("true",), children=ResolvedChildren(max=20, concurrent=20))
    spec = resolved(upstream, agent=agent, limits=ResolvedLimits(tokens_hard=1_000))
    operator, doors = Operator(pair.one, spec), pair.sandboxes("p1")
    await agent_at_work(pair.one, operator)
    asked = [{"epoch": 1, "key": f"1.{n}", "goal": f"part {n}", "tokens": 300} for n in range(5)]

    async def spawn(door: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
        answer = await door.post("/v1/self/children", json=body)
        # both wanted the journal too often at once: a runner asks again, too
        return await spawn(door, body) if answer.status_code == 503 else answer

    answers = await asyncio.gather(*(spawn(door, body) for body in asked for door in doors))
    for here, there in zip(answers[::2], answers[1::2], strict=True):
        assert (here.status_code, here.json().get("name")) == (there.status_code, there.json().get("name"))
    granted = {answer.json()["name"] for answer in answers if answer.status_code == 200}
    refusals = {answer.json()["reason"] for answer in answers if answer.status_code != 200}
    assert (len(granted), refusals) == (3, {"ParentBudget"})
    for state in (await operator.state(), await Operator(pair.other, spec).state()):
        assert {child["name"] for child in state["children"]} == granted
