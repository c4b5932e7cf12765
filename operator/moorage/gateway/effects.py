"""E1: intents, dispatches, receipts and reconciliations of every kind of effect, written in one place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from moorage.core.effects.levels import level_of, may_repeat
from moorage.core.journal.record import BlobRef, Draft, RecordType
from moorage.core.run.reducing.effects import KNOWN
from moorage.core.run.state import Effect
from moorage.gateway.errors import Illegal
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Condition, Run
from moorage.points import Point, reached
from moorage.store.errors import StoreBusy, StoreUnavailable
from moorage.telemetry.metrics import Violation

SENT = frozenset({RecordType.EFFECT_INTENT, RecordType.EFFECT_DISPATCHED})
OUTCOMES = frozenset({RecordType.EFFECT_RECEIPT.value, RecordType.EFFECT_RECONCILED.value})
CONFIRMED = "confirmed"
DETAIL_LIMIT = 1_000
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
T = TypeVar("T")


class EffectLog:
    """Writes what becomes of effects, and counts how they close."""

    def __init__(self, gate: Gate) -> None:
        self._ledger, self._metrics, self._peers = gate.ledger, gate.deps.metrics, gate.deps.peers
        self._log, self._patience_s = gate.deps.log, gate.deps.settings.receipt_patience_ms / 1000

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
        self,
        run: Run,
        effect_id: str,
        outcome: str,
        detail: str,
        *,
        beside: Sequence[Draft] = (),
        until: float | None = None,
        **more: Any,
    ) -> None:
        """A receipt belongs to no attempt: what happened has happened, also when epoch or phase moved on meanwhile.

        `beside` is told with it, unless the run has ended. `until` as for `outlast`.
        """
        write = partial(self._receipt, run, effect_id, outcome, detail, beside=beside, more=more)
        await self.outlast(run, write, until)

    async def found(self, run: Run, effect_id: str, outcome: str, detail: str, **more: Any) -> None:
        """The same, where it was asked for again: what is known already, or known better, is no news."""
        await self.outlast(run, partial(self._found, run, effect_id, outcome, detail, more))

    def patience(self) -> float:
        """Until when what came just now may be tried to be written, in the loop's time: `receipt_patience_ms` on."""
        return asyncio.get_running_loop().time() + self._patience_s

    async def outlast(self, run: Run, write: Callable[[], Awaitable[T]], until: float | None = None) -> T:
        """`write`, which this process alone can: a store that is away for a moment is waited for.

        Each time from the run as it is then. Raise what the last try did once it is `until` (None: what `patience` says
        now); whoever is cancelled meanwhile ends at once, and the effect is as open as it was.
        """
        time, pause = asyncio.get_running_loop().time, FIRST_PAUSE_S
        until = self.patience() if until is None else until
        while True:
            try:
                if run.at is None:
                    await self._ledger.refresh(run)
                return await write()
            except (StoreBusy, StoreUnavailable) as error:
                if time() >= until:
                    raise
                self._log.warning("receipt_waits_for_store", run_uid=run.uid, reason=type(error).__name__)
            await asyncio.sleep(pause * (0.5 + random.random() / 2))  # noqa: S311  jitter, not a secret
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _receipt(
        self, run: Run, effect_id: str, outcome: str, detail: str, *, beside: Sequence[Draft], more: Mapping[str, Any]
    ) -> None:
        if outcome == "unknown" and _status(run, effect_id) == outcome:
            return  # nothing new
        try:
            await self.append(run, None, self.closed(run, effect_id, outcome, detail, **more), *beside)
        except Illegal:
            if known(run, effect_id):
                return  # another gateway has found out more meanwhile
            if run.state.end is None:
                raise
            await self.append(run, None, self.closed(run, effect_id, outcome, detail, **more))  # it ended just now

    async def _found(self, run: Run, effect_id: str, outcome: str, detail: str, more: Mapping[str, Any]) -> None:
        def news(run: Run) -> None:
            """Raise Known where another gateway has found out as much meanwhile."""
            if _status(run, effect_id) == outcome or (known(run, effect_id) and outcome not in KNOWN):
                raise Known

        try:
            await self.append(run, None, self.settled(run, effect_id, outcome, detail, **more), condition=news)
        except Known:
            return

    async def append(self, run: Run, epoch: int | None, *drafts: Draft, condition: Condition | None = None) -> None:
        """An outcome counts once it is durable, and once. `condition` as for the ledger's."""
        result = await self._ledger.append(run, epoch, drafts, condition)
        kinds = {effect.effect_id: effect.kind for effect in run.state.effects}
        for record in result.appended:
            if record.type in OUTCOMES and record.payload is not None:
                kind, outcome = kinds.get(record.effect_id or "", "git_push"), str(record.payload["outcome"])
                self._metrics.effects.labels(kind, outcome).inc()
                if outcome == CONFIRMED and repeated(run.state.effects, record.effect_id or ""):
                    self._metrics.violations.labels(Violation.DUPLICATE_EFFECT).inc()


class Known(Exception):
    """There is nothing to add to what is known of an effect."""


def repeated(effects: Sequence[Effect], effect_id: str) -> bool:
    """E2: another one of the same key is confirmed, too."""
    keys = {(each.kind, each.key) for each in effects if each.effect_id == effect_id and each.key}
    others = (each for each in effects if each.effect_id != effect_id)
    same = (each for each in others if (each.kind, each.key) in keys and each.status == CONFIRMED)
    return any(not may_repeat(level_of(each.level), CONFIRMED) for each in same)


def known(run: Run, effect_id: str) -> bool:
    """I8: it is certain what became of an effect."""
    return _status(run, effect_id) in KNOWN


def _status(run: Run, effect_id: str) -> str | None:
    """None for one that nobody means to."""
    return next((effect.status for effect in run.state.effects if effect.effect_id == effect_id), None)
