"""What a runner says of the children of its run: for as long as it is asked to wait, and no longer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from moorage.api.children import ChildAnswer
from moorage.drivers.port import ChildRefused
from moorage.runner.children import RunnerChildren
from moorage.runner.client import GatewayClient
from moorage.workspace.merging import Merged


class Holding:
    """A gateway that holds each question for as long as it may, by a clock of its own."""

    def __init__(self, clock: "Clock", *, away: bool = False) -> None:
        self._clock, self._away = clock, away
        self.held: list[float] = []

    async def child(self, name: str, within_s: float) -> ChildAnswer:
        self.held.append(within_s)
        if self._away:
            await asyncio.Event().wait()
        self._clock.now += min(within_s, 25.0)
        return ChildAnswer(name=name, status="started")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


async def unmerged(commit: str, base: str) -> Merged:
    raise AssertionError(f"{commit} on {base}")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("moorage.runner.children.time", clock)
    monkeypatch.setattr("moorage.runner.children.PAUSE_S", 0)
    return clock


def runner_of(gateway: Holding, spare_s: float = 60.0) -> RunnerChildren:
    client = cast("GatewayClient", gateway)
    return RunnerChildren(client, 1, lambda: False, lambda: None, unmerged, spare_s=spare_s)


@pytest.mark.parametrize(("within_s", "held"), [(45, [45, 20]), (0, [0])])
async def test_a_wait_takes_no_longer_than_it_was_asked_for(clock: Clock, within_s: int, held: list[float]) -> None:
    gateway = Holding(clock)
    assert (await runner_of(gateway).wait("kid", within_s)).status == "started"
    assert gateway.held == held
    assert clock.now == 1_000 + within_s


async def test_a_merge_of_one_that_lives_is_refused_at_once(clock: Clock) -> None:
    gateway = Holding(clock)
    with pytest.raises(ChildRefused, match="no commit to merge"):
        await runner_of(gateway).merge("kid")
    assert (gateway.held, clock.now) == ([0], 1_000)


class Ended:
    """A gateway that takes longest to find the child that is asked for first."""

    def __init__(self) -> None:
        self.looked = 0

    async def child(self, name: str, within_s: float) -> ChildAnswer:  # noqa: ARG002  the client's
        self.looked += 1
        for _ in range(10 // self.looked):
            await asyncio.sleep(0)
        return ChildAnswer(name=name, status="ended", outcome="succeeded", commit=name[-1] * 40, base="b" * 40)

    async def patiently(self, call: Callable[[], Awaitable[Merged]]) -> Merged:
        return await call()


@pytest.mark.rule("W7")
async def test_merges_that_are_asked_for_side_by_side_are_made_in_their_order() -> None:
    merged: list[str] = []

    async def merge(commit: str, _: str) -> Merged:
        merged.append(commit[0])
        await asyncio.sleep(0)
        return Merged(files=1)

    client = cast("GatewayClient", Ended())
    children = RunnerChildren(client, 1, lambda: False, lambda: None, merge)
    assert await asyncio.gather(*(children.merge(f"kid-{each}") for each in "acd")) == [1, 1, 1]
    assert merged == ["a", "c", "d"]


async def test_who_asks_while_the_gateway_is_away_is_told_to_ask_again(clock: Clock) -> None:
    with pytest.raises(ChildRefused, match="ask again"):
        await runner_of(Holding(clock, away=True), spare_s=0.0).wait("kid", 0)
