"""X1, F3: what a runner must obey. `seq` is the order's rank: an order is only ever followed by a graver one."""

from __future__ import annotations

from typing import Final

from moorage.api.wire import Role
from moorage.api.work import Orders
from moorage.core.commands.command import last_waiting
from moorage.core.journal.record import RecordType
from moorage.core.run.state import Pause
from moorage.gateway.errors import Fenced
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.signals import rung_within
from moorage.points import Point, reached

WORK: Final = 0
PAUSE: Final = 1
CANCEL: Final = 2
TERMINAL: Final = 3
FENCED: Final = 4


class OrderBook:
    """Orders by long poll, woken by the journal."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._settings = gate.deps.settings

    async def wait(self, caller: Caller, after: int, heard: int | None = None) -> Orders:
        """The orders as soon as their rank is above `after` or a message waits that is newer than `heard`, or what they
        are when the wait is over. `heard` None: who asks knows of no messages, and of no pauses (R8).
        """
        clock = self._gate.deps.clock
        deadline = clock.monotonic_ms() + self._settings.orders_wait_ms
        ledger, rung = self._gate.ledger, True
        while True:
            bell = caller.run.bell.arm()
            await (ledger.woken if rung else ledger.refresh)(caller.run)
            orders, left = self.of(caller, pauses=heard is not None), deadline - clock.monotonic_ms()
            news = heard is not None and orders.waiting > heard
            if orders.seq > after or news or left <= 0:
                return await self.hand_over(caller, orders)
            rung = await rung_within(bell, min(left, self._settings.keep_alive_ms))

    def of(self, caller: Caller, *, pauses: bool) -> Orders:
        """What holds now for this very sandbox. Without `pauses` it doesn't know that order: it works on, until
        the operator ends it as one that doesn't stop.
        """
        state = caller.run.state
        if caller.epoch < state.epoch:
            return Orders(seq=FENCED, stop="fenced", message=str(Fenced(caller.epoch, state.epoch)), grace_ms=0)
        if state.end is not None:
            return Orders(seq=TERMINAL, stop="terminal", reason=state.end.reason, message="the run has ended")
        if state.cancel_stage is not None:
            grace = self._settings.cancel_grace_ms
            return Orders(seq=CANCEL, stop="cancel", reason=state.cancel_reason, grace_ms=grace)
        if pauses and state.pause is not None and caller.pod.role == Role.RUNNER:
            return self._pause(caller, state.pause)
        return Orders(seq=WORK, waiting=last_waiting(state.commands) if caller.pod.role == Role.RUNNER else -1)

    def _pause(self, caller: Caller, asked: Pause) -> Orders:
        """Q5: the grace counts from when it was asked for."""
        until = 0 if asked.kill or not asked.pending else asked.at + caller.run.spec.timeouts.pause_ms
        left = max(0, until - self._gate.deps.clock.now_ms())
        return Orders(seq=PAUSE, stop="pause", reason=asked.told, message=asked.message, grace_ms=left)

    async def hand_over(self, caller: Caller, orders: Orders) -> Orders:
        """A cancel that a runner is about to hear is propagated; a fenced runner that asks is counted (F3)."""
        run = caller.run
        if orders.stop == "cancel" and run.state.cancel_stage == "requested":
            draft = self._gate.ledger.observed(RecordType.CANCEL_PROPAGATED, {"pod_uid": caller.pod.pod_uid})
            reached(Point.CANCEL_BEFORE)
            await self._gate.ledger.append(run, caller.epoch, [draft])
            reached(Point.CANCEL_WITHIN)
        if orders.stop == "fenced":
            await self._gate.ledger.refuse_fenced(run, caller.epoch, "orders", caller.pod.pod_uid)
        return orders
