"""The breakers of all providers that this gateway asks, each of one tenant: nobody hears of another's."""

from __future__ import annotations

import math
from typing import Any

from moorage.clock import Clock
from moorage.core.models.breaker import Breaker, Policy
from moorage.core.models.retries import Failed
from moorage.gateway.errors import Refusal
from moorage.telemetry.metrics import GatewayMetrics


class ProviderDown(Refusal):
    """The provider has failed so often that nobody asks it for a while. Ask again later."""

    status, reason = 503, "ProviderDown"

    def __init__(self, provider: str, wait_ms: int) -> None:
        wait = str(math.ceil(wait_ms / 1000))
        why = f"ModelProvider {provider} doesn't answer, and is left alone for a while: ask again in {wait} s"
        super().__init__(why, headers={"retry-after": wait})


class Breakers:
    """One object per process. `place`: tenant and name of a provider."""

    def __init__(self, policy: Policy, clock: Clock, metrics: GatewayMetrics, log: Any) -> None:
        self._policy, self._clock, self._metrics, self._log = policy, clock, metrics, log
        self._known: dict[tuple[str, str], Breaker] = {}

    def demand(self, place: tuple[str, str]) -> None:
        """Raise ProviderDown where none may pass."""
        if wait := self._at(place).wait_ms(self._policy, self._clock.monotonic_ms()):
            raise ProviderDown(place[1], wait)

    def passing(self, place: tuple[str, str]) -> None:
        """One passes, and what came of it is told afterwards. Raise ProviderDown where none may."""
        self.demand(place)
        self._set(place, self._at(place).passed(self._clock.monotonic_ms()))

    def ended(self, place: tuple[str, str], failed: Failed | None) -> None:
        """One that had passed was answered, or failed."""
        if failed is None or not failed.fault:
            self._set(place, self._at(place).succeeded())
            return
        now = self._clock.monotonic_ms()
        self._set(place, self._at(place).failure(self._policy, now, failed.asked_ms or 0))

    def dropped(self, place: tuple[str, str]) -> None:
        """One that had passed came to nothing, and says nothing of the provider."""
        self._set(place, self._at(place).dropped())

    def _tell(self, place: tuple[str, str], after: Breaker) -> None:
        tenant, provider = place
        self._metrics.model_breaker_moves.labels("closed" if after.closed else "open").inc()
        if after.closed:
            self._log.info("provider_answers_again", tenant=tenant, provider=provider)
        else:
            wait = after.until - self._clock.monotonic_ms()
            self._log.warning("provider_left_alone", tenant=tenant, provider=provider, failed=after.failed, for_ms=wait)

    def _at(self, place: tuple[str, str]) -> Breaker:
        return self._known.get(place, Breaker())

    def _set(self, place: tuple[str, str], after: Breaker) -> None:
        before = self._at(place)
        if before.opened != after.opened:
            self._tell(place, after)
        if after == Breaker():
            self._known.pop(place, None)  # nothing is kept of a provider that answers
        else:
            self._known[place] = after
        self._metrics.model_breakers_open.set(sum(not each.closed for each in self._known.values()))
