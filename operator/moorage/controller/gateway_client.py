"""The gateway's doors for the operator, as calls: wire models in, the run's view out, typed refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, TypeAdapter, ValidationError

from moorage.api.children import ChildOrder, SettleRequest
from moorage.api.commands import CommandRequest, Receipt
from moorage.api.faults import faults
from moorage.api.wire import (
    Admission,
    AllowanceList,
    AllowanceRequest,
    AllowanceUse,
    Change,
    DeliverRequest,
    ErrorBody,
    FenceRequest,
    PodRegistration,
    ReportedRecord,
    ReportRequest,
    ResolvedRun,
)
from moorage.core.run.view import RUN_LIST, RUN_VIEW, RunBrief, RunView

T = TypeVar("T")
RECEIPT = TypeAdapter(Receipt)
CHILD_ORDER = TypeAdapter(ChildOrder)
ALLOWANCE_USE, ALLOWED = TypeAdapter(AllowanceUse), TypeAdapter(AllowanceList)
Token = Callable[[], str]
CALL_TIMEOUT_S = 10.0
DELIVER_TIMEOUT_S = 180.0  # a push upstream takes as long as the remote does
KEPT_S = 60.0  # less than the gateway's server does
BROKEN = frozenset({"JournalCorrupted", "UnknownCritical"})
"""Reasons of a 500 that no asking again mends: people must hear of the run's journal, not of an absent gateway."""
NO_DOOR = frozenset({404, 405})
FEED_SILENCE_S = 15.0  # the feed says something every 10 s
READY_TIMEOUT_S = 2.0


class GatewayAway(RuntimeError):
    """No answer, or one that says to ask again. Nothing is known to have happened. `reason` is the gateway's own, where
    it has told one.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        self.message, self.reason = message, reason
        super().__init__(f"{reason}: {message}" if reason else message)


class GatewayRefused(RuntimeError):
    """The gateway won't: `reason` is stable, the message says why."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{reason}: {message}")


def token_file(path: Path) -> Token:
    """Read anew at each call: the kubelet rotates it."""
    return lambda: path.read_text().strip()


