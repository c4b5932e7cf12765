"""F7: what a leader does when it can't renew, and what it may do then. The Lease lies in memory; time is stepped."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import structlog
from structlog.testing import capture_logs

from moorage.controller.candidacy import Claim, Sighting, Step, Terms, sighted, step
from moorage.controller.election import Deposed, Election
from moorage.controller.gateway_client import GatewayAway, GatewayClient
from moorage.controller.replica import take_turns
from moorage.sandbox.kube import ApiUnavailable, Body, KubeError
from moorage.testing.clock import StepClock

QUICK = Terms(lease_ms=15_000, give_up_ms=10_000, renew_ms=1, look_ms=1)


class Api:
    """Takes what it is given; `trouble` is raised in its place, and `before` sees each write."""

    def __init__(self) -> None:
        self.lease: Body | None = None
        self.trouble: KubeError | None = None
        self.before: Callable[[], None] = lambda: None
        self.asked = asyncio.Semaphore(0)

    async def get(self, _: str) -> Body | None:
        self.asked.release()
        if self.trouble is not None:
            raise self.trouble
        return self.lease

    async def create(self, _: str, body: Body) -> Body:
        return await self.replace(_, body)

    async def replace(self, _: str, body: Body) -> Body:
        self.before()
        if self.trouble is not None:
            raise self.trouble
        self.lease = body
        return body


def candidate(api: Api, clock: StepClock, told: Callable[[bool], None] = lambda _: None) -> Election:
    return Election(
        api,  # type: ignore[arg-type]
        namespace="ns",
        name="lease",
        me="first",
        clock=clock,
        log=structlog.get_logger(),
        told=told,
        terms=QUICK,
    )


async def test_a_leader_that_cannot_renew_is_deposed_and_may_write_nothing_from_then_on() -> None:
    api, clock, told = Api(), StepClock(), list[bool]()
    election = candidate(api, clock, told.append)
    await election.win()
    election.demand()
    holding = asyncio.create_task(election.hold())
    api.trouble = ApiUnavailable(0, "NoAnswer", "away")
    clock.advance(QUICK.give_up_ms - 1)
    election.demand()
    clock.advance(1)
    with pytest.raises(ApiUnavailable, match="doesn't lead"):
        election.demand()
    with pytest.raises(Deposed, match="10 s"):
        await holding
    assert told == [False, True, False]


async def test_a_renewal_that_took_too_long_gives_no_time_that_is_over() -> None:
    """Its answer counts from when it was asked for: meanwhile another one may have waited."""
    api, clock = Api(), StepClock()
    election = candidate(api, clock)
    api.before = lambda: clock.advance(QUICK.give_up_ms)
    await election.win()
    assert not election.leads()


async def test_a_trouble_is_told_once_and_a_candidate_that_hears_nothing_is_not_ready() -> None:
    api, clock = Api(), StepClock()
    election = candidate(api, clock)
    api.trouble = KubeError(403, "Forbidden", "leases is forbidden")
    with capture_logs() as logs:
        winning = asyncio.create_task(election.win())
        for _ in range(3):
            await api.asked.acquire()
        assert [each["message"] for each in logs] == ["Forbidden: leases is forbidden"]
        assert not election.in_touch()
        api.trouble = None
        await winning
    assert election.in_touch()
    clock.advance(30_000)
    assert not election.in_touch()


async def test_the_lease_is_let_go_of_only_when_nothing_works_any_more() -> None:
    api, seen, stop = Api(), list[Any](), asyncio.Event()
    election = candidate(api, StepClock())

    async def work(stopping: asyncio.Event) -> None:
        stop.set()
        try:
            await stopping.wait()
        finally:
            await asyncio.sleep(0.01)
            seen.append((api.lease or {})["spec"].get("holderIdentity"))

    await take_turns(election, work, stop)
    assert seen == ["first"], "it was held as long as there was work"
    assert "holderIdentity" not in (api.lease or {})["spec"]


async def test_who_is_asked_to_end_while_it_stands_by_ends() -> None:
    api, stop = Api(), asyncio.Event()
    api.lease = {"metadata": {}, "spec": {"holderIdentity": "other"}}
    stop.set()

    async def work(_: asyncio.Event) -> None:
        raise AssertionError("it doesn't lead")

    await take_turns(candidate(api, StepClock()), work, stop)


async def test_who_does_not_lead_tells_the_gateway_nothing_and_may_ask() -> None:
    async with aiohttp.ClientSession() as http:
        client = GatewayClient(http, "http://127.0.0.1:9", lambda: "token", lambda: False)
        with pytest.raises(GatewayAway, match="doesn't lead"):
            await client.release("uid")
        with pytest.raises(GatewayAway, match="GET"):
            await client.view("uid")


def claim(holder: str, version: str = "1") -> Claim:
    return Claim(holder, version, 15_000)


@pytest.mark.parametrize(
    ("seen", "stands", "expected"),
    [
        (None, False, Step.CREATE),
        (Sighting(claim(""), 0), True, Step.TAKE),
        (Sighting(claim("me"), 0), True, Step.TAKE),
        (Sighting(claim("other"), 0), True, Step.WAIT),
        (Sighting(claim("other"), -1), True, Step.TAKE),
        (Sighting(claim("other"), 0), False, Step.WAIT),
        (Sighting(claim("other"), -1), False, Step.CREATE),
    ],
)
def test_a_lease_is_taken_once_its_holder_was_silent_for_its_whole_time(
    seen: Sighting | None, stands: bool, expected: Step
) -> None:
    assert step("me", seen, stands=stands, now=14_999) is expected


def test_only_a_change_is_a_sign_of_life_whatever_its_times_say() -> None:
    first = sighted(None, claim("other"), 100)
    assert sighted(first, claim("other"), 900) is first
    assert sighted(first, None, 900) is first
    assert sighted(first, claim("other", "2"), 900) == Sighting(claim("other", "2"), 900)
