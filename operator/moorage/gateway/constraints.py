"""C1, C2, B3: a run's constraints, judged where facts arise, and what they came to in the journal.

A verdict follows from the run's state alone. It is written down once it changes: that a constraint is violated, that it
holds again. A door that is asked for more than is left refuses it, after that record; a door that writes an intent
judges again by the very state that its record follows (`Judge.demand`), so that no limit is passed by parallel work.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from moorage.api.budget import Budget, ResolvedConstraint, ResolvedLimits
from moorage.clock import Clock
from moorage.core.constraints.cel import BadExpression, Expression
from moorage.core.constraints.context import lived_ms, used
from moorage.core.constraints.judging import (
    Action,
    Constraint,
    Context,
    Factory,
    Judged,
    Snapshot,
    Validation,
    Verdict,
    custom,
    evaluate,
)
from moorage.core.constraints.limits import DIMENSIONS, TOOL_CALLS, metered, with_more
from moorage.core.constraints.telling import budget_of
from moorage.core.journal.errors import JournalError
from moorage.core.journal.record import Draft, RecordType
from moorage.core.run.family import Share
from moorage.core.run.state import PauseReason
from moorage.gateway.errors import Refusal
from moorage.gateway.ledger import Ledger, Run
from moorage.gateway.pausing import is_news, pausable, pause_draft
from moorage.store.errors import StoreError
from moorage.telemetry.metrics import GatewayMetrics

NONE: Mapping[str, int] = MappingProxyType({})


def outward(size: int = 0, *, effect: bool = False) -> Mapping[str, int]:
    """What a request to a host asks for that has so many bytes, and is an effect or none."""
    return {"egress": max(1, size)} | ({"effects": 1} if effect else {})


def of_calls(count: int = 1) -> Mapping[str, int]:
    """What so many tool calls ask for that are told at once."""
    return {"toolCalls": count}


def of_people() -> Mapping[str, int]:
    """What a question to a person asks for that nobody was asked before."""
    return {"humanApprovals": 1}


class Exhausted(Refusal):
    """A constraint stops the run. 0 left means 0, and asking again doesn't help."""

    status, reason = 403, "BudgetExhausted"


@dataclass(frozen=True)
class Asking:
    """What is asked for at this moment: how much of which dimensions, and by which tool calls, which the journal may
    know of already.
    """

    amounts: Mapping[str, int] = field(default_factory=lambda: NONE)
    calls: frozenset[str] = frozenset()


class _Known(Exception):
    """The journal says so already."""


@dataclass(frozen=True)
class Named:
    """An entry point's constraint, under the name that the run gives it."""

    name: str
    inner: Constraint

    def validate(self, context: Context) -> Validation:
        """As it says, under this name."""
        return replace(self.inner.validate(context), constraint=self.name)

    def on_violation(self, validation: Validation) -> Action:
        """As it says."""
        return self.inner.on_violation(validation)


@dataclass(frozen=True)
class Unjudged:
    """What this gateway can't judge, though the run was admitted with it."""

    name: str
    reason: str
    message: str

    def validate(self, _: Context) -> Validation:
        """Nobody can say that it holds."""
        return Validation(self.name, holds=False, reason=self.reason, message=self.message)

    def on_violation(self, _: Validation) -> Action:
        """It may have been the one that mattered."""
        return Action.GRACEFUL_EXIT


