"""The feed that wakes the operator: one line per changed run, from a cursor on, held open.

The store knows what changed and the ledger's bell tells when: a line leaves within the millisecond of the append, and
nothing is lost between two connections: whoever comes back with the last cursor hears of everything since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

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
        return StreamingResponse(self._feed(query_int(request, "after", 0)), media_type=NDJSON)

    async def _feed(self, cursor: int) -> AsyncIterator[bytes]:
        store, bell = self._gate.deps.store, self._gate.ledger.bell
        with self._gate.deps.metrics.streams.labels("changes").track_inprogress():
            while True:
                rung = bell.arm()
                page = await store.changes(cursor, self._settings.changes_page)
                if page:
                    cursor = page[-1].cursor
                    yield "".join(change.model_dump_json() + "\n" for change in page).encode()
                elif not await rung_within(rung, self._settings.keep_alive_ms):
                    yield KEEP_ALIVE
