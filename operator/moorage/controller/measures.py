"""H2: what passes tell the metrics. Labels are bounded: reasons come from sandboxes too, and theirs are not trusted."""

from __future__ import annotations

from collections import Counter
from functools import partial

from moorage.api.wire import ResolvedRun
from moorage.controller.roll import Roll
from moorage.controller.told import Standing
from moorage.core.run.actions import Admit, Begin, Plan, RaiseEpoch, StartSandbox
from moorage.core.run.observed import Observed
from moorage.core.run.state import RunState
from moorage.core.run.status import word
from moorage.sandbox.port import RunKey
from moorage.telemetry.metrics import OperatorMetrics
from moorage.telemetry.tenants import Tenants

MOST_REASONS = 64  # distinct values of a `reason` label; what comes later is `Other`


class Measures:
    """Compares a run before and after a pass."""

    def __init__(self, metrics: OperatorMetrics, roll: Roll) -> None:
        self._metrics = metrics
        self._reasons: set[str] = set()
        self._unknown: dict[RunKey, int] = {}
        metrics.slots.set(roll.limit)
        for standing in Standing:
            metrics.runs.labels(standing.value).set_function(partial(roll.count, standing))
        Tenants(metrics.registry, lambda: roll.uses(Counter(key.tenant for key in self._unknown)))

    def passed(self, key: RunKey, plan: Plan, before: Observed, after: Observed, now: int) -> None:
        """A pass is over."""
        for action in plan.actions:
            match action:
                case Admit() | Begin():
                    self._metrics.queue_seconds.observe(_seconds(now - before.created_at))
                case RaiseEpoch(_, _, "Recovered"):
                    self._resumed(before, now)
                case StartSandbox() if after.journal is not None and after.journal.admitted_at is not None:
                    self._metrics.sandbox_seconds.observe(_seconds(now - after.journal.admitted_at))
        self._effects(key, after)
        if after.journal is not None and after.journal.end is not None and not _ended(before):
            self._over(after.journal, after.journal.end.reason, now)
            self._spent(after.journal, after.spec or before.spec)

    def forget(self, key: RunKey) -> None:
        """The run is gone."""
        self._unknown.pop(key, None)
        self._tell_unknown()

    def _resumed(self, before: Observed, now: int) -> None:
        loss = before.journal.last_loss if before.journal else None
        if loss is not None:
            self._metrics.resumes.labels(self._bounded(loss.reason)).inc()
            self._metrics.resume_seconds.observe(_seconds(now - loss.at))

    def _effects(self, key: RunKey, after: Observed) -> None:
        unknown = () if after.journal is None or after.released else after.journal.unknown_effects
        self._unknown.pop(key, None)
        if unknown:
            self._unknown[key] = min(effect.at for effect in unknown)
        self._tell_unknown()

    def _tell_unknown(self) -> None:
        self._metrics.unknown_effects.set(len(self._unknown))
        self._metrics.unknown_since.set(min(self._unknown.values(), default=0) / 1000)

    def _over(self, state: RunState, reason: str, now: int) -> None:
        self._metrics.runs_ended.labels(state.phase.value, self._bounded(reason)).inc()
        if state.cancel_at is not None:
            self._metrics.cancel_seconds.observe(_seconds(now - state.cancel_at))

    def _spent(self, state: RunState, spec: ResolvedRun | None) -> None:
        if spec is None:
            return
        limits, usage = spec.limits, state.usage
        for name, used, most in (
            ("tokens", usage.tokens, limits.tokens_hard),
            ("cost", usage.cost_micros, limits.cost_hard_micros),
            ("toolCalls", usage.tool_calls, limits.tool_calls_hard),
        ):
            if most:
                self._metrics.budget_used.labels(name).observe(used / most)

    def _bounded(self, reason: str) -> str:
        name = word(reason)[:64] or "None"
        if name not in self._reasons and len(self._reasons) >= MOST_REASONS:
            return "Other"
        self._reasons.add(name)
        return name


def _ended(o: Observed) -> bool:
    return o.journal is None or o.journal.end is not None


def _seconds(ms: int) -> float:
    return max(0, ms) / 1000
