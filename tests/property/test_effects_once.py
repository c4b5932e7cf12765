"""E6: an agent's orders happen once each, whatever dies between it and the host, and however often it starts again.

The agent is a program of orders with safe points between them; it starts again from its last one when an attempt is
lost. Gateways die at any point of any request, connections break before and after the host has acted. A real gateway
over a store in memory, a real host on loopback.
"""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway_script import Operator, ok, told

from moorage import points
from moorage.api.wire import ResolvedAgent, ResolvedEgress, ResolvedRun, ResolvedSandbox, ResolvedWorkspace
from moorage.gateway.settings import GatewaySettings
from moorage.points import Point
from moorage.testing.authority import Authority, Cut
from moorage.testing.gateway import LocalGateway

pytestmark = pytest.mark.timeout(240)  # each example is a gateway of its own

SAFE_POINT = "safe point"
DEATHS = [Point.INTENT_BEFORE, Point.INTENT_AFTER, Point.EGRESS_BEFORE, Point.EGRESS_WITHIN, Point.EGRESS_AFTER]
ATTEMPTS = 40  # more than there are faults in any example


class Died(BaseException):
    """The gateway's process is gone; nothing of it handles that."""


@dataclass
class Faults:
    """What happens to the requests to come, one each: the gateway dies at a point, or the host's connection breaks."""

    coming: list[Point | Cut | None]
    at: Point | None = None

    def next(self, authority: Authority) -> None:
        """Set up the next request's."""
        fault = self.coming.pop(0) if self.coming else None
        self.at = fault if isinstance(fault, Point) else None
        authority.cuts = [fault] if isinstance(fault, Cut) else []

    def reached(self, point: Point) -> None:
        """The hook of all points."""
        if point is self.at:
            self.at = None
            raise Died


@contextlib.contextmanager
def armed(faults: Faults) -> Iterator[None]:
    points._Armed.hook = faults.reached
    try:
        yield
    finally:
        points._Armed.hook = None


@dataclass
class Agent:
    """Goes through its program from the last safe point; `unknown`: orders whose end nobody can know."""

    gateway: LocalGateway
    operator: Operator
    authority: Authority
    faults: Faults
    program: list[str]
    epoch: int = 0
    done: int = 0  # steps before the last safe point
    unknown: set[int] = field(default_factory=set)

    async def run(self) -> None:
        """As many attempts as it takes."""
        for _ in range(ATTEMPTS):
            runner = await self._start()
            if await self._attempt(runner):
                return
            self.gateway.restart()
        raise AssertionError("the agent never comes to its end")

    async def _start(self) -> httpx.AsyncClient:
        if self.epoch:
            lost = {"epoch": self.epoch, "reason": "PodLost", "message": ""}
            await ok(await self.operator.report(self.epoch, "ATTEMPT_ENDED", lost, str(self.epoch)))
        self.epoch += 1
        await ok(await self.operator.fence(self.epoch))
        await self.operator.register(f"p{self.epoch}", self.epoch)
        runner = self.gateway.sandbox(f"p{self.epoch}", "team-a")
        await ok(await runner.post("/v1/self/records", json=told("AGENT_STARTED", {}, epoch=self.epoch)))
        return runner

    async def _attempt(self, runner: httpx.AsyncClient) -> bool:
        """Whether it came to the program's end."""
        safe_points = self.program[: self.done].count(SAFE_POINT)
        for step in range(self.done, len(self.program)):
            if self.program[step] == SAFE_POINT:
                safe_points += 1
                point = {"epoch": self.epoch, "iteration": safe_points, "changed": False, "recorded_at": 8}
                await ok(await runner.post("/v1/self/checkpoint", json=point))
                self.done = step + 1
            elif not await self._order(runner, step):
                return False
        return True

    async def _order(self, runner: httpx.AsyncClient, step: int) -> bool:
        """Whether the gateway lived. Keyed orders are asked for until they have an answer, as HTTP libraries do."""
        while True:
            self.faults.next(self.authority)
            try:
                answer = await runner.post("/egress/http/api.example.com/orders", content=self.program[step].encode())
            except Died:
                return False
            if answer.status_code == 201:
                return True
            assert answer.status_code == 503 or answer.json()["reason"] == "EffectUnknown", answer.text
            if not self.keyed:
                self.unknown.add(step)
                return True

    @property
    def keyed(self) -> bool:
        """What the host was declared to be."""
        return self.operator.spec.sandbox.egress[0].effects == "keyed"


def spec(effects: Any, port: int) -> ResolvedRun:
    host = ResolvedEgress(host="api.example.com", effects=effects, scheme="http", port=port)
    return ResolvedRun(
        uid="u1",
        tenant="team-a",
        name="orders",
        session_id="u1",
        placement="cluster",
        goal="order",
        workspace=ResolvedWorkspace(key="w1", kind="ephemeral"),
        agent=ResolvedAgent(driver="command", command=("true",)),
        sandbox=ResolvedSandbox(egress=(host,)),
    )


async def played(program: list[str], coming: list[Point | Cut | None], effects: str) -> tuple[Agent, Any]:
    faults = Faults(list(coming))
    with tempfile.TemporaryDirectory() as folder:
        limits = GatewaySettings(egress_private=("127.0.0.0/8",), egress_tries=1)
        async with Authority().listening() as authority:
            gateway = LocalGateway(Path(folder), settings=limits, hosts={"api.example.com": "127.0.0.1"})
            async with gateway:
                operator = Operator(gateway, spec(effects, authority.port))
                await operator.admit()
                agent = Agent(gateway, operator, authority, faults, program)
                with armed(faults):
                    await agent.run()
                    await ok(await operator.http.post(f"{operator.door}/deliver", json={"epoch": agent.epoch}))
                return agent, await operator.state()


PROGRAMS = st.lists(st.sampled_from(["a", "b", SAFE_POINT]), min_size=1, max_size=7)
FAULTS = st.lists(st.sampled_from([*DEATHS, Cut.BEFORE, Cut.AFTER, Cut.FAILS, None]), max_size=6)


@pytest.mark.rule("E6", "E2", "E4")
@settings(max_examples=25)
@given(program=PROGRAMS, faults=FAULTS)
def test_keyed_orders_happen_exactly_once(program: list[str], faults: list[Point | Cut | None]) -> None:
    agent, state = asyncio.run(played(program, faults, "keyed"))
    orders = Counter(step.encode() for step in program if step != SAFE_POINT)
    assert Counter(agent.authority.committed) == orders
    assert {e["status"] for e in state["effects"]} <= {"confirmed", "not_dispatched"}


@pytest.mark.rule("E6", "E3", "E4", "I8")
@settings(max_examples=25)
@given(program=PROGRAMS, faults=FAULTS)
def test_other_orders_happen_once_at_most_and_those_that_are_missing_are_unknown(
    program: list[str], faults: list[Point | Cut | None]
) -> None:
    agent, state = asyncio.run(played(program, faults, "opaque"))
    orders = Counter(step.encode() for step in program if step != SAFE_POINT)
    happened = Counter(agent.authority.committed)
    assert happened <= orders
    told_unknown = Counter(program[step].encode() for step in agent.unknown)
    assert orders - happened <= told_unknown
    assert {e["status"] for e in state["effects"]} <= {"confirmed", "unknown", "not_dispatched"}
    assert len(agent.authority.log) <= sum(orders.values())
