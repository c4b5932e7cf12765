"""What becomes of an HTTP effect that is sent: once, or under its key until its authority has said something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import httpx

from moorage.api.wire import ResolvedEgress
from moorage.core.effects import http
from moorage.core.effects.levels import NOT_HAPPENED, Level
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import GatewayDeps
from moorage.gateway.headers import returned
from moorage.gateway.kept import Kept
from moorage.gateway.ledger import Run
from moorage.gateway.outward import Heard, Lost, Outgoing, Outward, Unreached
from moorage.gateway.room import Held
from moorage.points import Point, reached
from moorage.store.peers import Peers

PAUSE_S = 0.2  # before a keyed request is sent again, doubled each time


@dataclass(frozen=True)
class Effect:
    """An effect under way: where to, at which level, and under which key its target knows it.

    `gateway`: whose it is. `again`: it may have been sent before. `held`: where its answer counts (None: nobody waits
    for that).
    """

    effect_id: str
    key: str
    level: Level
    entry: ResolvedEgress
    outgoing: Outgoing
    gateway: str
    again: bool = False
    held: Held | None = None


@dataclass(frozen=True)
class Came:
    """What it came to. `status` None: no answer; `whole`: all of its body is here; `cut`: it was broken off."""

    outcome: str
    detail: str
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = ""
    content: bytes = b""
    whole: bool = False
    cut: bool = False


def _final(came: Came, *, doubt: bool) -> bool:
    """Nothing more is to be had by sending it again."""
    if came.outcome == "confirmed":
        return not came.cut
    return came.outcome == "rejected" and not doubt


def demand_still(peers: Peers, gateway: str) -> None:
    """E4: raise Unreached where others may have settled already what this process meant under that name."""
    if not peers.still(gateway):
        raise Unreached("this gateway was cut off from its store, and may have been taken for gone")


class Sending:
    """Sends; writes nothing down."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._outward, self._settings, self._peers = Outward(deps), deps.settings, deps.peers

    async def check(self, run: Run, entry: ResolvedEgress) -> None:
        """Raise Refusal where the credential is missing, or the host is nowhere, or where no agent has business."""
        await self._outward.credential(run, entry)
        await self._outward.demand_addresses(entry)

    async def send(self, run: Run, effect: Effect) -> Heard:
        """One time. Raise Unreached, Lost."""
        reached(Point.EGRESS_BEFORE)
        demand_still(self._peers, effect.gateway)
        key = effect.key if effect.level is Level.KEYED else None
        try:
            return await self._outward.send(run, effect.entry, effect.outgoing, key)
        except Refusal as error:
            raise Unreached(error.message) from None

    async def finish(self, run: Run, effect: Effect, *, doubt: bool, wanted: Callable[[], bool]) -> Came:
        """A few times under its key while it is `wanted`, once without. `doubt`: it may have been sent before.

        Once it may have happened, a refusal proves nothing: it may be about the credential, or about the first one
        being under way. Only success is then the authority's word on the key.
        """
        came, pause = await self._once(run, effect), PAUSE_S
        for _ in range(self._settings.egress_tries - 1 if effect.level is Level.KEYED else 0):
            if _final(came, doubt=doubt):
                break
            doubt = doubt or came.outcome not in NOT_HAPPENED
            await asyncio.sleep(pause)
            if not wanted():
                break
            again, pause = await self._once(run, effect), pause * 2
            came = again if again.outcome == "confirmed" or came.outcome != "confirmed" else came
        return replace(came, outcome="unknown") if doubt and came.outcome != "confirmed" else came

    async def _once(self, run: Run, effect: Effect) -> Came:
        try:
            heard = await self.send(run, effect)
        except Unreached as error:
            return Came("not_dispatched", str(error))
        except Lost as error:
            return Came(http.unanswered(effect.level), str(error))
        return await self._read(heard, effect)

    async def _read(self, heard: Heard, effect: Effect) -> Came:
        """The status decides, also where the body is cut."""
        answer, kept, problem = heard.answer, Kept(self._settings.max_content_bytes), ""
        try:
            async for chunk in answer.aiter_raw():
                kept.add(chunk)
        except httpx.HTTPError as error:
            problem = f", its body was cut ({type(error).__name__})"
        finally:
            await answer.aclose()
        if not kept.over and effect.held is not None and not effect.held.fits(kept.size):
            kept.over = True
        if not kept.over:
            kept = kept.without(heard.credential)
        return Came(
            http.outcome(answer.status_code, effect.level),
            f"status {answer.status_code}{problem}",
            answer.status_code,
            returned(answer.headers.raw, credential=heard.credential),
            answer.headers.get("content-type", ""),
            b"" if kept.over else kept.content(),
            whole=not problem and not kept.over,
            cut=bool(problem),
        )
