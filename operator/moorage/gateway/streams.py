"""The doors that stream events to readers (M4): a run's output, its journal, and the runs of a namespace.

A stream lasts for hours, so its caller is looked at again now and then: whoever may not read any more hears no more. A
reader that takes nothing for a while is cut off; what was on its way to it is no more than its buffers hold. Either
comes back with its cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Send

from moorage.api.sse import LAST_EVENT_ID, MEDIA_TYPE
from moorage.gateway.errors import Invalid
from moorage.gateway.events import Outputs, Source, any_record_event, record_event
from moorage.gateway.feeds import Feeds
from moorage.gateway.gate import Gate
from moorage.gateway.http import CUTS, query_flag, query_int

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


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
                    async with asyncio.timeout(self._patience_s):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            self._cut("slow")
        except CUTS:
            self._cut("failed")
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class StreamsRoom:
    """For those who may `get agentruns` in the namespace."""

    def __init__(self, gate: Gate, feeds: Feeds) -> None:
        self._gate, self._feeds = gate, feeds
        self._store, self._blobs, self._settings = gate.deps.store, gate.deps.blobs, gate.deps.settings

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        run = "/v1/runs/{uid}"
        return [
            Route(f"{run}/logs/stream", self.logs, methods=["GET"], name="logs-stream"),
            Route(f"{run}/timeline/stream", self.timeline, methods=["GET"], name="timeline-stream"),
        ]

    async def logs(self, request: Request) -> Response:
        """GET what the agent writes, from the cursor on."""
        run = await self._gate.run_for_reader(request)
        source = Source(self._store, run.uid, Outputs(self._blobs, run.tenant).event)
        first, live = cursor_of(request) + 1, query_flag(request, "live")
        return self._stream(request, "logs-stream", self._feeds.follow(run, "logs", source, first, live=live))

    async def timeline(self, request: Request) -> Response:
        """GET the journal's records, from the cursor on; with `all=true` chunks of output, too."""
        run = await self._gate.run_for_reader(request)
        everything = query_flag(request, "all")
        kind, render = ("records", any_record_event) if everything else ("facts", record_event)
        source = Source(self._store, run.uid, render)
        events = self._feeds.follow(run, kind, source, cursor_of(request) + 1, live=query_flag(request, "live"))
        return self._stream(request, "timeline-stream", events)

    def _stream(self, request: Request, door: str, events: AsyncGenerator[bytes, None]) -> Response:
        metrics = self._gate.deps.metrics

        async def counted() -> AsyncGenerator[bytes, None]:
            with metrics.streams.labels(door).track_inprogress():
                async with aclosing(self._admitted(events, request)) as admitted:
                    async for chunk in admitted:
                        yield chunk

        return EventStream(
            counted(), self._settings.stream_patience_ms, lambda why: metrics.stream_cuts.labels(door, why).inc()
        )

    async def _admitted(self, events: AsyncGenerator[bytes, None], request: Request) -> AsyncGenerator[bytes, None]:
        """The events, as long as their reader may read."""
        clock = self._gate.deps.clock
        again = clock.monotonic_ms() + self._settings.stream_recheck_ms
        async with aclosing(events) as them:
            async for chunk in them:
                if clock.monotonic_ms() >= again:
                    await self._gate.row_for_reader(request)
                    again = clock.monotonic_ms() + self._settings.stream_recheck_ms
                yield chunk


def cursor_of(request: Request) -> int:
    """The cursor that a reader comes back with; -1 is from the beginning."""
    last = request.headers.get(LAST_EVENT_ID)
    if last is None:
        return query_int(request, "after", -1)
    try:
        return int(last)
    except ValueError:
        raise Invalid("Last-Event-ID: give the id of an event of this stream") from None
