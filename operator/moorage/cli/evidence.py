"""Reading what the gateway kept of one run: journal, output and diff, whether it is in a cluster or in this process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import httpx
from pydantic import ValidationError

from moorage.api.commands import Resolved, ResolveRequest
from moorage.api.sse import Event
from moorage.api.wire import ErrorBody, Repaired, RepairRequest
from moorage.api.wirebase import Wire
from moorage.cli.exits import CliError, Denied, NotFound, Unreachable
from moorage.cli.following import Following
from moorage.core.journal.heads import SignedHead

TIMEOUTS = httpx.Timeout(30.0, read=60.0)
FOLLOWING = httpx.Timeout(30.0, read=None)
LOOK_S = 1.0  # of silence, after which it is asked whether anybody is left to break it
GO_ON = "`moorage run -f` of its manifest goes on with it; `moorage doctor` names that"

BROKEN = ("(JournalCorrupted)", "(UnknownCritical)")  # typed reasons, as `_message` ends with them

Reason = Callable[[], str]


def no_reason() -> str:
    """Nothing is known beyond what HTTP says."""
    return ""


@dataclass(frozen=True)
class Evidence:
    """The reader's doors for one run. `why` explains why a connection ended, where something knows more than HTTP.

    `published` is the head that the run's status names, where there is one (J6); `user` is who is asking; `abandoned`
    says whether nobody pushes the run on, where its owner may die without another taking over; `expected` what it waits
    for where the gateway is yet to hear of it.
    """

    client: httpx.AsyncClient
    uid: str
    name: str
    why: Reason = no_reason
    published: SignedHead | None = None
    user: str = ""
    abandoned: Callable[[], Awaitable[bool]] | None = None
    expected: Callable[[], Awaitable[str]] | None = None

    def journal(self) -> AsyncIterator[bytes]:
        """The exported journal, in chunks of any size."""
        return self._stream("journal", TIMEOUTS)

    def following(self, door: str, query: Mapping[str, str], note: Callable[[str], None]) -> Following:
        """One of the run's streams of events; `note` is told of outages."""
        path = f"/v1/runs/{self.uid}/{door}/stream"
        refuse = functools.partial(refused, name=self.name, door=door)
        return Following(self.client, path, query, refuse, self._away, note, self.expected)

    def pushed_on(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The same, as long as there is somebody of whom more may come."""
        return self._while_pushed_on(events, self.abandoned) if self.abandoned else events

    def diff(self) -> AsyncIterator[bytes]:
        """The candidate against its base."""
        return self._stream("diff", TIMEOUTS)

    def blobs(self) -> AsyncIterator[bytes]:
        """What the journal cites, as a tar."""
        return self._stream("blobs", TIMEOUTS)

    def result(self) -> AsyncIterator[bytes]:
        """The proposed commit as a git bundle."""
        return self._stream("result", TIMEOUTS)

    async def head_key(self) -> bytes | None:
        """The gateway's public key (PEM); None where it signs no heads."""
        try:
            answer = await self.client.get("/v1/keys/head", timeout=TIMEOUTS)
        except httpx.TransportError as error:
            raise self._away(error) from None
        if answer.status_code == 404:
            return None
        if answer.is_error:
            raise refused(answer, self.name, "key")
        return answer.content

    async def resolve(self, effect: str, outcome: Literal["confirmed", "rejected"], note: str) -> Resolved:
        """Say what became of an effect. Raises CliError."""
        body = ResolveRequest(effect=effect, outcome=outcome, note=note, user=self.user)
        return Resolved.model_validate_json(await self._say("resolve", body, TIMEOUTS, "effect"))

    async def repair(self, reason: str) -> Repaired:
        """Let a broken journal go on in a new generation; a long one is read first. Raises CliError."""
        body = RepairRequest(reason=reason, user=self.user)
        return Repaired.model_validate_json(await self._say("repair", body, FOLLOWING, "journal"))

    async def _say(self, door: str, body: Wire, patience: httpx.Timeout, what: str) -> bytes:
        path = f"/v1/runs/{self.uid}/{door}"
        try:
            answer = await self.client.post(path, content=body.model_dump_json(), timeout=patience)
        except httpx.TransportError as error:
            raise self._away(error) from None
        if answer.status_code == 403:
            raise Denied(_message(answer), "the role edit of the chart has it")
        if answer.is_error:
            raise refused(answer, self.name, what)
        return answer.content

    def _away(self, error: httpx.TransportError) -> Unreachable:
        return away(error, self.why)

    async def _while_pushed_on(
        self, events: AsyncGenerator[Event, None], abandoned: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[Event, None]:
        """Raises CliError where nobody works on the run any more."""
        coming: asyncio.Future[Event | None] = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                arrived, _ = await asyncio.wait({coming}, timeout=LOOK_S)
                if arrived:
                    event = coming.result()
                    if event is None:
                        return
                    yield event
                    coming = asyncio.ensure_future(anext(events, None))
                elif await abandoned():
                    raise CliError(f"{self.name} was interrupted: nobody works on it", GO_ON)
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            await events.aclose()

    async def _stream(
        self, door: str, patience: httpx.Timeout, query: dict[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        path = f"/v1/runs/{self.uid}/{door}"
        async with contextlib.AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self.client.stream("GET", path, params=query or {}, timeout=patience)
                )
                if answer.is_error:
                    await answer.aread()
                    raise refused(answer, self.name, door)
                async for chunk in answer.aiter_bytes():
                    yield chunk
            except httpx.TransportError as error:
                raise self._away(error) from None


def runs_of(
    client: httpx.AsyncClient, namespace: str, why: Reason, note: Callable[[str], None], *, follow: bool
) -> Following:
    """The stream of a namespace's runs."""
    return Following(
        client,
        f"/v1/namespaces/{namespace}/runs/stream",
        {"follow": str(follow).lower()},
        lambda answer: refused(answer, namespace, "runs"),
        lambda error: away(error, why),
        note,
    )


def away(error: httpx.TransportError, why: Reason) -> Unreachable:
    """What a connection that broke means to the person who asked."""
    return Unreachable(
        f"the gateway can't be reached: {why() or str(error) or type(error).__name__}",
        "see that it runs: kubectl -n moorage-system get pods; kubectl moorage doctor",
    )


def refused(answer: httpx.Response, name: str, door: str) -> CliError:
    """What an error status means to the person who asked."""
    told = _message(answer)
    if answer.status_code in {401, 403}:
        return Denied(f"the gateway refused to show the {door} of {name}: {told}", "you need get on agentruns there")
    if answer.status_code == 404:
        return NotFound(f"the gateway has no {door} of {name}: {told}")
    if told.endswith(BROKEN):
        return CliError(f"not intact: {told}", "moorage verify says how much of it is sound")
    if answer.status_code >= 500:
        return Unreachable(f"the gateway has trouble: {told}", "try again in a moment")
    return CliError(f"the gateway refused: {told}")


def _message(answer: httpx.Response) -> str:
    try:
        body = ErrorBody.model_validate_json(answer.content)
    except ValidationError:
        return f"HTTP {answer.status_code}"
    return f"{body.message} ({body.reason})"
