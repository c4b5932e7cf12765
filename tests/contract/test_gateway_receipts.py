"""What a target has answered is written down, also where the store is away at that moment or another gateway is there.

Only this process knows it: an effect whose receipt is dropped is `unknown` although its answer was here.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway_script import PASSWORD, Operator, agent_at_work, ok, refused, resolved, verified, work_done

from moorage.api.wire import ResolvedEgress, ResolvedSandbox
from moorage.app.peers import Reading
from moorage.core.journal.record import BlobRef, Draft, RecordType
from moorage.gateway.effects import EffectLog
from moorage.gateway.gate import Gate
from moorage.gateway.settings import GatewaySettings
from moorage.store.blobs import MemoryBlobs
from moorage.store.errors import StoreBusy, StoreUnavailable
from moorage.store.memory import MemoryStore
from moorage.testing.authority import Authority, Cut
from moorage.testing.clock import StepClock
from moorage.testing.gateway import LocalGateway
from moorage.testing.gitserver import GitServer

pytestmark = pytest.mark.timeout(120)

HOSTS = dict.fromkeys(("keyed.example.com", "opaque.example.com"), "127.0.0.1")
POST = "/egress/http/{}.example.com/v1/pay"


class Away:
    """A store that is away when it is asked to take a receipt, as often as `times` says."""

    def __init__(self, whole: MemoryStore) -> None:
        self._whole = whole
        self.times, self.error, self.taken = 0, StoreUnavailable, False
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    async def append(self, run: str, epoch: int | None, drafts: list[Draft], *args: Any, **more: Any) -> Any:
        if not self.times or not any(draft.type == RecordType.EFFECT_RECEIPT for draft in drafts):
            return await self._whole.append(run, epoch, drafts, *args, **more)
        self.times -= 1
        self.asked.set()
        if self.taken:
            await self._whole.append(run, epoch, drafts, *args, **more)
        raise self.error("a failover")


class Bucket(MemoryBlobs):
    """Blobs that can't be put while it is `away`, or as long as it is `silent`."""

    away = silent = False

    async def put(self, *args: Any, **more: Any) -> BlobRef:
        if self.silent:
            await asyncio.Event().wait()
        if self.away:
            raise StoreUnavailable("the bucket is away")
        return await super().put(*args, **more)


class Place:
    """A run at work at one gateway, its target, and what it is kept in."""

    def __init__(self, root: Path, upstream: GitServer, authority: Authority, clock: StepClock) -> None:
        self._root, self.authority = root, authority
        self.store, self.blobs = Away(MemoryStore()), Bucket(clock.now_ms)
        hosts = tuple(
            ResolvedEgress(host=f"{name}.example.com", effects=name, scheme="http", port=authority.port)
            for name in ("keyed", "opaque")
        )
        self.spec = resolved(upstream, sandbox=ResolvedSandbox(egress=hosts))

    def gateway(self, store: Any = None, hosts: dict[str, str] = HOSTS, **limits: int) -> LocalGateway:
        """One of several over the same store."""
        settings = GatewaySettings(egress_private=("127.0.0.0/8",), assignment_wait_ms=60_000, **limits)
        made = LocalGateway(
            self._root, store=store or self.store, blobs=self.blobs, settings=settings, hosts=hosts, peers=Reading()
        )
        made.secrets.give("team-a", "git", username="ada", password=PASSWORD)
        return made


@pytest.fixture
async def place(tmp_path: Path, upstream: GitServer, clock: StepClock) -> AsyncIterator[Place]:
    async with Authority().listening() as authority:
        yield Place(tmp_path, upstream, authority, clock)


async def receipts(operator: Operator) -> list[tuple[str, str]]:
    """How effects ended, by the records that say so."""
    kinds = {RecordType.EFFECT_RECEIPT.value, RecordType.EFFECT_RECONCILED.value}
    return [(r.type, r.payload["outcome"]) for r in await operator.records() if r.type in kinds]


@pytest.mark.rule("E1", "I8")
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("error", [StoreUnavailable, StoreBusy])
@pytest.mark.parametrize(("method", "host"), [("POST", "keyed"), ("POST", "opaque"), ("GET", "opaque")])
async def test_an_answer_outlasts_a_store_that_is_away_for_a_moment(
    place: Place, method: str, host: str, error: type[StoreUnavailable], taken: bool
) -> None:
    """`taken`: the receipt is durable, and the store's word of that gets lost."""
    async with place.gateway() as gateway:
        operator = Operator(gateway, place.spec)
        runner = await agent_at_work(gateway, operator)
        place.store.times, place.store.error, place.store.taken = 3, error, taken
        answer = await runner.request(method, POST.format(host))
        assert answer.is_success
        assert await receipts(operator) == [("EFFECT_RECEIPT", "confirmed")]
        assert (len(place.authority.log), place.store.times) == (1, 0)


@pytest.mark.rule("E1", "E5")
async def test_a_pushs_answer_outlasts_a_store_that_is_away_for_a_moment(place: Place, tmp_path: Path) -> None:
    async with place.gateway().serving() as gateway:
        operator = Operator(gateway, place.spec)
        _, head = await work_done(gateway, operator, tmp_path)
        await verified(gateway, operator, head)
        place.store.times = 3
        await ok(await operator.deliver(1, head))
        assert await receipts(operator) == [("EFFECT_RECEIPT", "confirmed")]
        assert place.store.times == 0


