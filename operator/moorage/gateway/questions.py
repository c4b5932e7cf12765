"""Requests to models under way: whose they are, when one may begin, and how one ends whose gateway is gone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from moorage.core.constraints.limits import DECISION
from moorage.core.journal.record import Draft, RecordType
from moorage.core.models.prices import Reserve
from moorage.core.run.state import PauseReason
from moorage.gateway.allowances import ELSEWHERE_MS, AllTaken, DayExhausted
from moorage.gateway.budget import AllReserved, demand_free
from moorage.gateway.constraints import Asking
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Run
from moorage.gateway.pausing import is_news, pausable, pause_draft
from moorage.gateway.signals import rung_within
from moorage.gateway.watching import not_at_work
from moorage.store.errors import DuplicateMismatch, RunSealed

ASKS: Final = Asking(DECISION)
LOST: Final = "GatewayLost"
ALL_TAKEN: Final = (
    "all that this namespace may ask of models at once, or today, is taken by requests under way: ask again"
)
NO_ROOM: Final = "all that is left of the run's budget is reserved for requests under way: ask again"
Gone = Callable[[], Awaitable[bool]]


class _Known(Exception):
    """The journal says so already."""


class RetriesSpent(Refusal):
    """B3: the run has sent requests again as often as it may."""

    status, reason = 503, "RetriesSpent"


class Questions:
    """One object per process: knows its own, and asks after the others'."""

    def __init__(self, gate: Gate) -> None:
        self._ledger, self._peers, self._judge = gate.ledger, gate.deps.peers, gate.judge
        self._clock, self._settings = gate.deps.clock, gate.deps.settings
        self._metrics, self._log = gate.deps.metrics, gate.deps.log
        self._here: set[str] = set()
        self._allowances = gate.allowances

    @property
    def me(self) -> str:
        """What a request's record says of whose it is."""
        return self._peers.me

    def begin(self, request_id: str) -> None:
        """This process is at it."""
        self._here.add(request_id)

    def end(self, request_id: str) -> None:
        """It is so no more, whatever it came to."""
        self._here.discard(request_id)

    async def ask(self, run: Run, epoch: int, draft: Draft, worst: Reserve, *, gone: Gone, retries: int | None) -> None:
        """Note a request, once there is room for it in the run's budget (B2) and its tenant's. `worst`: its worst
        case; `retries`: it is one, out of so many.

        Judged by the very state that its record follows. Raise Exhausted, RetriesSpent; Refusal where the room doesn't
        come, where whoever asked is `gone`, or where the attempt's agent has ended; and what the ledger raises.
        """
        has_room = partial(self._has_room, retries)
        deadline, rung, left = self._clock.monotonic_ms() + self._settings.model_room_ms, True, 1
        lacks = NO_ROOM
        while left > 0:
            bell, pause = run.bell.arm(), self._settings.keep_alive_ms
            common = self._allowances.bell(run.tenant).arm()
            await (self._ledger.woken if rung else self._ledger.refresh)(run)
            try:
                async with self._taken(run, draft, worst), self._judge.noting(run, ASKS):
                    await self._ledger.append(run, epoch, [draft], has_room)
            except AllTaken:
                bell, pause, lacks = common, ELSEWHERE_MS, ALL_TAKEN
            except AllReserved:
                lacks = NO_ROOM
            else:
                return
            left = deadline - self._clock.monotonic_ms()
            rung = await rung_within(bell, min(left, pause)) and bell is not common
            if await gone():
                break
        raise Refusal(lacks, status=429, reason="BudgetReserved", headers={"retry-after": "5"})

    @contextlib.asynccontextmanager
    async def _taken(self, run: Run, draft: Draft, reserve: Reserve) -> AsyncIterator[None]:
        """C5: of the tenant's allowance, too. Who finds its day used up is paused until the next one."""
        try:
            async with self._allowances.taken(run.tenant, str(draft.request_id), reserve):
                yield
        except DayExhausted as error:
            await self._pause(run, error)
            raise

    async def _pause(self, run: Run, error: DayExhausted) -> None:
        def still_news(run: Run) -> None:
            if not (pausable(run.state) and is_news(run.state, PauseReason.DAY)):
                raise _Known

        line, most = error.short.line, error.short.most
        draft = pause_draft(
            self._ledger, run, PauseReason.DAY, str(error), by="contract", limit=line, most=most, until=error.until
        )
        with contextlib.suppress(_Known):
            await self._ledger.append(run, None, [draft], still_news)

    def _has_room(self, retries: int | None, run: Run) -> None:
        if run.state.agent_end is not None:  # what it has left behind asks on, and nobody is to pay for that
            raise not_at_work("its agent has ended")
        if retries is not None and run.state.usage.model_retries >= retries:
            raise RetriesSpent("the run has spent its retries at this provider: ask again")
        demand_free(run.limits, self._judge.demand(run, ASKS), run.facts)

    async def settle(self, run: Run) -> None:
        """B2: what was asked by a gateway that is gone is charged at its worst case. Raise as the store does."""
        others = {key: each for key, each in run.facts.asked.items() if key not in self._here}
        lost = {name for name in {each.gateway for each in others.values()} if await self._lost(run, name)}
        for request_id, question in others.items():
            if question.gateway in lost:
                await self._charge(run, request_id, question.reserve)

    async def _lost(self, run: Run, gateway: str | None) -> bool:
        """Whether nobody is at what that gateway asked, which isn't here. Older versions didn't say whose it is, and
        reserved nothing: that is given up once the run has ended, since its parent waits for it.
        """
        if gateway is None:
            return run.state.end is not None
        return gateway == self._peers.me or await self._peers.gone(gateway)

    async def _charge(self, run: Run, request_id: str, reserve: Reserve) -> None:
        said = {"status": 0, "usage": reserve.charged, "complete": False, "estimated": True, "problem": LOST}
        draft = self._ledger.observed(
            RecordType.MODEL_RESPONSE, said, request_id, request_id=request_id, attempt=run.state.attempt
        )
        self._log.warning("model_answer_lost", run_uid=run.uid, request_id=request_id)
        with contextlib.suppress(DuplicateMismatch, RunSealed):  # it was answered just now, or the run is let go of
            await self._ledger.append(run, None, [draft])
        await self._allowances.answered(request_id, None)
