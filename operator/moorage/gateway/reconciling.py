"""E4: settles effects whose end isn't known. One way for all kinds; what only a kind itself can do is in a table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from moorage.core.effects.reconcile import Step, steps
from moorage.core.run.state import Effect
from moorage.gateway.effects import EffectLog
from moorage.gateway.ledger import Run
from moorage.gateway.underway import UnderWay

Reconciler = Callable[[Run, Effect], Awaitable[None]]
"""Asks the target of an effect, or sends it again under its key, and writes down what came of it."""

SAID = {
    Step.NOT_SENT: ("not_dispatched", "it was never sent off"),
    Step.HARMLESS: ("not_dispatched", "it changes nothing, and nobody waits for its answer any more"),
    Step.UNKNOWN: ("unknown", "nobody can be asked whether it happened"),
}


class Reconciling:
    """`kinds`: who asks or repeats, by kind. What is under way is left to whoever is at it."""

    def __init__(self, log: EffectLog, kinds: Mapping[str, Reconciler], under_way: UnderWay) -> None:
        self._log, self._kinds, self._under_way = log, kinds, under_way

    async def settle(self, run: Run) -> None:
        """Take one step with each effect that is left open or unknown."""
        for effect, step in steps(run.state):
            if effect.effect_id not in await self._under_way.of(run):
                await self._take(run, effect, step)

    async def _take(self, run: Run, effect: Effect, step: Step) -> None:
        reconciler = self._kinds.get(effect.kind)
        if step in {Step.ASK, Step.REPEAT} and reconciler is not None:
            await reconciler(run, effect)
        elif step not in {Step.ASK, Step.REPEAT} or effect.open:
            outcome, detail = SAID.get(step, SAID[Step.UNKNOWN])
            await self._log.append(run, None, self._log.settled(run, effect.effect_id, outcome, detail))