async def test_all_that_a_push_waits_for_has_one_patience(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlast, ends = EffectLog.outlast, list[float | None]()

    async def watched(log: EffectLog, run: Any, write: Any, until: float | None = None) -> Any:
        ends.append(until)
        return await outlast(log, run, write, until)

    monkeypatch.setattr(EffectLog, "outlast", watched)
    async with place.gateway().serving() as gateway:
        operator = Operator(gateway, place.spec)
        _, head = await work_done(gateway, operator, tmp_path)
        await verified(gateway, operator, head)
        await ok(await operator.deliver(1, head))
    assert len(ends) == 2
    assert len({*ends}) == 1
    assert None not in ends


async def test_a_receipt_is_given_up_once_its_time_is_over(place: Place) -> None:
    async with place.gateway(receipt_patience_ms=10**9) as gateway:
        await agent_at_work(gateway, Operator(gateway, place.spec))
        gate, place.store.times = Gate(gateway.deps), 10**9
        run = await gate.ledger.open("u1")
        with pytest.raises(StoreUnavailable):
            await EffectLog(gate).receipt(run, "push-1", "confirmed", "", until=0)


@pytest.mark.rule("E1")
async def test_who_waits_to_write_a_receipt_can_be_cancelled(place: Place) -> None:
    async with place.gateway() as gateway:
        operator = Operator(gateway, place.spec)
        await agent_at_work(gateway, operator)
        gate = Gate(gateway.deps)
        place.store.times = 10**9
        run = await gate.ledger.open("u1")
        waiting = asyncio.create_task(EffectLog(gate).receipt(run, "push-1", "confirmed", ""))
        await place.store.asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await receipts(operator) == []


@pytest.mark.rule("E1", "E3")
@pytest.mark.parametrize("how", ["away", "silent"])
async def test_an_answer_that_cant_be_kept_has_a_receipt_all_the_same(place: Place, how: str) -> None:
    """A bucket that is away takes the answer from who asks again, and leaves nothing unknown: no receipt waits for it.

    A gateway that is told to end has seconds for both.
    """
    async with place.gateway(receipt_patience_ms=10**9, answer_patience_ms=20) as gateway:
        operator = Operator(gateway, place.spec)
        runner = await agent_at_work(gateway, operator)
        place.authority.tell = lambda _: setattr(place.blobs, how, True)
        key = {"idempotency-key": "mine"}
        assert (await runner.post(POST.format("keyed"), headers=key)).json() == {"number": 1}
        assert await receipts(operator) == [("EFFECT_RECEIPT", "confirmed")]
        setattr(place.blobs, how, False)
        refused(await runner.post(POST.format("keyed"), headers=key), 409, "EffectDone")
        assert len(place.authority.log) == 1


@contextlib.asynccontextmanager
async def doubtful(place: Place) -> AsyncIterator[tuple[LocalGateway, Operator, httpx.AsyncClient]]:
    """A keyed request of which nobody knows whether it happened."""
    async with place.gateway() as gateway:
        operator = Operator(gateway, place.spec)
        runner = await agent_at_work(gateway, operator)
        place.authority.cuts = [Cut.BEFORE] * 3
        refused(await runner.post(POST.format("keyed")), 409, "EffectUnknown")
        yield gateway, operator, runner


@pytest.mark.rule("E3", "E4", "I8")
async def test_a_key_that_two_gateways_send_at_once_has_one_answer(place: Place) -> None:
    """One of them hears nothing but that its target is busy; both who ask are told what the other one heard."""
    async with (
        Authority().listening("127.0.0.2", place.authority.port) as busy,
        doubtful(place) as (_, operator, runner),
        place.gateway(hosts=HOSTS | {"keyed.example.com": "127.0.0.2"}) as other,
    ):
        busy.waits.clear()
        busy.status = 503
        late = asyncio.create_task(other.sandbox("p1", "team-a").post(POST.format("keyed")))
        await busy.came.wait()
        first = await runner.post(POST.format("keyed"))
        busy.waits.set()
        second = await late
        assert (first.status_code, first.json()) == (second.status_code, second.json()) == (201, {"number": 1})
        assert await receipts(operator) == [("EFFECT_RECEIPT", "unknown"), ("EFFECT_RECONCILED", "confirmed")]


class Slow:
    """A store to which something happens just before it is told that an effect is given up."""

    def __init__(self, whole: Away, before: Callable[[], Awaitable[Any]]) -> None:
        self._whole, self._before = whole, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    async def append(self, run: str, epoch: int | None, drafts: list[Draft], *args: Any, **more: Any) -> Any:
        if any(draft.type == RecordType.EFFECT_RECONCILED for draft in drafts):
            await self._before()
        return await self._whole.append(run, epoch, drafts, *args, **more)


@pytest.mark.rule("E3", "I8")
async def test_what_is_given_up_as_its_receipt_is_written_has_the_answer_of_that(place: Place) -> None:
    name = {"x-moorage-call": "ab" * 16}  # the relay's, which asks again at another gateway
    async with place.gateway() as gateway:
        operator = Operator(gateway, place.spec)
        runner = await agent_at_work(gateway, operator)
        place.authority.waits.clear()
        asked = asyncio.create_task(runner.post(POST.format("opaque"), headers=name))
        await place.authority.came.wait()

        async def answered() -> None:
            place.authority.waits.set()
            await asked

        async with place.gateway(Slow(place.store, answered)) as other:
            again = await other.sandbox("p1", "team-a").post(POST.format("opaque"), headers=name)
        assert (again.status_code, again.json()) == ((await asked).status_code, (await asked).json())
        assert await receipts(operator) == [("EFFECT_RECEIPT", "confirmed")]
