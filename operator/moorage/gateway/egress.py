"""The egress door: an agent's requests to the hosts that its run lists, and to no others (T3, E8).

The runner's relay brings them as `/egress/SCHEME/HOST[:PORT]/…`; how the host is really spoken to stands in the spec.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.wire import ResolvedEgress, Role
from moorage.core.effects.http import Asked, NotAllowed, allowed
from moorage.gateway.calls import Calls, Demand
from moorage.gateway.consents import Consents
from moorage.gateway.errors import Invalid, Refusal
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.headers import forwarded
from moorage.gateway.http import read_body
from moorage.gateway.ledger import Run
from moorage.gateway.outward import Outgoing
from moorage.gateway.room import Held
from moorage.gateway.watching import demand_working

CALL_HEADER = "x-moorage-call"
NAME = re.compile("[0-9a-f]{32}")
METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]


class EgressRoom:
    """Doors below /egress, for runners."""

    def __init__(self, gate: Gate, calls: Calls) -> None:
        self._gate, self._calls, self._consents = gate, calls, Consents(gate)
        self._coming: WeakKeyDictionary[Run, int] = WeakKeyDictionary()

    def routes(self) -> list[BaseRoute]:
        """The doors."""
        return [Route("/egress/{scheme}/{rest:path}", self.call, methods=METHODS, name="egress")]

    async def call(self, request: Request) -> Response:
        """One request and its answer."""
        caller = await self._gate.sandbox(request, "egress", Role.RUNNER)
        asked = asked_of(request)
        entry = self._allowed(caller, asked)
        return await self._gate.room.holding(caller.run.uid, partial(self._called, request, caller, asked, entry))

    async def _called(
        self, request: Request, caller: Caller, asked: Asked, entry: ResolvedEgress, held: Held
    ) -> Response:
        with self._admitted(caller.run):
            await self._consents.demand_host(caller, entry.host)
            body = await read_body(request, self._gate.deps.settings.max_body_bytes, held.take)
        headers = forwarded(request.headers)
        outgoing = Outgoing(asked.host, asked.method, asked.target, headers, body)
        return await self._calls.call(caller, Demand(entry, asked, outgoing, name_of(request), request.receive, held))

    @contextlib.contextmanager
    def _admitted(self, run: Run) -> Iterator[None]:
        """I6: who waits to be allowed, and whose body is being read, counts, too: the journal has nothing of it yet."""
        demand_working(run, self._gate.deps.settings.egress_open, self._coming.setdefault(run, 0))
        self._coming[run] += 1
        try:
            yield
        finally:
            self._coming[run] -= 1

    def _allowed(self, caller: Caller, asked: Asked) -> ResolvedEgress:
        try:
            return allowed(caller.run.spec.sandbox.egress, asked)
        except NotAllowed as error:
            raise Refusal(str(error), status=403, reason="EgressForbidden") from None


def asked_of(request: Request) -> Asked:
    """What is asked for, from the path as it came: decoding it here would change what it means there."""
    raw = bytes(request.scope["raw_path"]).partition(b"?")[0].decode("latin-1")
    authority, slash, path = raw.partition("/egress/")[2].partition("/")[2].partition("/")
    query = request.scope["query_string"].decode("latin-1")
    host, port = authority_of(authority)
    return Asked(request.method, host, port, (f"/{path}" if slash else "/") + (f"?{query}" if query else ""))


def name_of(request: Request) -> str | None:
    """What the relay calls this request, where it does; the same as often as it asks."""
    told = request.headers.get(CALL_HEADER, "")
    return told if NAME.fullmatch(told) else None


def authority_of(text: str) -> tuple[str, int | None]:
    """Host and port, if there is one. Raise Invalid."""
    host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and len(port) < 6)):
        raise Invalid(f"{text[:80]!r} is no host with a port")
    return host.lower().rstrip("."), int(port) if port else None
