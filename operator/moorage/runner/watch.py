"""F4 and X1: says that we live, and hears what is asked of us."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from moorage.api.wire import Assignment, Heartbeat, Orders
from moorage.runner.client import Fenced, GatewayError, TokenUnreadable
from moorage.runner.exchange import NoAnswer
from moorage.runner.report import Reporter, now_ms

RETRY_S = 0.5


class Watch:
    """Heartbeats and a long poll. The first stop that is heard stays; `stopped` is set with it."""

    def __init__(
        self,
        beat: Callable[[Heartbeat], Awaitable[Orders]],
        orders: Callable[[int], Awaitable[Orders]],
        assignment: Assignment,
        reporter: Reporter,
        interval_s: float,
    ) -> None:
        self._beat, self._orders, self._assignment, self._reporter = beat, orders, assignment, reporter
        self._interval_s = interval_s
        self.stop: Orders | None = None
        self.stopped = asyncio.Event()

    async def heartbeats(self) -> None:
        """Every interval, whatever happened to the last one."""
        while True:
            beat = Heartbeat(
                work_id=self._assignment.run_uid,
                epoch=self._assignment.epoch,
                progress_seq=self._reporter.progress,
                last_checkpoint=self._reporter.last_iteration,
                observed_at=now_ms(),
            )
            await self._heard(self._beat(beat))
            await asyncio.sleep(self._interval_s)

    async def long_poll(self) -> None:
        """Hear orders at once."""
        after = 0
        while True:
            orders = await self._heard(self._orders(after))
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
        if orders.stop is not None and (self.stop is None or orders.seq > self.stop.seq):
            self.stop = orders
            self.stopped.set()
        return orders