class Judge:
    """One object per process."""

    def __init__(self, ledger: Ledger, clock: Clock, installed: Mapping[str, Factory], metrics: GatewayMetrics) -> None:
        self._ledger, self._clock, self._installed, self._metrics = ledger, clock, installed, metrics
        self._made: WeakKeyDictionary[Run, tuple[ResolvedLimits, tuple[Constraint, ...]]] = WeakKeyDictionary()
        self._carried: WeakKeyDictionary[Run, int] = WeakKeyDictionary()

    def context(self, run: Run, ask: Asking) -> Context:
        """What the run has used, as far as its journal says, and what this process carries for it just now."""
        refused = {violation.constraint: 1 for violation in run.state.violations}
        lived = lived_ms(run.state, self._clock.now_ms())
        context = used(run.state, iterations=run.facts.completed, wall_ms=lived, asking=refused | dict(ask.amounts))
        agent = run.spec.agent
        return replace(
            context,
            tool_calls=context.tool_calls + len(set(run.facts.tools) - ask.calls),
            egress_bytes=context.egress_bytes + self._carried.get(run, 0),
            state=Snapshot(run.state.phase, run.state.attempt, agent.driver, agent.model.name if agent.model else ""),
        )

    def verdict(self, run: Run, ask: Asking, given: Share | None = None) -> Verdict:
        """By the state as it is, as if so much more were given away. What a person has waived only warns."""
        context = self.context(run, ask)
        return self._verdict(run, with_more(context, **asdict(given)) if given else context)

    def _verdict(self, run: Run, context: Context) -> Verdict:
        waived = {v.constraint: Action[v.waived] for v in run.state.violations if v.waived}
        return evaluate(self._constraints(run), context, waived)

    def demand(self, run: Run, ask: Asking) -> Context:
        """Raise Exhausted where a constraint stops the run; else return what was judged."""
        context = self.context(run, ask)
        refuse(self._verdict(run, context))
        return context

    def left_of_calls(self, run: Run) -> int | None:
        """How many tool calls it may still begin; None is unlimited."""
        return TOOL_CALLS.left(run.limits, self.context(run, Asking()))

    async def judge(self, run: Run, ask: Asking) -> Verdict:
        """The verdict, which the journal has when this returns, with the pause that follows from one that stops (C3).
        Raise as the ledger does.
        """
        context = self.context(run, ask)
        verdict = self._verdict(run, context)
        drafts = self._drafts(run, verdict, context)
        return await self._note(run, ask, verdict, drafts) if drafts else verdict

    async def look(self, run: Run, ask: Asking) -> None:
        """The same, where nobody waits for it: what can't be written now is judged again by the next that asks."""
        with contextlib.suppress(StoreError, JournalError):
            await self.judge(run, ask)

    async def admit(self, run: Run, ask: Asking) -> None:
        """Raise Exhausted, once the journal has why, where a constraint stops what is asked for."""
        refuse(await self.judge(run, ask))

    @contextlib.asynccontextmanager
    async def noting(self, run: Run, ask: Asking) -> AsyncIterator[None]:
        """What `demand` refuses within it, the journal has before it is told."""
        try:
            yield
        except Exhausted:
            await self.judge(run, ask)
            raise

    def budget(self, run: Run) -> Budget:
        """C7: what the agent may know."""
        return budget_of(run.limits, self.context(run, Asking()), run.state)

    @contextlib.contextmanager
    def carrying(self, run: Run) -> Iterator[Callable[[int], None]]:
        """Count bytes while they pass, until their record does: what this yields takes their number, and raises
        Exhausted once there are more than the run may have.
        """
        passed = 0

        def count(size: int) -> None:
            nonlocal passed
            passed += size
            self._carried[run] = self._carried.get(run, 0) + size
            self.demand(run, Asking(outward()))

        try:
            yield count
        finally:
            self._carried[run] = self._carried.get(run, 0) - passed

    def _drafts(self, run: Run, verdict: Verdict, context: Context) -> list[Draft]:
        if run.state.end is not None:
            return []
        news = [self._verdict_draft(run, verdict, context)] if _news(run, verdict) else []
        return [*news, *self._pause(run, verdict)]

    def _verdict_draft(self, run: Run, verdict: Verdict, context: Context) -> Draft:
        """All validations so far (C2)."""
        payload: dict[str, Any] = {
            "action": verdict.action.name,
            "asking": dict(context.asking),
            "validations": [_said(each) for each in verdict.judged],
            "context": _numbers(context),
        }
        kind = RecordType.CONSTRAINT_EVALUATED
        return self._ledger.observed(kind, payload, uuid4().hex, attempt=run.state.attempt or None)

    def _pause(self, run: Run, verdict: Verdict) -> list[Draft]:
        """C3: at the next safe point; an EMERGENCY_STOP at once."""
        worst = verdict.worst
        if worst is None or not worst.action.stops or not pausable(run.state):
            return []
        said = worst.validation
        dimension, kill = DIMENSIONS.get(said.constraint), worst.action is Action.EMERGENCY_STOP
        reason = PauseReason.BUDGET if dimension else PauseReason.CONSTRAINT
        if not is_news(run.state, reason, kill=kill):
            return []
        limit, constraint = (dimension.limit, None) if dimension else (None, said.constraint)
        draft = pause_draft(
            self._ledger, run, reason, said.message, by="limits", kill=kill, limit=limit, constraint=constraint
        )
        return [draft]

    async def _note(self, run: Run, ask: Asking, verdict: Verdict, drafts: list[Draft]) -> Verdict:
        def still_news(run: Run) -> None:
            """Raise _Known where somebody has said the same meanwhile, or where nothing stops any more: a pause that
            is asked for after the raise that it needs would wait for another.
            """
            relieved = verdict.action.stops and not self.verdict(run, ask).action.stops
            if run.state.end is not None or relieved or not (_news(run, verdict) or self._pause(run, verdict)):
                raise _Known

        try:
            await self._ledger.append(run, None, drafts, still_news)
        except _Known:
            return self.verdict(run, ask)
        self._metrics.constraints.labels(verdict.action.name).inc()
        return verdict

    def _constraints(self, run: Run) -> tuple[Constraint, ...]:
        """Made once for each run, and again where its limits were raised."""
        limits = run.limits
        known = self._made.get(run)
        if known is None or known[0] != limits:
            known = self._made[run] = limits, (*metered(limits), *(self._custom(each) for each in limits.custom))
        return known[1]

    def _custom(self, told: ResolvedConstraint) -> Constraint:
        name = custom(told.name)
        if told.entry_point is None:
            try:
                return Expression.compiled(told)
            except BadExpression as error:  # of a version that took more
                return Unjudged(name, "ConstraintInvalid", f"constraint {told.name}: {error}")
        if (factory := self._installed.get(told.entry_point)) is not None:
            return Named(name, factory())
        why = f"constraint {told.name}: the gateway has no entry point {told.entry_point} in moorage.constraints"
        return Unjudged(name, "ConstraintNotFound", why)


def refuse(verdict: Verdict) -> None:
    """Raise Exhausted for one that stops."""
    if verdict.action.stops and (worst := verdict.worst) is not None:
        raise Exhausted(worst.validation.message)


def _news(run: Run, verdict: Verdict) -> bool:
    """Whether something stands otherwise than the journal has it."""
    standing = {v.constraint: v.action for v in run.state.violations}
    return any(_action(each) != standing.get(each.validation.constraint) for each in verdict.judged)


def _action(each: Judged) -> str | None:
    return None if each.validation.holds else each.action.name


def _said(each: Judged) -> dict[str, Any]:
    said = each.validation
    told = {"constraint": said.constraint, "holds": said.holds, "action": each.action.name}
    return told if said.holds else told | {"reason": said.reason[:64], "message": said.message[:512]}


def _numbers(context: Context) -> dict[str, int]:
    return {name: value for name, value in vars(context).items() if isinstance(value, int) and value}
