"""Bodies in and out, once for all doors: bounded, typed, and without a word of ours on how it failed inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moorage.api.faults import faults
from moorage.api.wire import ErrorBody
from moorage.core.journal.errors import JournalError
from moorage.gateway.errors import Invalid, Refusal, TooLarge
from moorage.store.errors import StoreError
from moorage.workspace.errors import WorkspaceError

M = TypeVar("M", bound=BaseModel)
JSON = "application/json"
NDJSON = "application/x-ndjson"
KEEP_ALIVE_S = 75
"""How long servers of our doors keep an idle connection: clients drop theirs before, so that none is cut as it asks."""


async def read_body(request: Request, limit: int, take: Callable[[int], None] = lambda _: None) -> bytes:
    """The whole body, at most `limit` bytes of it; TooLarge past that, before more is read. `take` hears the size of
    each piece before it is kept, and what it raises ends the reading.
    """
    size = 0
    chunks = []
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes")
        take(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def read_model(request: Request, model: type[M], limit: int) -> M:
    """The body as `model`; Invalid names each field that is wrong, and never repeats its value."""
    body = await read_body(request, limit)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise Invalid(faults(error)) from None


def answer(model: BaseModel, status: int = 200) -> Response:
    """A model as the answer."""
    return Response(model.model_dump_json(), status, media_type=JSON)


def refusal(error: Refusal) -> Response:
    """An ErrorBody as the answer."""
    body = ErrorBody(reason=error.reason, message=error.message)
    return Response(body.model_dump_json(), error.status, headers=error.headers, media_type=JSON)


def query_int(request: Request, name: str, default: int) -> int:
    """An integer of the query; Invalid where it isn't one."""
    raw = request.query_params.get(name)
    if raw is None:
        return default
    try:
        return int(raw)
    except ValueError:
        raise Invalid(f"{name}: give an integer") from None


def query_flag(request: Request, name: str, *, default: bool = False) -> bool:
    """`?name=true` or `?name=1`."""
    told = request.query_params.get(name)
    return default if told is None else told.lower() in {"1", "true", "yes"}


class Cut(Exception):
    """What is being answered can't be brought to its end."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


CUTS = (Cut, Refusal, WorkspaceError, StoreError, JournalError)
"""After an answer has begun, each of these can only cut it."""


async def at_once(content: bytes) -> AsyncIterator[bytes]:
    """A body in one piece."""
    yield content


class Piped(Response):
    """An answer that is made while the request's body is still being read.

    Starlette's own streaming answer listens for a disconnect meanwhile, and so eats the body. A failure in the middle
    cuts the connection: the client must not take half an answer for a whole one. `heard` is called when all but the end
    is sent: from then on a server tells every client to be gone.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        status: int,
        headers: Mapping[str, str],
        kind: str,
        log: Any,
        *,
        heard: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(None, status, dict(headers), kind)
        del self.headers["content-length"]
        self._body, self._log, self._heard = body, log, heard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        """Start, pass on chunk by chunk, and end only what is whole."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._body:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except CUTS as error:
            self._log.warning("answer_cut", reason=getattr(error, "reason", type(error).__name__))
            return
        if self._heard is not None:
            await self._heard()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
