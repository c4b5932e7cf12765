"""How a door of ours speaks HTTP: one configuration for all of them, with what a caller may make it hold bounded."""

from __future__ import annotations

from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 64 * 1024
"""What isn't body may come to this between two pieces of body, give or take one read of the socket (256 KiB)."""
PIPELINED = 8
"""Requests of one connection that wait behind an unanswered one."""


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol over llhttp, which by itself keeps a head without an end, trailers, and any number of requests
    that were sent ahead.
    """

    _unread = 0
    _moved = False

    def data_received(self, data: bytes) -> None:
        """Also counts what came and brought neither the end of a head nor a piece of a body."""
        self._moved = False
        super().data_received(data)
        self._unread = 0 if self._moved else self._unread + len(data)
        if self._unread > HEAD_BYTES and not self.transport.is_closing():
            self._too_large()

    def on_headers_complete(self) -> None:
        """Raise TooManyAhead, which the parser makes a bad request of, where too many wait before this one."""
        self._moved = True
        if len(self.pipeline) >= PIPELINED:
            raise TooManyAhead
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See the superclass."""
        self._moved = True
        super().on_body(body)

    def _too_large(self) -> None:
        """Nothing is said where an answer is under way: it could only be taken for a part of that."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # as uvicorn has it, but for its annotation
        if cycle is None or cycle.response_complete or not cycle.response_started:
            why = b"the request's head is too long"
            head = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\nconnection: close\r\n"
            self.transport.write(head + b"content-length: %d\r\n\r\n" % len(why) + why)
        self.transport.close()


class TooManyAhead(Exception):
    """More requests were sent ahead than a connection keeps."""


def configured(app: Any, **settings: Any) -> uvicorn.Config:
    """uvicorn's configuration with `settings`: HTTP within bounds, and no websockets, which no door of ours speaks."""
    return uvicorn.Config(app, http=BoundedHttp, ws="none", **settings)
