"""The answer to a read, passed on as it comes. It ends with its host, its client, its agent's work or its time."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from moorage.gateway.constraints import Exhausted
from moorage.gateway.http import CUTS
from moorage.gateway.watching import Ended, Watch


@dataclass
class Passed:
    """What was read so far: its hash and size in bytes, the last chunk, and why it is no more, if it was cut."""

    digest: Any = field(default_factory=hashlib.sha256)
    size: int = 0
    held: bytes = b""
    cut: str | None = None
    spent: bool = False  # it was cut since the run may have no more

    def took(self, chunk: bytes) -> bytes:
        """Hold this one; gives the one before."""
        self.digest.update(chunk)
        self.size += len(chunk)
        before, self.held = self.held, chunk
        return before


@dataclass(frozen=True)
class Toll:
    """What passing costs: `count` takes the bytes of each chunk, and raises Exhausted where there may be no more;
    `noted` writes the receipt.
    """

    count: Callable[[int], None]
    noted: Callable[[Passed], Awaitable[None]]


class Passing(Response):
    """Used once. The last chunk waits for the receipt, so that what is whole for the agent is so for us."""

    def __init__(
        self,
        answer: httpx.Response,
        headers: Mapping[str, str],
        watch: Watch,
        toll: Toll,
        log: Any,
    ) -> None:
        super().__init__(None, answer.status_code, dict(headers), answer.headers.get("content-type", ""))
        del self.headers["content-length"]
        self._answer, self._watch, self._toll, self._log = answer, watch, toll, log
        self._passed = Passed()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        """A failure in the middle cuts the connection: the client must not take half an answer for a whole one."""
        passed = self._passed
        try:
            await self._carried(send)
        except CUTS as error:
            passed.cut = getattr(error, "reason", type(error).__name__)
        if passed.cut:
            self._log.warning("answer_cut", reason=passed.cut)
            return
        await send({"type": "http.response.body", "body": passed.held, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _carried(self, send: Send) -> None:
        """All but the last chunk, and the receipt, however it ends."""
        passed = self._passed
        try:
            await self._watch.read(self._carry(send))
        except httpx.HTTPError as error:
            passed.cut = f"cut after {passed.size} bytes ({type(error).__name__})"
        except Ended as error:
            passed.cut = f"cut after {passed.size} bytes: {error}"
        except Exhausted as error:
            passed.cut, passed.spent = f"cut after {passed.size} bytes: {error.message}", True
        finally:
            await self._answer.aclose()
            await self._toll.noted(passed)

    async def _carry(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._answer.aiter_raw():
            self._toll.count(len(chunk))
            if before := self._passed.took(chunk):
                await send({"type": "http.response.body", "body": before, "more_body": True})
