"""E1: intents, dispatches, receipts and reconciliations of every kind of effect, written in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moorage.core.journal.record import BlobRef, Draft, RecordType
from moorage.core.run.reducer import KNOWN
from moorage.gateway.errors import Illegal
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Condition, Run
from moorage.points import Point, reached

SENT = frozenset({RecordType.EFFECT_INTENT, RecordType.EFFECT_DISPATCHED})
OUTCOMES = frozenset({RecordType.EFFECT_RECEIPT.value, RecordType.EFFECT_RECONCILED.value})
DETAIL_LIMIT = 1_000


class EffectLog:
    """Writes what becomes of effects, and counts how they close."""

    def __init__(self, gate: Gate) -> None:
        self._ledger, self._metrics, self._peers = gate.ledger, gate.deps.metrics, gate.deps.peers

    def note(
        self,
        kind: RecordType,
        payload: Mapping[str, Any],
        *key: object,
        attachments: Mapping[str, BlobRef] | None = None,
        request_id: str | None = None,
    ) -> Draft:
        """A record of an effect; what is None in its payload is left out, and whose it is stands in it."""
        given = {name: value for name, value in payload.items() if value is not None}
        if kind in SENT:
            given["gateway"] = self._peers.me
        effect_id = given.get("effect_id")
        return self._ledger.observed(
            kind, given, *key, effect_id=effect_id, request_id=request_id, attachments=attachments
        )

    def dispatched(self, effect_id: str) -> Draft:
        """It is about to leave."""
        return self.note(RecordType.EFFECT_DISPATCHED, {"effect_id": effect_id}, effect_id)

    def closed(self, run: Run, effect_id: str, outcome: str, detail: str, **more: Any) -> Draft:
        """How an effect ended: its receipt or, after the run's end, reconciliation. `more` as for `settled`."""
        kind = RecordType.EFFECT_RECEIPT if run.state.end is None else RecordType.EFFECT_RECONCILED
        return self._outcome(kind, (effect_id,), outcome, detail, **more)

    def settled(self, run: Run, effect_id: str, outcome: str, detail: str, **more: Any) -> Draft:
        """What was found out later; each time is a record of its own. `more`: `attachments`, and into the payload."""
        key = (effect_id, run.state.offset)
        return self._outcome(RecordType.EFFECT_RECONCILED, key, outcome, detail, **more)

    def _outcome(
        self,
        kind: RecordType,
        key: tuple[str, *tuple[object, ...]],
        outcome: str,
        detail: str,
        *,
        attachments: Mapping[str, BlobRef] | None = None,
        **more: Any,
    ) -> Draft:
        payload = {"effect_id": key[0], "outcome": outcome, "detail": detail[:DETAIL_LIMIT], **more}
        return self.note(kind, payload, *key, attachments=attachments)

    async def mean(self, run: Run, epoch: int, *drafts: Draft, condition: Condition | None = None) -> None:
        """E1: an intent is durable before anything leaves."""
        reached(Point.INTENT_BEFORE)
        await self.append(run, epoch, *drafts, condition=condition)
        reached(Point.INTENT_AFTER)

    async def receipt(
        self, run: Run, effect_id: str, outcome: str, detail: str, *, beside: Sequence[Draft] = (), **more: Any
    ) -> None:
        """A receipt belongs to no attempt: what happened has happened, also when epoch or phase moved on meanwhile.

        `beside` is told with it, unless the run has ended.
        """
        try:
            await self.append(run, None, self.closed(run, effect_id, outcome, detail, **more), *beside)
        except Illegal:
            if known(run, effect_id):
                return  # another gateway has found out more meanwhile
            if run.state.end is None:
                raise
            await self.append(run, None, self.closed(run, effect_id, outcome, detail, **more))  # it ended just now

    async def append(self, run: Run, epoch: int | None, *drafts: Draft, condition: Condition | None = None) -> None:
        """An outcome counts once it is durable, and once. `condition` as for the ledger's."""
        result = await self._ledger.append(run, epoch, drafts, condition)
        kinds = {effect.effect_id: effect.kind for effect in run.state.effects}
        for record in result.appended:
            if record.type in OUTCOMES and record.payload is not None:
                kind = kinds.get(record.effect_id or "", "git_push")
                self._metrics.effects.labels(kind, str(record.payload["outcome"])).inc()


def known(run: Run, effect_id: str) -> bool:
    """I8: it is certain what became of an effect."""
    return any(effect.effect_id == effect_id and effect.status in KNOWN for effect in run.state.effects)
