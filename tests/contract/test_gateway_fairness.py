"""The model door where a provider takes only one request at a time: runs take turns, however much one of them asks."""

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.gateway_script import BRANCH, Operator, ok, resolved, told
from tests.model_place import ANTHROPIC, Place, gateway, place, script

from moorage.gateway.turns import Turn, Turns
from moorage.testing.serving import listening

__all__ = ["gateway", "place", "script"]  # fixtures
pytestmark = pytest.mark.timeout(180)
LONG = 40.0


class OneByOne:
    """A provider that answers a request when it is told to; `order`: what was asked, by its cap on output."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self._gate, self._came = asyncio.Semaphore(0), asyncio.Condition()

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/messages", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        async with self._came:
            self.order.append((await request.json())["max_tokens"])
            self._came.notify_all()
        await self._gate.acquire()
        usage = {"input_tokens": 1, "output_tokens": 1}
        return JSONResponse({"type": "message", "content": [], "stop_reason": "end_turn", "usage": usage})

    def go_on(self) -> None:
        """The one that is there is answered."""
        self._gate.release()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(LONG), self._came:
            await self._came.wait_for(lambda: len(self.order) >= count)


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> asyncio.Semaphore:
    """Counts who has come to wait for a turn; the turns themselves are the real ones."""
    come, take = asyncio.Semaphore(0), Turns.take

    async def counted(self: Turns, *asked: Any) -> Turn | None:
        come.release()
        return await take(self, *asked)  # it is in the queue before this waits for anything

    monkeypatch.setattr(Turns, "take", counted)
    return come


async def second_run(place: Place, operator: Operator) -> None:
    """Another run at the same provider, its agent at work in the pod `p2`."""
    spec = resolved(place.upstream, "u2", delivery=None, agent=operator.spec.agent)
    runner = await Operator(place.gateway, spec).start(pod="p2")
    base = (await ok(await runner.get("/v1/self")))["git"]["base"]
    for kind, payload in (("WORKSPACE_READY", {"base": base, "branch": BRANCH}), ("AGENT_STARTED", {})):
        await ok(await runner.post("/v1/self/records", json=told(kind, payload)))


@pytest.mark.rule("Q3", "C8")
async def test_a_run_that_asks_much_leaves_another_its_turns_at_the_door(
    place: Place, queued: asyncio.Semaphore
) -> None:
    provider, asking = OneByOne(), []
    async with listening(provider.app) as url:
        operator = await place.run(ANTHROPIC, base_url=url, max_concurrent=1)
        await second_run(place, operator)
        for pod, cap in (("p1", 1), ("p1", 2), ("p1", 3), ("p1", 4), ("p2", 101), ("p2", 102)):
            asking.append(asyncio.create_task(place.ask(ANTHROPIC, pod, max_tokens=cap)))
            await asyncio.wait_for(queued.acquire(), LONG)
        for number in range(len(asking)):
            await provider.until(number + 1)
            provider.go_on()
        answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} == {200}
    assert provider.order == [1, 2, 101, 3, 102, 4]
