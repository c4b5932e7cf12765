"""C5: a tenant's allowance of models: tokens and cost in a day, and requests at once, of all its runs at all gateways.

A request of a tenant that has one takes its worst case from the store before it is journaled, and gives back what it
didn't need once it is answered. A tenant without one costs nothing. What an allowance is, the operator tells; another
gateway's word of it is heard within FRESH_MS.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from moorage.api.quantity import dollars
from moorage.clock import Clock
from moorage.core.models.prices import Reserve
from moorage.core.run.reducing.usage import add_usage
from moorage.core.run.state import Usage
from moorage.gateway.budget import AllReserved
from moorage.gateway.constraints import Exhausted
from moorage.gateway.facts import DAY_MS
from moorage.gateway.signals import Bell
from moorage.store.allowances import COST, MODELS, TOKENS, Allowance, Ask, Short
from moorage.store.errors import StoreError
from moorage.store.peers import Peers
from moorage.store.port import DurableExecutionStore

FRESH_MS: Final = 5_000
ELSEWHERE_MS: Final = 1_000
"""So often who waits looks whether another gateway has given something back."""


class AllTaken(AllReserved):
    """What is left of the tenant's allowance is taken by requests under way."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        super().__init__()


class DayExhausted(Exhausted):
    """The tenant has used up its day; it has another one at midnight, UTC."""

    def __init__(self, short: Short, day: int) -> None:
        self.short, self.until = short, (day + 1) * DAY_MS
        super().__init__(said(short))


def said(short: Short) -> str:
    """Why, and who would help."""
    if short.line == MODELS:
        return "concurrency.models of this namespace's ResourceConstraint is 0: no run of it may ask a model"
    most, used, need = (_spelt(short.line, number) for number in (short.most, short.used, short.need))
    why = f"this namespace has used {used} of {most} of {short.line} today (UTC)"
    if short.need > short.most:
        return f"{short.line} is {most}, and this request alone may take {need}: raise it in the ResourceConstraint"
    return f"{why}, and the request may take {need}; it goes on tomorrow, or once its ResourceConstraint is raised"


def _spelt(line: str, number: int) -> str:
    return f"${dollars(number)}" if line == COST else f"{number} tokens" if line == TOKENS else str(number)


@dataclass(frozen=True)
class _Answer:
    ask: Ask
    tokens: int
    cost_micros: int


class Allowances:
    """One object per process."""

    def __init__(self, store: DurableExecutionStore, peers: Peers, clock: Clock, log: Any) -> None:
        self._store, self._peers, self._clock, self._log = store, peers, clock, log
        self._known: Mapping[str, Allowance] = {}
        self._read_at: int | None = None
        self._reading = asyncio.Lock()
        self._open: dict[str, Ask] = {}  # by request id
        self._owed: list[_Answer] = []
        self._bells: dict[str, Bell] = {}

    async def tell(self, tenant: str, allowance: Allowance) -> None:
        """The operator's word."""
        if (await self._allowances()).get(tenant, Allowance()) == allowance:
            return
        await self._store.set_allowance(tenant, allowance)
        self._read_at = None
        self._rang(tenant)

    def today(self) -> int:
        """The day, counted from the epoch, in UTC."""
        return self._clock.now_ms() // DAY_MS

    def bell(self, tenant: str) -> Bell:
        """Rings when something comes back here."""
        return self._bells.setdefault(tenant, Bell())

    @contextlib.asynccontextmanager
    async def taken(self, tenant: str, request_id: str, worst: Reserve) -> AsyncIterator[None]:
        """The request's worst case is taken from its tenant's allowance, if it has one; what this raises within gives
        it back. Raise DayExhausted, AllTaken; and as the store does.
        """
        if tenant not in await self._allowances():
            yield
            return
        ask = Ask(tenant, request_id, self.today(), self._peers.me, worst.tokens, worst.cost_micros)
        await self._pay()
        try:
            short = await self._take(ask)
        except BaseException:  # perhaps it was noted: what the store answers is lost
            self._owed.append(_Answer(ask, 0, 0))
            raise
        if short is not None:
            if short.over:
                raise DayExhausted(short, ask.day)
            raise AllTaken(tenant)
        self._open[request_id] = ask
        try:
            yield
        except BaseException:
            await self.answered(request_id, {})
            raise

    async def answered(self, request_id: str, usage: Mapping[str, int] | None) -> None:
        """What a request came to; None: as much as it may have taken. What the store can't take now, it hears later."""
        ask = self._open.pop(request_id, None)
        if ask is None:
            return
        took = add_usage(Usage(), usage) if usage is not None else None
        tokens, cost = (took.tokens, took.cost_micros) if took is not None else (ask.tokens, ask.cost_micros)
        self._owed.append(_Answer(ask, tokens, cost))
        try:
            await self._pay()
        except StoreError as error:
            self._log.warning("allowance_not_settled", tenant=ask.tenant, reason=type(error).__name__)

    async def _pay(self) -> None:
        while self._owed:
            answer = self._owed.pop()
            try:
                await self._store.settle(answer.ask, answer.tokens, answer.cost_micros)
            except BaseException:
                self._owed.append(answer)
                raise
            self._rang(answer.ask.tenant)

    async def _take(self, ask: Ask) -> Short | None:
        """What is under way at gateways that are gone is settled first where it would be needed."""
        short = await self._store.take(ask)
        if short is None or short.over or not await self._settled_gone(ask.tenant, short.holders - {ask.gateway}):
            return short
        return await self._store.take(ask)

    async def _settled_gone(self, tenant: str, gateways: frozenset[str]) -> bool:
        gone = [name for name in sorted(gateways) if await self._peers.gone(name)]
        for name in gone:
            self._log.warning("allowance_of_a_lost_gateway", tenant=tenant, gateway=name)
            await self._store.give_up(tenant, name)
        return bool(gone)

    async def _allowances(self) -> Mapping[str, Allowance]:
        now = self._clock.monotonic_ms()
        if self._read_at is None or now - self._read_at >= FRESH_MS:
            async with self._reading:
                if self._read_at is None or now - self._read_at >= FRESH_MS:
                    self._known = await self._store.allowances()
                    self._read_at = now
        return self._known

    def _rang(self, tenant: str) -> None:
        if (bell := self._bells.get(tenant)) is not None:
            bell.ring()
