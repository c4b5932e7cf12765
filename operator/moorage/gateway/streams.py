"""The doors that stream events to readers (M4): a run's output, and its journal.

A stream lasts for hours, so its caller is looked at again now and then: whoever may not read any more hears no more. A
reader that takes nothing for a while is cut off; what was on its way to it is no more than its buffers hold. Either
comes back with its cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Send

from moorage.api.sse import LAST_EVENT_ID, MEDIA_TYPE
from moorage.api.streaming import Gap
from moorage.gateway.errors import Invalid, Refusal
from moorage.gateway.events import Outputs, Source, any_record_event, gap_event, record_event
from moorage.gateway.feeds import Feeds
from moorage.gateway.gate import Gate, GatewayDeps
from moorage.gateway.http import CUTS, query_flag, query_int
from moorage.gateway.ledger import Run
from moorage.gateway.tail import MOST_LINES, tail
from moorage.points import Point, reached

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
Admit = Callable[[], Awaitable[object]]
"""Whether the reader may read (still). Raise Refusal."""


class EventStream(StreamingResponse):
    """Events as they come. `patience_ms`: how long a reader may take nothing; `cut` hears why it was cut off."""

    def __init__(self, body: AsyncGenerator[bytes, None], patience_ms: int, cut: Callable[[str], None]) -> None:
        super().__init__(body, headers=HEADERS, media_type=MEDIA_TYPE)
        self._events, self._patience_s, self._cut = body, patience_ms / 1000, cut

    async def stream_response(self, send: Send) -> None:
        """A stream that doesn't come to its end is cut: its reader must not take it for a whole one."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._events) as events:
                async for chunk in events:
                    reached(Point.STREAM_BEFORE)
                    async with asyncio.timeout(self._patience_s):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    reached(Point.STREAM_AFTER)
        except TimeoutError:
            self._cut("slow")
        except Refusal:  # its token has run out, or its right; it may come back with another one
            self._cut("denied")
        except CUTS:
            self._cut("failed")
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Streaming:
    """How every stream of events is answered."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._metrics, self._settings, self._clock = deps.metrics, deps.settings, deps.clock

    def answer(self, door: str, events: AsyncGenerator[bytes, None], admit: Admit) -> Response:
        """The events, as long as their reader may read."""
        patience, cuts = self._settings.stream_patience_ms, self._metrics.stream_cuts
        return EventStream(self._admitted(door, events, admit), patience, lambda why: cuts.labels(door, why).inc())

    async def _admitted(
        self, door: str, events: AsyncGenerator[bytes, None], admit: Admit
    ) -> AsyncGenerator[bytes, None]:
        again = self._clock.monotonic_ms() + self._settings.stream_recheck_ms
        with self._metrics.streams.labels(door).track_inprogress():
            async with aclosing(events) as them:
                async for chunk in them:
                    if self._clock.monotonic_ms() >= again:
                        await admit()
                        again = self._clock.monotonic_ms() + self._settings.stream_recheck_ms
                    yield chunk


class StreamsRoom:
    """For those who may `get agentruns` in the namespace."""

    def __init__(self, gate: Gate, streaming: Streaming) -> None:
        self._gate, self._streaming, self._feeds = gate, streaming, Feeds(gate)
        self._store, self._blobs = gate.deps.store, gate.deps.blobs

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        run = "/v1/runs/{uid}"
        return [
            Route(f"{run}/logs/stream", self.logs, methods=["GET"], name="logs-stream"),
            Route(f"{run}/timeline/stream", self.timeline, methods=["GET"], name="timeline-stream"),
        ]

    async def logs(self, request: Request) -> Response:
        """GET what the agent writes, from the cursor on; with `tail=N` the last lines of it, and what follows."""
        run = await self._gate.run_for_reader(request)
        outputs = Outputs(self._blobs, run.tenant)
        lines = _lines(request)
        source = Source("logs", self._store, run.uid, outputs.event)
        if lines is None:
            return self._answer(request, run, "logs", source, (b"", cursor_of(request) + 1))
        before = await tail(source, outputs, lines, self._feeds.catching_up)
        return self._answer(request, run, "logs", source, before)

    async def timeline(self, request: Request) -> Response:
        """GET the journal's records, from the cursor on; with `all=true` chunks of output, too."""
        run = await self._gate.run_for_reader(request)
        kind, render = ("records", any_record_event) if query_flag(request, "all") else ("facts", record_event)
        source = Source(kind, self._store, run.uid, render)
        return self._answer(request, run, "timeline", source, (b"", cursor_of(request) + 1))

    def _answer(self, request: Request, run: Run, door: str, source: Source, before: tuple[bytes, int]) -> Response:
        live, follow = query_flag(request, "live"), query_flag(request, "follow", default=True)

        async def events() -> AsyncGenerator[bytes, None]:
            first = before[1]
            lost = await self._pruned(run, first)
            if said := lost + before[0]:
                yield said
            followed = self._feeds.follow(run, source, first, live=live, follow=follow)
            async with aclosing(followed) as chunks:
                async for chunk in chunks:
                    yield chunk

        return self._streaming.answer(f"{door}-stream", events(), lambda: self._gate.row_for_reader(request))

    async def _pruned(self, run: Run, first: int) -> bytes:
        """What the retention of a journal has taken."""
        gone = await self._store.pruned(run.uid) if run.now.row.sealed else None
        if gone is None or gone.last < first:
            return b""
        return gap_event(Gap(reason="Pruned", first=first, last=gone.last)).encoded()


def cursor_of(request: Request) -> int:
    """The cursor that a reader comes back with; -1 is from the beginning."""
    last = request.headers.get(LAST_EVENT_ID)
    if last is None:
        return query_int(request, "after", -1)
    try:
        return int(last)
    except ValueError:
        raise Invalid("Last-Event-ID: give the id of an event of this stream") from None


def _lines(request: Request) -> int | None:
    """How many of the last lines are asked for; None: all after the cursor. Whoever comes back has had them."""
    if LAST_EVENT_ID in request.headers or "tail" not in request.query_params:
        return None
    if "after" in request.query_params:
        raise Invalid("after, tail: give one of them")
    lines = query_int(request, "tail", 0)
    if not 0 <= lines <= MOST_LINES:
        raise Invalid(f"tail: give a number from 0 to {MOST_LINES}")
    return lines
