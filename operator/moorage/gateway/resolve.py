"""How a person says what became of an effect that nobody else can tell of (E4): by a door of its own, or by a command.

What is said is kept as `reported`: the gateway knows who said it and not whether it is true (V4). Only what is open or
unknown can be resolved, once; saying the same again is harmless. It may be said after the run's end too (AFTER_END).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage.api.commands import Resolved, ResolveRequest
from moorage.core.journal.record import Assurance, Draft, RecordType
from moorage.core.run.state import Effect
from moorage.gateway.errors import NotFound, Refusal
from moorage.gateway.gate import Gate
from moorage.gateway.http import answer, read_model
from moorage.gateway.ledger import Run
from moorage.gateway.underway import settling


class Settling:
    """A person's word on effects, for whichever door it comes by."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @asynccontextmanager
    async def alone(self, run: Run) -> AsyncIterator[None]:
        """Nobody asks the target meanwhile, here or at another gateway, and the state is the newest. Raise Refusal."""
        if run.delivering.locked():
            raise asked_now()
        async with run.delivering, self._gate.deps.peers.claim(settling(run)) as granted:
            if not granted:
                raise asked_now()
            await self._gate.ledger.refresh(run)
            yield

    def said(self, effect: Effect, body: ResolveRequest, token_of: str) -> Draft:
        """One record per effect, whoever says it: a second one that says otherwise is refused by its id."""
        person = body.user or token_of
        payload = {
            "effect_id": effect.effect_id,
            "outcome": body.outcome,
            "detail": f"resolved by {person}" + (f": {body.note}" if body.note else ""),
            "by": person,
            "token_of": token_of,
            "was": effect.status,
        }
        key = ("resolve", effect.effect_id)
        draft = self._gate.ledger.observed(RecordType.EFFECT_RECONCILED, payload, *key, effect_id=effect.effect_id)
        return replace(draft, assurance=Assurance.REPORTED, actor=person)


class ResolveRoom:
    """For those who may `update agentruns/effects` in the run's namespace."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._settling = gate, Settling(gate)

    def routes(self) -> list[BaseRoute]:
        """The door."""
        return [Route("/v1/runs/{uid}/resolve", self.resolve, methods=["POST"], name="resolve")]

    async def resolve(self, request: Request) -> Response:
        """POST ResolveRequest -> Resolved."""
        run = await self._gate.run_for_reader(request)
        who = await self._gate.demand_settler(request, run.tenant, "resolve effects")
        body = await read_model(request, ResolveRequest, self._gate.deps.settings.max_body_bytes)
        async with self._settling.alone(run):
            effect = chosen(run.state.effects, body.effect)
            if demand_unsettled(effect, body.outcome):
                await self._gate.ledger.append(run, None, [self._settling.said(effect, body, who.user)])
        self._gate.deps.log.info("effect_resolved", run_uid=run.uid, effect=effect.effect_id, outcome=body.outcome)
        return answer(Resolved(effect_id=effect.effect_id, outcome=body.outcome, target=effect.target))


def asked_now() -> Refusal:
    """Somebody is at it, here or at another gateway."""
    return Refusal("the target is being asked at this moment: ask again", status=409, reason="EffectBusy")


def chosen(effects: tuple[Effect, ...], named: str) -> Effect:
    """The effect of that id, or of the only id that begins so. Raise NotFound, which lists what could be meant."""
    found = [e for e in effects if e.effect_id == named] or [e for e in effects if e.effect_id.startswith(named)]
    if len(found) == 1:
        return found[0]
    asked = ", ".join(e.effect_id for e in effects if e.open or e.status == "unknown") or "none"
    raise NotFound(f"{len(found)} effects are called {named}; those that are open or unknown: {asked}")


def demand_unsettled(effect: Effect, outcome: str) -> bool:
    """Whether there is anything to record. Raise Refusal where it is known to have ended otherwise."""
    if effect.open or effect.status == "unknown":
        return True
    if effect.status != outcome:
        why = f"effect {effect.effect_id} is known to be {effect.status}; what is known is never given up"
        raise Refusal(why, status=409, reason="EffectSettled")
    return False