def session(connector: aiohttp.BaseConnector | None = None) -> aiohttp.ClientSession:
    """A session for the gateway: no cookies, no proxy; `connector` None is TCP. The caller closes it."""
    return aiohttp.ClientSession(
        connector=connector or aiohttp.TCPConnector(keepalive_timeout=KEPT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


class GatewayClient:
    """`url` is where the gateway is, without a path; `http` is the caller's to close.

    `may_change` is asked before each call that changes something (F7): what a process saw before it was stopped for a
    minute must not become an order when it is woken.
    """

    def __init__(
        self, http: aiohttp.ClientSession, url: str, token: Token, may_change: Callable[[], bool] = lambda: True
    ) -> None:
        self._http, self._token, self._may_change = http, token, may_change
        self.url = url.rstrip("/")

    async def view(self, uid: str) -> RunView | None:
        """The run as its journal has it; None where it was never admitted."""
        try:
            return await self._view("GET", f"/v1/runs/{uid}")
        except GatewayRefused as e:
            if e.status == 404:
                return None
            raise

    async def admit(self, spec: ResolvedRun, fence: FenceRequest | None = None) -> RunView:
        """O6: idempotent on the spec's hash. F2: with its first fence in one step, where the Lease needs no look.

        R8: children, and runs that go on with another one, have doors of their own. A gateway of a release before them
        would admit one without its share, or outside its session.
        """
        body = Admission.model_construct(**spec.__dict__, fence=fence)
        if spec.parent is None and spec.origin is None:
            return await self._view("PUT", f"/v1/runs/{spec.uid}", body)
        door, unknown = ("as-child", "children") if spec.parent is not None else ("as-next", "sessions")
        try:
            return await self._view("PUT", f"/v1/runs/{spec.uid}/{door}", body)
        except GatewayRefused as e:
            if e.status in NO_DOOR:
                why = f"a gateway of an earlier release answers, which knows no {unknown}: replace it"
                raise GatewayAway(why) from e
            raise

    async def fence(self, uid: str, request: FenceRequest) -> RunView:
        """F2: raise the epoch."""
        return await self._view("POST", f"/v1/runs/{uid}/fence", request)

    async def register(self, uid: str, pod: PodRegistration) -> RunView:
        """F2: this pod is that run's."""
        return await self._view("POST", f"/v1/runs/{uid}/pods", pod)

    async def report(self, uid: str, epoch: int, records: Sequence[ReportedRecord]) -> RunView:
        """Facts that the operator saw."""
        return await self._view("POST", f"/v1/runs/{uid}/records", ReportRequest(epoch=epoch, records=tuple(records)))

    async def command(self, uid: str, asked: CommandRequest) -> Receipt:
        """M2: pass a command on. Repeated, it answers with the same command's receipt."""
        content = await self._call("POST", f"/v1/runs/{uid}/commands", asked)
        return _read(RECEIPT, content)

    async def deliver(self, uid: str, request: DeliverRequest) -> RunView:
        """Push upstream, or settle an earlier try."""
        return await self._view("POST", f"/v1/runs/{uid}/deliver", request, DELIVER_TIMEOUT_S)

    async def settle(self, uid: str, request: SettleRequest) -> RunView:
        """B2: the shares of children that ended."""
        return await self._view("POST", f"/v1/runs/{uid}/children", request)

    async def child_order(self, uid: str, name: str) -> ChildOrder:
        """What the run's agent asked for under that name."""
        return _read(CHILD_ORDER, await self._call("GET", f"/v1/runs/{uid}/children/{name}"))

    async def release(self, uid: str) -> None:
        """The run's refs away; harmless where the run isn't known or was released already."""
        try:
            await self._call("POST", f"/v1/runs/{uid}/release")
        except GatewayRefused as e:
            if e.status != 404:
                raise

    async def pending(self) -> tuple[RunBrief, ...]:
        """Runs that have not ended, and ended ones that have not been released."""
        return _read(RUN_LIST, await self._call("GET", "/v1/runs?pending=true")).runs

    async def allow(self, namespace: str, allowance: AllowanceRequest) -> AllowanceUse:
        """C5: what the namespace may take of models from now on; what it has taken today."""
        content = await self._call("PUT", f"/v1/namespaces/{namespace}/allowance", allowance)
        return _read(ALLOWANCE_USE, content)

    async def allowed(self) -> tuple[str, ...]:
        """The namespaces that have been told an allowance."""
        return _read(ALLOWED, await self._call("GET", "/v1/allowances")).namespaces

    async def ready(self) -> None:
        """Returns where a gateway could take a heartbeat now; else raises GatewayAway, soon."""
        await self._call("GET", "/readyz", wait_s=READY_TIMEOUT_S)

    async def changes(self, after: int, opened: Callable[[], None]) -> AsyncIterator[Change | None]:
        """The feed from a cursor on; None is a sign of life. Ends where the gateway ends it. `opened` is called once
        the gateway has agreed to tell.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_TIMEOUT_S, sock_read=FEED_SILENCE_S)
        url = f"{self.url}/v1/changes?after={after}"
        try:
            async with self._http.get(url, headers=self._headers(), timeout=timeout) as answer:
                if answer.status >= 400:
                    raise _refusal(answer.status, await answer.read())
                opened()
                async for line in answer.content:
                    yield Change.model_validate_json(line) if len(line.strip()) > 2 else None
        except (aiohttp.ClientError, OSError, ValueError) as e:
            raise GatewayAway(f"the changes feed broke off: {type(e).__name__} {e}") from e

    async def _view(
        self, method: str, path: str, body: BaseModel | None = None, wait_s: float = CALL_TIMEOUT_S
    ) -> RunView:
        return _read(RUN_VIEW, await self._call(method, path, body, wait_s))

    async def _call(
        self, method: str, path: str, body: BaseModel | None = None, wait_s: float = CALL_TIMEOUT_S
    ) -> bytes:
        if method != "GET" and not self._may_change():
            raise GatewayAway(f"{method} {path}: this operator doesn't lead, and changes nothing")
        content = body.model_dump_json().encode() if body is not None else None
        timeout = aiohttp.ClientTimeout(total=wait_s)
        try:
            async with self._http.request(
                method, f"{self.url}{path}", data=content, headers=self._headers(), timeout=timeout
            ) as answer:
                found = await answer.read()
        except (aiohttp.ClientError, OSError) as e:
            raise GatewayAway(f"{method} {path.partition('?')[0]}: {type(e).__name__} {e}") from e
        if answer.status >= 400:
            raise _refusal(answer.status, found)
        return found

    def _headers(self) -> dict[str, Any]:
        return {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}


def _read(kind: TypeAdapter[T], content: bytes) -> T:
    """R8: another version's answer that says what this one doesn't know is refused by name."""
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        why = f"this operator can't read the gateway's answer ({faults(error, 'answer')}): bring both to one version"
        raise GatewayRefused(200, "Unreadable", why) from None


def _refusal(status: int, content: bytes) -> GatewayRefused | GatewayAway:
    try:
        body = ErrorBody.model_validate_json(content)
    except ValidationError:
        body = ErrorBody(reason="Unreadable", message=f"HTTP {status}")
    passes = status in {408, 425, 429} or status >= 500
    if passes and body.reason not in BROKEN:
        return GatewayAway(body.message, body.reason)
    return GatewayRefused(status, body.reason, body.message)
