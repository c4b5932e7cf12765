"""A remote that is slow to answer takes neither the queue's workers nor the room of other remotes (E5)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import cast

import pytest
import structlog
from tests.property.run_world import START, World, a_spec

from moorage.api.wire import DeliverRequest, ResolvedWorkspace
from moorage.controller.deliveries import MOST, MOST_PER_REMOTE, Deliveries
from moorage.controller.gateway_client import GatewayAway, GatewayClient, GatewayRefused
from moorage.controller.queue import WorkQueue
from moorage.core.run.view import RunView
from moorage.sandbox.port import RunKey

REQUEST = DeliverRequest(epoch=1, commit="a" * 40)
VIEW = RunView(spec=a_spec(), state=World().state, up_since=START)
AT_ONCE, NEVER = 0.001, 600.0


def key(uid: str) -> RunKey:
    return RunKey(uid, "team-a", uid)


def space(host: str, name: str = "shop") -> ResolvedWorkspace:
    return ResolvedWorkspace(key=name, kind="remote_git", url=f"https://{host}/{name}.git")


class Gateway:
    """Answers a run's delivery once it is told to, with a view or with what is to be raised."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, asyncio.Future[RunView]] = {}

    async def deliver(self, uid: str, request: DeliverRequest) -> RunView:
        assert request == REQUEST
        self.asked.append(uid)
        return await self.answer(uid)

    def answer(self, uid: str) -> asyncio.Future[RunView]:
        return self.answers.setdefault(uid, asyncio.get_running_loop().create_future())


class Place:
    def __init__(self, patience_s: float) -> None:
        self.gateway, self.ended = Gateway(), asyncio.Queue[RunKey]()
        self.deliveries = Deliveries(
            cast("GatewayClient", self.gateway),
            ended=self.ended.put_nowait,
            log=structlog.get_logger(),
            patience_s=patience_s,
        )

    async def ask(self, uid: str, host: str = "slow.example.com", name: str = "shop") -> RunView | None:
        return await self.deliveries.deliver(key(uid), space(host, name), REQUEST)

    async def ask_for_ever(self, uid: str) -> None:
        while True:
            await asyncio.sleep(0)
            await self.ask(uid)


@contextlib.asynccontextmanager
async def place(patience_s: float = AT_ONCE) -> AsyncIterator[Place]:
    made = Place(patience_s)
    yield made
    await made.deliveries.close()


async def test_an_answer_in_time_is_the_passes_own_and_wakes_nobody() -> None:
    async with place(NEVER) as there:
        there.gateway.answer("u").set_result(VIEW)
        assert await there.ask("u") is VIEW
        assert there.ended.empty()


@pytest.mark.parametrize("error", [GatewayAway("gone"), GatewayRefused(409, "Fenced", "over")])
async def test_a_refusal_in_time_is_raised(error: Exception) -> None:
    async with place(NEVER) as there:
        there.gateway.answer("u").set_exception(error)
        with pytest.raises(type(error)):
            await there.ask("u")


async def test_a_late_answer_has_the_run_looked_at_and_is_asked_for_once() -> None:
    async with place() as there:
        assert await there.ask("u") is None
        assert await there.ask("u") is None
        there.gateway.answer("u").set_result(VIEW)
        assert await there.ended.get() == key("u")
        assert there.gateway.asked == ["u"]
        assert await there.ask("u") is VIEW, "it may be asked for again"


async def test_a_late_failure_waits_for_the_time_of_its_plan_and_leaves_its_room() -> None:
    async with place() as there:
        assert await there.ask("u") is None
        there.gateway.answer("u").set_exception(GatewayAway("gone"))
        with pytest.raises(GatewayAway):
            await there.ask_for_ever("u")
        assert there.ended.empty()


async def test_the_runs_of_one_slow_remote_leave_room_for_those_of_others() -> None:
    async with place() as there:
        for at in range(MOST_PER_REMOTE + 3):
            assert await there.ask(f"slow-{at}", name=f"repository-{at}") is None
        assert len(there.gateway.asked) == MOST_PER_REMOTE
        there.gateway.answer("other").set_result(VIEW)
        assert await there.ask("other", "fast.example.com") is VIEW


async def test_there_is_an_end_to_all_room() -> None:
    async with place() as there:
        for at in range(MOST + 3):
            assert await there.ask(f"u-{at}", f"host-{at}.example.com") is None
        assert len(there.gateway.asked) == MOST


async def test_a_worker_is_free_while_a_remote_takes_its_time() -> None:
    worked: asyncio.Queue[RunKey] = asyncio.Queue()
    async with place() as there:

        async def work(run: RunKey) -> None:
            await there.ask(run.uid)
            worked.put_nowait(run)

        queue: WorkQueue[RunKey] = WorkQueue(work, workers=1, chance=Random(1), failed=lambda *_: None)
        working = asyncio.create_task(queue.run())
        for uid in ("a", "b", "c"):
            queue.add(key(uid))
        assert [await worked.get() for _ in range(3)] == [key("a"), key("b"), key("c")]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_what_is_under_way_at_the_end_is_let_go() -> None:
    async with place() as there:
        await there.ask("u")
    assert there.gateway.answer("u").cancelled()
