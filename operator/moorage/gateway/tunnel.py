"""E8: tunnels to allowed hosts. They carry bytes, no credential goes into them, and nobody knows what they did.

The runner's relay asks by `POST /tunnel/HOST:PORT`: its body is what goes out, the answer's body what comes in, for as
long as the tunnel stands. One that the host has ended in order is confirmed: it was carried whole. One that is cut, by
whoever or with its run, is unknown where the host was declared to have effects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from moorage.api.wire import ResolvedEgress, Role
from moorage.core.effects import http
from moorage.core.effects.levels import Level
from moorage.core.journal.record import RecordType
from moorage.gateway.consents import Consents
from moorage.gateway.constraints import NONE, Asking, Exhausted, outward
from moorage.gateway.effects import EffectLog
from moorage.gateway.egress import authority_of
from moorage.gateway.errors import Invalid, Refusal
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.http import CUTS
from moorage.gateway.ledger import Run
from moorage.gateway.outward import Outward, Unreached, unreachable
from moorage.gateway.sending import demand_still
from moorage.gateway.underway import UnderWay
from moorage.gateway.watching import demand_working, idle, over

KIND = "tunnel"
CHUNK = 64 * 1024


@dataclass
class Carried:
    """Bytes so far. `whole`: the host's end was read; `broke`: what broke, where that has a name; `spent`: it was the
    run's limit."""

    out: int = 0
    back: int = 0
    whole: bool = False
    spent: bool = False
    broke: str | None = None

    @property
    def cut(self) -> str | None:
        """E4: why this is no end in order. Nothing is one until the host's end was read, and nothing broke."""
        return None if self.whole and not self.broke else self.broke or "the gateway ended it"

    def __str__(self) -> str:
        return f"{self.out} bytes out, {self.back} bytes back" + (f"; cut: {self.cut}" if self.cut else "")


@dataclass(frozen=True)
class Opened:
    """A tunnel that stands."""

    caller: Caller
    effect_id: str
    level: Level
    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TunnelRoom:
    """The door of tunnels, for runners."""

    def __init__(self, gate: Gate, under_way: UnderWay) -> None:
        self._gate, self._under_way = gate, under_way
        self._log, self._outward, self._consents = EffectLog(gate), Outward(gate.deps), Consents(gate)

    def routes(self) -> list[BaseRoute]:
        """The door."""
        return [Route("/tunnel/{authority}", self.open, methods=["POST"], name="tunnel")]

    async def open(self, request: Request) -> Response:
        """Intent first, then the connection; what can't be reached has not happened."""
        caller = await self._gate.sandbox(request, "tunnel", Role.RUNNER)
        demand_working(caller.run, self._gate.deps.settings.egress_open)
        entry = self._allowed(caller, request.path_params["authority"])
        await self._consents.demand_host(caller, entry.host)
        addresses = await self._outward.demand_addresses(entry)
        me = self._gate.deps.peers.me
        effect_id = await self._mean(caller, entry)
        self._under_way.begin(effect_id)
        try:
            demand_still(self._gate.deps.peers, me)
            stream = await self._outward.connect(entry, addresses)
        except Unreached as error:
            self._under_way.end(effect_id)
            await self._log.receipt(caller.run, effect_id, "not_dispatched", str(error))
            raise unreachable(str(error)) from None
        return Tunnel(self, Opened(caller, effect_id, http.tunnel_level(entry), stream))

    def _allowed(self, caller: Caller, authority: str) -> ResolvedEgress:
        host, port = authority_of(authority)
        if port is None:
            raise Invalid(f"{host}: a tunnel needs a port")
        try:
            return http.tunnel_to(caller.run.spec.sandbox.egress, host, port)
        except http.NotAllowed as error:
            raise Refusal(str(error), status=403, reason="EgressForbidden") from None

    async def _mean(self, caller: Caller, entry: ResolvedEgress) -> str:
        key, ask = uuid4().hex, Asking(outward(effect=http.tunnel_level(entry) is not Level.READ_ONLY))
        effect_id = f"tunnel-{key[:16]}"
        payload = {
            "effect_id": effect_id,
            "kind": KIND,
            "key": key,
            "level": http.tunnel_level(entry).value,
            "target": f"{entry.host}:{entry.port}",
            "usage": {"effects": ask.amounts.get("effects", 0)},
        }
        meant = self._log.note(RecordType.EFFECT_INTENT, payload, effect_id)

        def working(run: Run) -> None:
            demand_working(run, self._gate.deps.settings.egress_open)
            self._gate.judge.demand(run, ask)

        sent = self._log.dispatched(effect_id)
        async with self._gate.judge.noting(caller.run, ask):
            await self._log.mean(caller.run, caller.epoch, meant, sent, condition=working)
        return effect_id

    async def ended(self, opened: Opened, carried: Carried) -> None:
        """The receipt: how much was carried, and whether to the end."""
        outcome = http.unanswered(opened.level) if carried.cut else "confirmed"
        told: dict[str, Any] = {"bytes_out": carried.out, "bytes_back": carried.back}
        told["usage"] = {"egress_bytes": carried.out + carried.back}
        try:
            await self._log.receipt(opened.caller.run, opened.effect_id, outcome, str(carried), **told)
        finally:
            self._under_way.end(opened.effect_id)
        await self._gate.judge.look(opened.caller.run, Asking(outward() if carried.spent else NONE))

    def carrying(self, caller: Caller) -> AbstractContextManager[Callable[[int], None]]:
        """Counts what passes, until its receipt does."""
        return self._gate.judge.carrying(caller.run)

    async def over(self, caller: Caller) -> str:
        """Returns once the run has no agent at work in this attempt any more: why."""
        return await over(self._gate.ledger, caller.run, partial(idle, epoch=caller.epoch))


