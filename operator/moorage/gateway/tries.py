"""A model request with all its tries at the provider: one decision, whatever it takes (O1).

What nobody has heard any of is tried again, out of a budget that the journal counts (B3). Each try has its own pair of
records, reserves anew, and waits for its turn like any request: while it waits before that, it holds nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import Response

from moorage.api.wire import ResolvedModel
from moorage.core.models.retries import pause_ms
from moorage.gateway.ask import RETRIES_HEADER, Ask
from moorage.gateway.errors import Refusal
from moorage.gateway.exchange import Exchange, Shared, Unanswered, stopped
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.questions import Gone, RetriesSpent
from moorage.gateway.signals import rung_within


class Tries:
    """Of one request, used once. `gone`: whether whoever asked has gone away."""

    def __init__(self, gate: Gate, caller: Caller, shared: Shared, gone: Gone) -> None:
        self._gate, self._caller, self._shared, self._gone = gate, caller, shared, gone
        self._metrics, self._settings = gate.deps.metrics, gate.deps.settings

    async def run(self, ask: Ask, model: ResolvedModel, credential: Mapping[str, str]) -> Response:
        """The answer, or the last of the failures, as the agent gets it. Raise Refusal."""
        self._shared.breakers.demand((self._caller.run.tenant, model.provider))
        outcome = await self._try(ask, model, credential)
        while isinstance(outcome, Unanswered) and await self._paused(outcome, ask, model):
            again = ask.retry()
            try:
                following = await self._try(again, model, credential)
            except RetriesSpent:
                break
            self._metrics.model_retries.labels(ask.protocol.name, str(outcome.failed.status)).inc()
            ask, outcome = again, following
        return outcome if isinstance(outcome, Response) else _last(outcome, ask)

    async def _try(self, ask: Ask, model: ResolvedModel, credential: Mapping[str, str]) -> Response | Unanswered:
        self._shared.given.begin(ask.request_id)
        heard = False
        try:
            outcome = await Exchange(self._gate, self._caller, ask, self._shared, self._gone).run(model, credential)
            heard = isinstance(outcome, Response)
        finally:
            if not heard:
                self._shared.given.missed(ask.request_id)
        return outcome

    async def _paused(self, outcome: Unanswered, ask: Ask, model: ResolvedModel) -> bool:
        """Whether there is another try, once the time for it has come."""
        left = model.retries.budget - self._caller.run.state.usage.model_retries
        wait = pause_ms(model.retries, outcome.failed, ask.tries, left, self._gate.deps.lot())
        if wait is None or not await self._waited(wait):
            return False
        self._metrics.model_retry_wait.observe(wait / 1000)
        return True

    async def _waited(self, wait_ms: int) -> bool:
        """False once somebody has stopped the run, or whoever asked is gone: nobody waits for the answer then."""
        clock, run = asyncio.get_running_loop().time, self._caller.run
        end = clock() + wait_ms / 1000
        while not stopped(run) and not await self._gone():
            bell, left = run.bell.arm(), end - clock()
            if left <= 0:
                return True
            await rung_within(bell, min(int(left * 1000) + 1, self._settings.keep_alive_ms))
        return False


def _last(outcome: Unanswered, ask: Ask) -> Response:
    """What the agent hears. Raise the Refusal, where that is it."""
    if isinstance(outcome.told, Refusal):
        if ask.tries > 1:
            outcome.told.headers[RETRIES_HEADER] = str(ask.tries - 1)
        raise outcome.told
    return outcome.told
