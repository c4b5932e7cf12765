"""The gateway as the runner calls it: the current token on each request, patience with outages, typed ends.

Every report carries record ids of its own, so a repeated one adds nothing; therefore everything here may be retried.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from moorage.api.children import ChildAnswer, ChildList, SpawnRequest
from moorage.api.commands import ConsentAnswer, ConsentRequest, WaitingMessages
from moorage.api.wire import ErrorBody, Reported, ReportRequest
from moorage.api.wirebase import Wire
from moorage.api.work import (
    Assignment,
    CheckpointReport,
    Conversation,
    Heartbeat,
    Orders,
    ResultReport,
    VerificationReport,
)
from moorage.runner.exchange import Answer, NoAnswer, request
from moorage.workspace.errors import BeingFetched, NetworkUnreachable, TimedOut

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 2.0
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
NO_DOOR = "NoSuchDoor"
ENDED = frozenset({"RunEnded", "Cancelling", "Terminal"})
SLOW_TRIES = 3  # times that git may use up its own time limit: each is minutes
ANSWER_TIMEOUT_S = 60.0
ORDERS_TIMEOUT_S = 40.0
HEARTBEAT_TIMEOUT_S = 8.0  # one that hangs must not keep the next ones back for as long as a Lease lasts
T = TypeVar("T", bound=Wire)
R = TypeVar("R")


class GatewayError(RuntimeError):
    """The gateway refused: its reason and message, and its status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{reason}: {message}")


class Fenced(GatewayError):
    """F3: another attempt owns the run. Stop at once and write nothing more."""


class NotWanted(GatewayError):
    """The run has ended or is being cancelled, or its workspace's remote refuses: this attempt has nothing to do."""


PREPARING = frozenset({"WorkspaceFetching", "BranchTaken"})
"""Reasons of a 503 that the gateway itself bounds: their end is another answer."""


class Preparing(GatewayError):
    """The gateway is there; it fetches what the assignment takes, or waits until the run may have its branch."""


class TokenUnreadable(RuntimeError):
    """The projected token isn't there at this moment."""


class GatewayLost(RuntimeError):
    """The gateway did not answer for as long as we are patient."""


