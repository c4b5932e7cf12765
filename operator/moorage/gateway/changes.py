"""The feed that wakes the operator: one line per changed run, from a cursor on, held open.

The store knows what changed and the ledger's bell tells when: a line leaves within the millisecond of the append, and
nothing is lost between two connections: whoever comes back with the last cursor hears of everything since.

A feed lasts for hours, so its caller is looked at again each `token_cache_ms`: who is not the operator any more hears
no more. That keeps the answer at hand, too, when the operator brings a run that can't wait (ADR 61).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from moorage.gateway.errors import Refusal
from moorage.gateway.gate import Gate
from moorage.gateway.http import NDJSON, query_int
from moorage.gateway.signals import rung_within

KEEP_ALIVE = b"{}\n"


class ChangesRoom:
    """GET /v1/changes."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._settings = gate.deps.settings

    def routes(self) -> list[BaseRoute]:
        """The door."""
        return [Route("/v1/changes", self.changes, methods=["GET"], name="changes")]

    async def changes(self, request: Request) -> Response:
        """NDJSON of Change after the cursor; `{}` now and then, so that both sides notice a dead peer."""
        await self._gate.operator(request)
        return StreamingResponse(self._feed(request, query_int(request, "after", 0)), media_type=NDJSON)

    async def _feed(self, request: Request, cursor: int) -> AsyncIterator[bytes]:
        store, bell, clock = self._gate.deps.store, self._gate.ledger.bell, self._gate.deps.clock
        again = clock.monotonic_ms() + self._settings.token_cache_ms
        with self._gate.deps.metrics.streams.labels("changes").track_inprogress():
            while True:
                rung = bell.arm()
                page = await store.changes(cursor, self._settings.changes_page)
                left = again - clock.monotonic_ms()
                if left <= 0:
                    if not await self._still(request):
                        return
                    again = clock.monotonic_ms() + self._settings.token_cache_ms
                if page:
                    cursor = page[-1].cursor
                    yield "".join(change.model_dump_json() + "\n" for change in page).encode()
                elif not await rung_within(rung, max(1, min(left, self._settings.keep_alive_ms))):
                    yield KEEP_ALIVE

    async def _still(self, request: Request) -> bool:
        """Whether the caller may go on listening; not, where nobody can say so now. It comes back with its cursor."""
        try:
            await self._gate.operator(request)
        except Refusal as error:
            self._gate.deps.log.info("changes_feed_ended", reason=error.reason)
            return False
        return True