class Tunnel(Response):
    """An answer that lasts as long as the tunnel; used once."""

    def __init__(self, room: TunnelRoom, opened: Opened) -> None:
        super().__init__(None, 200, {"x-moorage-effect": opened.effect_id}, "application/octet-stream")
        del self.headers["content-length"]
        self._room, self._opened, self._carried = room, opened, Carried()
        self._reader, self._writer = opened.stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        """Carry until the host ends, something breaks, or the run is over. The receipt comes before the end."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with self._room.carrying(self._opened.caller) as passing:
            ways = (self._back(send, passing), self._out(receive, passing), self._watch())
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                self._writer.transport.abort()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._room.ended(self._opened, self._carried)
        for task in done:
            task.result()  # raises what has no name
        if not self._carried.cut:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _back(self, send: Send, passing: Callable[[int], None]) -> None:
        """Its end is the tunnel's."""
        with self._named():
            while data := await self._reader.read(CHUNK):
                self._carried.back += len(data)
                passing(len(data))
                await send({"type": "http.response.body", "body": data, "more_body": True})
            self._carried.whole = True

    async def _out(self, receive: Receive, passing: Callable[[int], None]) -> None:
        """Its end is passed on, and the host may still have something to say."""
        with self._named():
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionResetError
                data, more = message.get("body", b""), message.get("more_body", False)
                passing(len(data))
                self._carried.out += len(data)
                self._writer.write(data)
                await self._writer.drain()
            self._writer.write_eof()
            await asyncio.Event().wait()

    async def _watch(self) -> None:
        with self._named():
            self._carried.broke = await self._room.over(self._opened.caller)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """What breaks, cuts."""
        try:
            yield
        except Exhausted as error:
            self._carried.broke, self._carried.spent = error.message, True
        except OSError as error:
            self._carried.broke = f"the connection broke ({type(error).__name__})"
        except CUTS as error:
            self._carried.broke = f"nobody can tell whether the run goes on ({type(error).__name__})"
