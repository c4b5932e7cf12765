"""The stand-in's HTTP side: chooses the reply, lets happen what the script wants to go wrong, logs each request."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moorage.core.journal.canonical import canonical
from moorage.core.journal.errors import NotCanonical
from moorage.testing.models import anthropic, chat, responses
from moorage.testing.models.script import Fault, Reply, Script
from moorage.testing.models.speaking import Speaker
from moorage.testing.serving import listening

SPEAKERS: dict[str, Speaker] = {
    "/v1/messages": anthropic,
    "/v1/responses": responses,
    "/v1/chat/completions": chat,
}
EVENT_STREAM = "text/event-stream"
OVERLOADED = 529
PIECE = 64  # bytes of a whole answer that drips


@dataclass(frozen=True)
class Logged:
    """One request. `key` is the hash of its canonical bytes: a decision asked for twice has one key twice.

    `api_key` is the credential as it came, `at` the wall clock in milliseconds, `reply` the number in the script (-1:
    refused before one was chosen), `status` what was answered (0: cut before an answer).
    """

    protocol: str
    key: str
    api_key: str | None
    at: int
    status: int
    model: str = ""
    stream: bool = False
    reply: int = -1
    fault: str | None = None


class StandIn:
    """One stand-in over one script; `app` is the ASGI application, `log` what was asked, `bodies` word by word."""

    def __init__(self, script: Script) -> None:
        self.log: list[Logged] = []
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self._script = script
        self._asked: Counter[tuple[str, int]] = Counter()  # by the conversation's first line and the reply
        self._numbers: dict[str, int] = {}
        log = Route("/_log", self._show_log, methods=["GET"])
        doors = [Route(path, self._door, methods=["POST"]) for path in SPEAKERS]
        count = Route("/v1/messages/count_tokens", self._count, methods=["POST"])
        self.app = Starlette(routes=[*doors, count, log])

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[StandIn]:
        """Listen on a free port of loopback; `url` is then the provider's base URL."""
        async with listening(self.app) as url:
            self.url = url
            yield self

    async def _show_log(self, _: Request) -> Response:
        return JSONResponse([asdict(entry) for entry in self.log])

    async def _count(self, request: Request) -> Response:
        """Anthropic's question for the tokens of a request: a quarter of its bytes."""
        return JSONResponse({"input_tokens": len(await request.body()) // 4})

    async def _door(self, request: Request) -> Response:
        speaker, asked = _speaker(request), await _json(request)
        wrong = speaker.problem(asked) if asked is not None else "the body is no JSON object"
        if asked is None or wrong is not None:
            self._note(request, asked or {}, 400)
            return JSONResponse(speaker.error(400, wrong or ""), 400)
        self.bodies.append(asked)
        opening = speaker.opening(asked)
        number, reply = self._script.choose(opening, self._done(speaker, asked))
        place = (opening.partition("\n")[0], number)
        fault = reply.fault(self._asked[place])
        self._asked[place] += 1
        status = _status(fault, streams=asked.get("stream") is True)
        self._note(request, asked, status, number, fault)
        if status != 200 and fault is not None:
            return _refusal(speaker, fault, status)
        return _answer(speaker, asked, number, reply, fault)

    def _done(self, speaker: Speaker, asked: dict[str, Any]) -> int:
        if self._script.by == "steps":
            return speaker.done(asked)
        return self._numbers.setdefault(_key(asked), len(self._numbers))  # one that is asked again has its number

    def _note(
        self, request: Request, asked: dict[str, Any], status: int, reply: int = -1, fault: Fault | None = None
    ) -> None:
        self.log.append(
            Logged(
                protocol=_speaker(request).PROTOCOL,
                key=_key(asked),
                api_key=_credential(request),
                at=time.time_ns() // 1_000_000,
                status=status,
                model=str(asked.get("model", "")),
                stream=asked.get("stream") is True,
                reply=reply,
                fault=fault.kind if fault else None,
            )
        )


class Pieces(Response):
    """An answer piece by piece, `pause` seconds between them; one that ends without `whole` cuts the connection."""

    def __init__(
        self, pieces: Iterable[bytes], kind: str, *, pause: float = 0, silence: float = 0, whole: bool
    ) -> None:
        super().__init__(None, 200, media_type=kind)
        del self.headers["content-length"]
        self._pieces, self._pause, self._silence, self._whole = pieces, pause, silence, whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        """Send; give up early when the client is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(self._pause)
        await asyncio.sleep(self._silence)
        if self._whole:
            await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _status(fault: Fault | None, *, streams: bool) -> int:
    if fault is not None and fault.kind == "overloaded" and not streams:
        return OVERLOADED
    return fault.status if fault is not None and fault.kind == "status" else 200


def _refusal(speaker: Speaker, fault: Fault, status: int) -> Response:
    headers = {} if fault.retry_after_s is None else {"retry-after": f"{fault.retry_after_s:g}"}
    return JSONResponse(speaker.error(status, fault.message), status, headers)


def _answer(speaker: Speaker, asked: dict[str, Any], number: int, reply: Reply, fault: Fault | None) -> Response:
    if fault is not None and fault.kind == "empty":
        reply = Reply(usage=reply.usage)
    model, streams = asked["model"], asked.get("stream") is True
    whole = json.dumps(speaker.message(reply, number, model)).encode()
    pieces = list(speaker.events(reply, number, asked)) if streams else _split(whole)
    kind = EVENT_STREAM if streams else "application/json"
    match fault.kind if fault else None:
        case "cut" if fault:
            return Pieces(pieces[: min(fault.after, len(pieces) - 1)], kind, whole=False)
        case "stall" if fault:
            return Pieces([], kind, silence=fault.seconds, whole=False)
        case "overloaded" if fault:
            return Pieces([_overloaded(speaker, fault)], kind, whole=True)
        case "drip" if fault:
            return Pieces(pieces, kind, pause=fault.seconds, whole=True)
        case _:
            return Pieces(pieces, kind, whole=True) if streams else Response(whole, 200, media_type=kind)


def _overloaded(speaker: Speaker, fault: Fault) -> bytes:
    """An error as an event; which of the two providers it is of says its own shape."""
    told = speaker.error(OVERLOADED, fault.message)
    return f"event: error\ndata: {json.dumps({'type': 'error', **told})}\n\n".encode()


def _split(body: bytes) -> list[bytes]:
    return [body[at : at + PIECE] for at in range(0, len(body), PIECE)]


def _speaker(request: Request) -> Speaker:
    """By the path, whatever the application is mounted under."""
    return SPEAKERS[request.url.path.removeprefix(request.scope.get("root_path", ""))]


async def _json(request: Request) -> dict[str, Any] | None:
    try:
        asked = json.loads(await request.body())
    except ValueError:
        return None
    return asked if isinstance(asked, dict) else None


def _key(asked: dict[str, Any]) -> str:
    try:
        return hashlib.sha256(canonical(asked)).hexdigest()
    except NotCanonical:
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _credential(request: Request) -> str | None:
    given: str | None = request.headers.get("x-api-key")
    return given or request.headers.get("authorization", "").removeprefix("Bearer ") or None