class GatewayClient:
    """All calls may be repeated. `patience_s` bounds how long an outage is waited for."""

    def __init__(self, gateway: str, token_file: Path, *, patience_s: float) -> None:
        self._gateway, self._token_file = gateway, token_file
        self._patience_s = patience_s

    async def assignment(self) -> Assignment:
        """What this sandbox is for; waits until it is registered (425), and while the gateway prepares it: that is no
        outage.
        """
        return await self._call(Assignment, "GET", "/v1/self")

    async def decision(self) -> bytes:
        """The model request, as it was sent, whose recorded answer this attempt begins with."""
        return await self.patiently(lambda: self._answer("GET", "/v1/self/decision"))

    async def conversation(self) -> Conversation:
        """What the model of the run before, with whose work this one goes on, was asked last and has answered."""
        return await self._call(Conversation, "GET", "/v1/self/conversation")

    async def records(self, report: ReportRequest) -> Reported:
        """Append facts."""
        return await self._call(Reported, "POST", "/v1/self/records", report)

    async def checkpoint(self, report: CheckpointReport) -> Reported:
        """Count a safe point."""
        return await self._call(Reported, "POST", "/v1/self/checkpoint", report)

    async def result(self, report: ResultReport) -> Reported:
        """Hand over the agent's end."""
        return await self._call(Reported, "POST", "/v1/self/result", report)

    async def verification(self, report: VerificationReport) -> Reported:
        """Hand over a verdict."""
        return await self._call(Reported, "POST", "/v1/self/verification", report)

    async def heartbeat(self, beat: Heartbeat) -> Orders:
        """Say that we live. Not repeated: the next one is better than a late one."""
        return await self._once(Orders, "POST", "/v1/self/heartbeat", beat, read_s=HEARTBEAT_TIMEOUT_S)

    async def orders(self, after: int, heard: int) -> Orders:
        """Wait for an order above `after` or a message above `heard`, up to the gateway's own limit."""
        path = f"/v1/self/orders?after={after}&heard={heard}"
        return await self._once(Orders, "GET", path, read_s=ORDERS_TIMEOUT_S)

    async def consent(self, asked: ConsentRequest) -> ConsentAnswer:
        """Whether a tool call may run (T6); `pending` after the gateway's own limit."""
        return await self._call(ConsentAnswer, "POST", "/v1/self/consent", asked)

    async def messages(self) -> WaitingMessages:
        """What people have said to the agent and it hasn't got; an older gateway has no such door, and nothing (R8)."""
        try:
            return await self._call(WaitingMessages, "GET", "/v1/self/messages")
        except GatewayError as error:
            if error.reason != NO_DOOR:
                raise
            return WaitingMessages()

    async def spawn(self, asked: SpawnRequest) -> ChildAnswer:
        """Have a child started (O2)."""
        return await self._call(ChildAnswer, "POST", "/v1/self/children", asked)

    async def children(self) -> ChildList:
        """All children of the run."""
        return await self._call(ChildList, "GET", "/v1/self/children")

    async def child(self, name: str, within_s: float) -> ChildAnswer:
        """How far a child is, as soon as it has ended; not over after that time, or the gateway's own limit."""
        path = f"/v1/self/children/{name}?within_ms={round(within_s * 1_000)}"
        return await patiently(lambda: self._once(ChildAnswer, "GET", path, read_s=ORDERS_TIMEOUT_S), self._patience_s)

    async def patiently(self, call: Callable[[], Awaitable[R]]) -> R:
        """Something else that goes by way of the gateway and may be repeated: git."""
        return await patiently(call, self._patience_s)

    async def _call(self, answer: type[T], method: str, path: str, body: Wire | None = None) -> T:
        return await patiently(lambda: self._once(answer, method, path, body), self._patience_s)

    async def _once(
        self, answer: type[T], method: str, path: str, body: Wire | None = None, read_s: float = ANSWER_TIMEOUT_S
    ) -> T:
        return answer.model_validate_json(await self._answer(method, path, body, read_s))

    async def _answer(
        self, method: str, path: str, body: Wire | None = None, read_s: float = ANSWER_TIMEOUT_S
    ) -> bytes:
        headers = {"authorization": f"Bearer {await self._token()}", "content-type": "application/json"}
        content = body.model_dump_json().encode() if body is not None else b""
        response = await request(self._gateway, f"{method} {path}", headers, content, within_s=read_s)
        if response.is_success:
            return response.body
        raise _refusal(response)

    async def _token(self) -> str:
        try:
            return (await asyncio.to_thread(self._token_file.read_text)).strip()
        except OSError as error:
            raise TokenUnreadable(str(error)) from None


async def patiently(call: Callable[[], Awaitable[R]], patience_s: float) -> R:
    """Repeat a call while its failure may pass, with full jitter. Raise GatewayLost when patience ends.

    What the gateway prepares is no outage, however long it takes; neither is git that was too slow a few times. Such
    time uses up no patience, and gives none back.
    """
    deadline = time.monotonic() + patience_s
    pause, slow = FIRST_PAUSE_S, 0
    while True:
        began = time.monotonic()
        try:
            return await call()
        except (Preparing, BeingFetched, TimedOut) as error:
            slow += isinstance(error, TimedOut)
            if slow == SLOW_TRIES:
                raise
            await asyncio.sleep(FIRST_PAUSE_S)
            deadline, pause = deadline + time.monotonic() - began, FIRST_PAUSE_S
            continue
        except GatewayError as error:
            if error.status not in PASSING:
                raise
            why = str(error)
        except (NoAnswer, NetworkUnreachable, TokenUnreadable) as error:
            why = f"{type(error).__name__}: {error}"
        if time.monotonic() >= deadline:
            raise GatewayLost(f"no answer from the gateway for {patience_s:.0f} s; last: {why}")
        await asyncio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311  jitter, not a secret
        pause = min(pause * 1.6, LONGEST_PAUSE_S)


def _refusal(response: Answer) -> GatewayError:
    try:
        body = ErrorBody.model_validate_json(response.body)
    except ValidationError:
        body = ErrorBody(reason=f"HTTP{response.status}", message=response.body.decode("utf-8", "replace")[:500])
    kind: type[GatewayError] = GatewayError
    if body.reason == "Fenced":
        kind = Fenced
    elif body.reason in ENDED or response.status == HTTPStatus.FAILED_DEPENDENCY:
        kind = NotWanted
    elif body.reason in PREPARING:
        kind = Preparing
    return kind(response.status, body.reason, body.message)
