"""F7 over random schedules: no two operators act at once, whatever answers are late or lost, and whoever is frozen."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moorage.controller.candidacy import Terms
from moorage.controller.election import Deposed, Election
from moorage.sandbox.kube import ApiUnavailable, Body, Exists, KubeError, Missing, Stale
from moorage.testing.clock import StepClock

TERMS = Terms()
OFFSET_MS = 3_600_000  # between the wall clocks of two candidates
CANDIDATES = 3


@dataclass
class Server:
    """One object with versions, as the API server keeps it."""

    lease: Body | None = None
    version: int = 0

    def put(self, body: Body) -> Body:
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    def get(self) -> Body | None:
        return self.lease

    def create(self, body: Body) -> Body:
        if self.lease is not None:
            raise Exists(409, "AlreadyExists", "")
        return self.put(body)

    def replace(self, body: Body) -> Body:
        if self.lease is None:
            raise Missing(404, "NotFound", "")
        if body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            raise Stale(409, "Conflict", "")
        return self.put(body)


@dataclass
class Line:
    """A candidate's connection: each request waits until the schedule lets it through, and so does its answer."""

    server: Server
    gate: "asyncio.Future[bool] | None" = None

    async def pass_gate(self) -> None:
        self.gate = asyncio.get_running_loop().create_future()
        if not await self.gate:
            raise ApiUnavailable(0, "NoAnswer", "lost")

    async def call(self, what: Any, *args: Any) -> Any:
        await self.pass_gate()
        try:
            found, refused = what(*args), None
        except KubeError as e:
            found, refused = None, e
        await self.pass_gate()
        if refused is not None:
            raise refused
        return found

    async def get(self, _: str) -> Body | None:
        found: Body | None = await self.call(self.server.get)
        return found

    async def create(self, _: str, body: Body) -> Body:
        made: Body = await self.call(self.server.create, body)
        return made

    async def replace(self, _: str, body: Body) -> Body:
        put: Body = await self.call(self.server.replace, body)
        return put


@dataclass
class Candidate:
    """One process. Its clock runs with the world's; its wall clock is its own."""

    line: Line
    clock: StepClock
    election: Election
    task: "asyncio.Task[Any] | None" = None
    over: bool = False
    told: list[bool] = field(default_factory=list)


class Elections(RuleBasedStateMachine):
    """Time only passes where a rule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = Server()
        self.all = [self._candidate(n) for n in range(CANDIDATES)]

    def _candidate(self, number: int) -> Candidate:
        line, clock, told = Line(self.server), StepClock(), list[bool]()
        clock.wall += number * OFFSET_MS
        election = Election(
            line,  # type: ignore[arg-type]
            namespace="ns",
            name="lease",
            me=f"operator-{number}",
            clock=clock,
            log=structlog.get_logger(),
            told=told.append,
            terms=TERMS,
        )
        return Candidate(line, clock, election, told=told)

    def _run(self) -> None:
        """Let everybody go on to where they wait for the schedule."""
        for _ in range(8):
            self.loop.run_until_complete(asyncio.sleep(0))
        for each in self.all:
            if each.task is not None and each.task.done():
                each.over |= isinstance(each.task.exception(), Deposed)
                each.task = each.line.gate = None

    @rule(number=st.integers(0, CANDIDATES - 1))
    def act(self, number: int) -> None:
        """It looks, or renews."""
        each = self.all[number]
        if each.task is None and not each.over:
            election = each.election
            each.task = self.loop.create_task(election._renew() if election._until else election._try())
            self._run()

    @rule(number=st.integers(0, CANDIDATES - 1), arrives=st.sampled_from([True, True, True, False]))
    def deliver(self, number: int, arrives: bool) -> None:
        """Its request reaches the server, or its answer reaches it; or it is lost."""
        gate = self.all[number].line.gate
        if gate is not None and not gate.done():
            gate.set_result(arrives)
            self._run()

    @rule(number=st.integers(0, CANDIDATES - 1))
    def act_undisturbed(self, number: int) -> None:
        """The same, or what it is at, to its end."""
        self.act(number)
        while self.all[number].task is not None:
            self.deliver(number, arrives=True)

    @rule(ms=st.sampled_from([200, 1_000, 5_000, 14_000]))
    def wait(self, ms: int) -> None:
        for each in self.all:
            each.clock.advance(ms)

    @rule(number=st.integers(0, CANDIDATES - 1))
    def resign(self, number: int) -> None:
        each = self.all[number]
        if each.task is None and not each.over and each.election.leads():
            each.task = self.loop.create_task(each.election.resign())
            each.over = True
            self._run()

    @precondition(lambda self: self.server.lease is not None)
    @rule()
    def somebody_touches_it(self) -> None:
        """An annotation, say: its version moves, its holder doesn't."""
        assert self.server.lease is not None
        self.server.put(self.server.lease)

    @rule(number=st.integers(0, CANDIDATES - 1))
    def restart(self, number: int) -> None:
        """As another pod: it knows nothing, and has a name of its own."""
        each = self.all[number]
        if each.over and each.task is None:
            fresh = self._candidate(number)
            fresh.clock.steady = each.clock.steady
            fresh.election._me = f"{each.election._me}-again"
            self.all[number] = fresh

    @invariant()
    def one_acts_at_most(self) -> None:
        acting = [each.election._me for each in self.all if each.election.leads()]
        assert len(acting) <= 1, acting

    def teardown(self) -> None:
        tasks = [each.task for each in self.all if each.task is not None]

        async def ended() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.loop.run_until_complete(ended())
        self.loop.close()


@pytest.mark.rule("F7")
class TestElections(Elections.TestCase):  # type: ignore[valid-type]
    settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
