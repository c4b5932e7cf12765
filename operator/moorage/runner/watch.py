"""F4 and X1: says that we live, and hears what is asked of us."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from moorage.api.work import Assignment, Heartbeat, Orders
from moorage.runner.client import Fenced, GatewayError, TokenUnreadable
from moorage.runner.exchange import NoAnswer
from moorage.runner.report import Reporter, now_ms

RETRY_S = 0.5


class Watch:
    """Heartbeats and a long poll. The first stop that is heard stays; `stopped` is set with it. `pause` is the order to
    stop at the next safe point, and `pausing` is set with that. `mail` is set when there is a message to the agent that
    is news.

    Heartbeats begin before the assignment is known: the gateway knows the sandbox by its token, and the answer may have
    to wait for a repository for longer than a Lease lasts.
    """

    def __init__(
        self,
        beat: Callable[[Heartbeat], Awaitable[Orders]],
        orders: Callable[[int, int], Awaitable[Orders]],
        interval_s: float,
    ) -> None:
        self._beat, self._orders, self._interval_s = beat, orders, interval_s
        self._work: tuple[Assignment, Reporter] | None = None
        self.stop: Orders | None = None
        self.stopped = asyncio.Event()
        self.pause: Orders | None = None
        self.pausing = asyncio.Event()
        self.mail = asyncio.Event()
        self._newest = -1  # the offset of the last message that was heard of

    async def heartbeats(self) -> None:
        """Every interval, whatever happened to the last one."""
        while True:
            await self._heard(self._beat(self._sign()))
            await asyncio.sleep(self._interval_s)

    def assigned(self, assignment: Assignment, reporter: Reporter) -> None:
        """From now on heartbeats tell of this work."""
        self._work = assignment, reporter

    def _sign(self) -> Heartbeat:
        if self._work is None:
            return Heartbeat(work_id="", epoch=0, progress_seq=0, observed_at=now_ms(), pauses=True)
        assignment, reporter = self._work
        return Heartbeat(
            work_id=assignment.run_uid,
            epoch=assignment.epoch,
            progress_seq=reporter.progress,
            last_checkpoint=reporter.last_iteration,
            observed_at=now_ms(),
            pauses=True,
        )

    async def long_poll(self) -> None:
        """Hear orders at once."""
        after = 0
        while True:
            orders = await self._heard(self._orders(after, self._newest))
            if orders is None:
                await asyncio.sleep(RETRY_S)
            else:
                after = max(after, orders.seq)

    async def _heard(self, call: Awaitable[Orders]) -> Orders | None:
        try:
            orders = await call
        except Fenced as error:
            orders = Orders(seq=2**31, stop="fenced", message=error.message, grace_ms=0)
        except (GatewayError, NoAnswer, TokenUnreadable):
            return None  # the next call comes soon; expiry is the operator's business
        if self._work is not None:
            self._work[1].heard(orders.budget)
        if orders.stop == "pause":
            self.pause = orders
            self.pausing.set()
        elif orders.stop is not None and (self.stop is None or orders.seq > self.stop.seq):
            self.stop = orders
            self.stopped.set()
        if orders.waiting > self._newest:
            self._newest = orders.waiting
            self.mail.set()
        return orders


@contextlib.asynccontextmanager
async def background(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run helpers beside the body; when one of them fails, the body is cancelled and the failure raised.

    What is raised is the first failure itself: who calls knows Leave and DiskFull, not groups of them.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
