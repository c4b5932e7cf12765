"""How a door of ours speaks HTTP: one configuration for all of them, with what a caller may make it hold bounded."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES = 64 * 1024
"""What isn't body may come to this between two pieces of body, give or take one read of the socket (256 KiB)."""


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol over llhttp, which by itself keeps a head without an end, takes trailers for headers, and
    keeps whatever is sent ahead of an answer, bodies and all. No client of ours sends anything ahead.
    """

    _unread = 0
    _moved = _in_head = False

    def data_received(self, data: bytes) -> None:
        """Also counts what came and brought neither the end of a head nor a piece of a body."""
        self._moved = False
        super().data_received(data)
        self._unread = 0 if self._moved else self._unread + len(data)
        if self._unread > HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large", b"the request's head is too long")

    def on_message_begin(self) -> None:
        """See the superclass."""
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are none: whoever filters headers has seen all there are."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Raise SentAhead, which the parser stops at, where an answer is still due."""
        self._moved, self._in_head = True, False
        cycle = self._asked()
        if cycle is not None and not cycle.response_complete:
            self.transport.abort()
            raise SentAhead
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See the superclass."""
        self._moved = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP."""
        self._refuse(b"400 Bad Request", msg.encode("ascii", "replace"))

    def _refuse(self, status: bytes, why: bytes) -> None:
        """Nothing is said where an answer is under way: it could only be taken for a part of that."""
        if self.transport.is_closing():
            return
        cycle = self._asked()
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        head = b"HTTP/1.1 " + status + b"\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(why) + why)
        self.transport.close()

    def _asked(self) -> RequestResponseCycle | None:
        """The newest request's, where there was one: uvicorn's annotation leaves that out."""
        return cast("RequestResponseCycle | None", self.cycle)


class SentAhead(Exception):
    """A request came before the answer to the one before it."""


def configured(app: Any, **settings: Any) -> uvicorn.Config:
    """uvicorn's configuration with `settings`: HTTP within bounds, and no websockets, which no door of ours speaks."""
    return uvicorn.Config(app, http=BoundedHttp, ws="none", **settings)


class Embedded(uvicorn.Server):
    """A server that leaves this process's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Whoever started us handles them."""
        yield
