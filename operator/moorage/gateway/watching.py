"""What ends an exchange with a host before it is through: its agent's work is over, its client gone, or its time up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Receive

from moorage.core.run.phases import RunPhase
from moorage.gateway.errors import Refusal
from moorage.gateway.ledger import Ledger, Run
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.signals import rung_within
from moorage.store.errors import StoreError

LOOK_MS = 5_000  # another gateway may have raised the fence
T = TypeVar("T")
End = Coroutine[Any, Any, str]
"""Returns once something is over: why it is."""


class Ended(Exception):
    """It was broken off; the message says why."""


def at_work(run: Run) -> bool:
    """Whether an agent of the current attempt is."""
    return run.state.agent_end is None and run.state.phase is RunPhase.RUNNING


def demand_working(run: Run, most: int, besides: int = 0) -> None:
    """I5, I6: effects are an agent's while it is at work, and `most` of them at once, with those `besides`."""
    if not at_work(run):
        raise not_at_work(f"the run is {run.state.phase}")
    if len(run.state.open_effects) + besides >= most:
        why = f"{most} requests and tunnels of this run are under way: wait until one has ended"
        raise Refusal(why, status=429, reason="TooManyOpen", headers={"retry-after": "1"})


def not_at_work(why: str) -> Refusal:
    """I5: for who comes too late."""
    return Refusal(f"no agent is at work here: {why}", status=409, reason="NotAtWork")


def idle(run: Run, epoch: int) -> str | None:
    """Why no agent of that attempt is at work; None while one is."""
    if run.state.epoch != epoch:
        return "another attempt owns the run"
    return None if at_work(run) else f"the run is {run.state.phase}"


def unwanted(run: Run) -> str | None:
    """I5: why nothing of the run may be made to happen any more; None while it may."""
    over = run.state.end is not None or run.state.phase is RunPhase.CANCELLING
    return f"the run is {run.state.phase}" if over else None


@dataclass(frozen=True)
class Watch:
    """Over one exchange, from its beginning. `why`: why nobody wants it any more, if so. `receive`: its client's."""

    ledger: Ledger
    run: Run
    settings: GatewaySettings
    why: Callable[[Run], str | None]
    began: float
    receive: Receive | None = None

    def wanted(self) -> bool:
        """Somebody waits for it, as far as is known at this moment."""
        return self.run.at is not None and self.why(self.run) is None

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """What changes nothing ends with its client, too. Raise Ended."""
        ends = [self._over(), self._late()]
        return await until(work, *ends, *([_gone(self.receive)] if self.receive else []))

    async def effect(self, work: Coroutine[Any, Any, T]) -> T:
        """What is cut stays unknown: it may take a moment longer than its agent, and its client's end is none. Raise
        Ended.
        """
        return await until(work, self._over_for_long(), self._late())

    async def _over(self) -> str:
        """A store that is away for a moment says nothing of the run."""
        while True:
            bell = self.run.bell.arm()
            try:
                return await over(self.ledger, self.run, self.why)
            except StoreError:
                await rung_within(bell, LOOK_MS)

    async def _over_for_long(self) -> str:
        said = await self._over()
        await asyncio.sleep(self.settings.egress_grace_ms / 1000)
        return said

    async def _late(self) -> str:
        limit = self.settings.egress_total_ms / 1000
        await asyncio.sleep(max(0.0, self.began + limit - asyncio.get_running_loop().time()))
        return f"it took longer than {limit:g} s"


async def over(ledger: Ledger, run: Run, why: Callable[[Run], str | None]) -> str:
    """Returns what `why` says of the run, once it says anything: it is asked at every change, also another gateway's.

    Raise as `ledger.open` does.
    """
    while True:
        bell = run.bell.arm()
        await ledger.woken(run)
        if said := why(run):
            return said
        if not await rung_within(bell, LOOK_MS):
            await ledger.refresh(run)


async def _gone(receive: Receive) -> str:
    while (await receive())["type"] != "http.disconnect":
        pass
    return "its client is gone"


async def until(work: Coroutine[Any, Any, T], *ends: End) -> T:
    """The work's result. Raise Ended where one of `ends` comes first; the work is cancelled then, and is over."""
    doing, watching = asyncio.create_task(work), [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait([doing, *watching], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise Ended(next(task.result() for task in watching if task.done()))
    finally:
        for task in (doing, *watching):
            task.cancel()
        await asyncio.gather(doing, *watching, return_exceptions=True)
