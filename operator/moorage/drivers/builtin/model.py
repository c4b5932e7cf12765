"""Asks the model by way of the relay, and asks again while a failure may pass.

Retries spend from one visible purse per decision: `patience_s` of waiting, whatever the failures were. A wait is the
provider's own Retry-After, else exponential with full jitter. Each repetition says that it is one, so that the gateway
can give an answer that it has recorded already instead of asking for a second decision (R2).
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from moorage.drivers.builtin.answer import Answer, Malformed
from moorage.drivers.builtin.conversation import Conversation

DOORS = "/model"
REPLAYED_HEADER = "x-moorage-replayed"
PAUSES = {"x-moorage-pauses": "1"}  # R8: it knows what a refusal means that begins with RunPausing
NO_ROOM = "context_length_exceeded"  # OpenAI's code for what Anthropic says by a stop reason
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
READ_S = 630.0  # just above the gateway's own limit for silence, so that its word comes first
MAX_SAID = 500


class ModelError(RuntimeError):
    """No decision could be had. `reason` is stable and fit for a status."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Pausing(ModelError):
    """The gateway grants no further request: the run stops here, and goes on later."""


class BudgetSpent(ModelError):
    """The gateway grants no further request: a hard limit is reached."""


@dataclass(frozen=True)
class Retries:
    """How patient one decision is. Seconds."""

    patience_s: float = 300.0
    first_s: float = 0.5
    longest_s: float = 20.0


@dataclass(frozen=True)
class _Failure:
    """Why one request brought nothing, and how long the provider wants to be left alone."""

    reason: str
    message: str
    wait_s: float | None = None


class ModelClient:
    """Asks in the words of `talk`. `sleep`, `draw` (a fraction in [0, 1)) and `now` can be given by a test."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        retries: Retries,
        talk: Conversation,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http, self._retries, self._talk = http, retries, talk
        self._sleep, self._draw, self._now = sleep, draw, now

    async def ask(self, body: Mapping[str, Any], turn: int) -> Answer:
        """One decision. Raises BudgetSpent, Pausing, ModelError."""
        deadline = self._now() + self._retries.patience_s
        attempt = 0
        while True:
            told = await self._once(body, turn, attempt)
            if isinstance(told, Answer):
                return told
            wait = told.wait_s if told.wait_s is not None else self._backoff(attempt)
            if self._now() + wait > deadline:
                why = f"{told.message} (asked {attempt + 1} times; the patience is {self._retries.patience_s:.0f} s)"
                raise ModelError(told.reason, why)
            await self._sleep(wait)
            attempt += 1

    def _backoff(self, attempt: int) -> float:
        top = min(self._retries.longest_s, self._retries.first_s * float(1 << min(attempt, 16)))
        return top * self._draw()

    async def _once(self, body: Mapping[str, Any], turn: int, attempt: int) -> Answer | _Failure:
        spoken = self._talk.spoken
        headers = {**spoken.versioned, **PAUSES, "x-moorage-turn": str(turn), "x-stainless-retry-count": str(attempt)}
        try:
            response = await self._http.post(f"{DOORS}{spoken.path}", json=body, headers=headers)
        except httpx.TransportError as error:
            return _Failure("ModelUnavailable", f"the answer was cut or never came ({type(error).__name__})")
        if response.is_success:
            try:
                answer, told = self._talk.read(response.content), response.headers
                return replace(answer, replayed=REPLAYED_HEADER in told)
            except Malformed as error:
                return _Failure("ModelMalformed", f"the model's answer can't be read: {error}")
        return _judge(response)


def client(relay_url: str, dummy_key: str) -> httpx.AsyncClient:
    """A client of the relay; the key opens nothing, the relay puts in what does.

    The relay is in this sandbox and speaks no TLS, so nobody's certificate is trusted, and none is read at each start.
    """
    timeout, trusted = httpx.Timeout(READ_S, connect=10.0), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    headers = {"x-api-key": dummy_key}
    return httpx.AsyncClient(base_url=relay_url, headers=headers, timeout=timeout, trust_env=False, verify=trusted)


def _judge(response: httpx.Response) -> _Failure:
    """A failure that may pass; raises ModelError for one that won't."""
    status, told = response.status_code, _error(response)
    said = str(told.get("message", response.text))[:MAX_SAID]
    if said.startswith("RunPausing"):
        raise Pausing("Paused", said)
    if said.startswith("BudgetExhausted"):
        raise BudgetSpent("BudgetExhausted", said)
    final = response.headers.get("x-should-retry") == "false"
    if status in PASSING and not final:
        return _Failure("ModelUnavailable", f"HTTP {status}: {said}", _retry_after(response))
    if told.get("code") == NO_ROOM:
        raise ModelError("ContextExceeded", said)
    reason = "ModelUnauthorized" if status in {401, 403} else "ModelRefused"
    raise ModelError(reason, f"HTTP {status}: {said}")


def _error(response: httpx.Response) -> Mapping[str, Any]:
    """The provider's own words, in the shape that all protocols have; none where it isn't that."""
    try:
        told = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return told if isinstance(told, Mapping) else {}


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds, from either of the header's two forms; None where there is none that can be read."""
    raw = response.headers.get("retry-after", "").strip()
    if not raw:
        return None
    try:
        return max(0.0, float(raw))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(raw)
    except ValueError:
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
