"""B2, B3: the shares of children, at the journal that they come out of.

A share is reserved in the parent's journal before its child is admitted, under the condition that so much is left
beside what the parent uses and has given away, and settled there once the child's own journal has its end and no
request of it is under way. Both may be asked for again at any time: what died in between is finished by whoever asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from moorage.api.budget import ResolvedLimits
from moorage.api.children import MAX_PROBLEM, SettleRequest
from moorage.api.wire import ResolvedParent, ResolvedRun
from moorage.core.journal.errors import JournalError, UnknownCritical
from moorage.core.journal.record import Draft, RecordType
from moorage.core.run.ending import OWED_MS
from moorage.core.run.family import Child, Share
from moorage.core.run.parents import asking, closed_to_children, dividing, reserve_of, same_share
from moorage.core.run.phases import RunPhase
from moorage.core.run.usage import used_by
from moorage.gateway.budget import lacking
from moorage.gateway.constraints import Asking, Judge
from moorage.gateway.errors import Refusal, SpecConflict, StillFetching, UnknownRun
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Condition, Run
from moorage.gateway.mirroring import fixed_base, there
from moorage.gateway.questions import Questions
from moorage.points import Point, reached
from moorage.store import errors as store_errors
from moorage.store.errors import SpecUnreadable
from moorage.workspace.errors import WorkspaceError

NEVER_STARTED = "NeverStarted"
UNREADABLE = "Unreadable"


class _Known(Exception):
    """The parent's journal says so already."""


class Shares:
    """One object per process."""

    def __init__(self, gate: Gate, questions: Questions) -> None:
        self._ledger, self._judge, self._questions, self._gate = gate.ledger, gate.judge, questions, gate
        self._log = gate.deps.log

    async def reserve(self, spec: ResolvedRun) -> None:
        """What the child may use, out of its parent's budget: durable when this returns. A run of its own needs none.

        Raise Refusal: ParentNotFound, ParentEnded, ParentPaused, ParentBudget; SpecConflict where another amount is
        reserved for it; and what the ledger raises.
        """
        if spec.parent is None:
            return
        run, share = await self._parent(spec.parent), reserve_of(spec.limits)

        def fits(run: Run) -> None:
            """By the very state that the record follows."""
            known = run.state.child(spec.uid, spec.name)
            if known is not None and known.open:
                _demand_same(run, known, share)
                raise _Known
            asked = run.state.child("", spec.name)
            _demand_open(run, known, asked)
            if asked is not None:  # it was judged then
                _demand_same(run, asked, share)
            elif (why := ungivable(self._judge, run, share)) is not None:
                raise Refusal(f"parent {run.spec.name} can't give so much: {why}", status=403, reason="ParentBudget")

        reached(Point.SHARE_BEFORE)
        with contextlib.suppress(_Known):
            await self._ledger.append(run, None, [self._started(spec, run, share)], fits)
        reached(Point.SHARE_AFTER)

    async def _parent(self, parent: ResolvedParent) -> Run:
        try:
            return await self._ledger.open(parent.uid)
        except (UnknownRun, store_errors.UnknownRun):
            raise Refusal(f"parent {parent.name} isn't known here", status=403, reason="ParentNotFound") from None

    def _started(self, spec: ResolvedRun, run: Run, share: Share) -> Draft:
        payload = {"uid": spec.uid, "name": spec.name, "reserve": told(share)}
        attempt = run.state.attempt or None
        return self._ledger.observed(RecordType.CHILD_STARTED, payload, spec.uid, attempt=attempt)

    async def settle(self, run: Run, asked: SettleRequest) -> None:
        """Settle the share of each child that has ended, whatever keeps another one."""
        for child in run.state.open_children:
            ended = await self._ended(run, child, asked)
            if ended is None:
                continue
            reached(Point.SETTLE_BEFORE)
            with contextlib.suppress(_Known):
                await self._ledger.append(run, None, [ended], _still_open(child))
            reached(Point.SETTLE_AFTER)

    async def _ended(self, run: Run, child: Child, asked: SettleRequest) -> Draft | None:
        """What to note of its end; None while there is something left to come."""
        try:
            kid = await self._ledger.kin(run, child.uid) if child.uid else None
        except (UnknownRun, store_errors.UnknownRun):
            kid = None
        except (JournalError, SpecUnreadable) as error:
            return self._unreadable(child, error, asked)
        if kid is None:
            why = asked.why.get(child.ref, "")
            return self._draft(child, Share(), NEVER_STARTED, problem=why) if child.ref in asked.gone else None
        return await self._settled(run, child, kid)

    def _unreadable(self, child: Child, error: Exception, asked: SettleRequest) -> Draft | None:
        """What nobody can read any more has used its share. Another version may read what this one is too old for."""
        self._log.warning("child_unreadable", child=child.uid, reason=type(error).__name__, why=str(error))
        lasting = not isinstance(error, UnknownCritical | SpecUnreadable)
        if child.ref in asked.gone or (lasting and child.ref in asked.over):
            return self._draft(child, child.reserve, UNREADABLE, problem=str(error))
        return None

    async def _settled(self, run: Run, child: Child, kid: Run) -> Draft | None:
        s = kid.state
        if s.end is None:
            return None
        await self._questions.settle(kid)
        if kid.facts.asked:
            return None
        commit, problem = s.end.commit if s.phase is RunPhase.SUCCEEDED else None, ""
        if commit is not None:
            try:
                problem = await self._keep(run, kid, commit)
            except (WorkspaceError, StillFetching) as error:
                self._log.warning("child_not_kept", child=kid.uid, commit=commit, why=str(error))
                if isinstance(error, StillFetching) or self._gate.deps.clock.now_ms() < s.end.at + OWED_MS:
                    return None
                problem = str(error)
        used = used_by(s, kid.facts.completed)
        kept = {"commit": commit, "base": fixed_base(kid)} if commit and not problem else {}
        return self._draft(child, used, s.phase.value, kept, problem)

    async def _keep(self, run: Run, kid: Run, commit: str) -> str:
        """W7: what the child proposes is its parent's to fetch, also when the child is long released. Say what is lost
        for good. Raise WorkspaceError, StillFetching.
        """
        await self._gate.refs.current(kid)
        if not await there(self._gate.deps.mirrors, kid, commit):
            return f"its commit {commit} isn't kept any more"
        await self._gate.refs.pin(run, run.state.epoch, child_pin(kid.uid), commit)
        return ""

    def _draft(
        self, child: Child, used: Share, outcome: str, kept: Mapping[str, Any] = MappingProxyType({}), problem: str = ""
    ) -> Draft:
        """`kept`: its commit, and the base of that, where there is one."""
        payload = {"uid": child.uid, "name": child.name, "outcome": outcome, "used": told(used)}
        payload |= {"commit": None, "base": None, **kept} | ({"problem": problem[:MAX_PROBLEM]} if problem else {})
        return self._ledger.observed(RecordType.CHILD_ENDED, payload, child.ref)


def child_pin(uid: str) -> str:
    """The name under which a parent keeps the commit of a child."""
    return f"child-{uid}"


def divisible(run: Run) -> ResolvedLimits:
    """What shares come out of, by the run's state as it is."""
    return dividing(run.limits, run.spec.approvals, run.state)


def ungivable(judge: Judge, run: Run, share: Share) -> str | None:
    """Why so much can't be given away by the run's state as it is; None where it can: it is left beside what was used,
    what children have, and all that requests under way may come to, and no constraint stops the run once it is given.
    """
    ask = Asking(asking(share))
    for verdict in (judge.verdict(run, ask), judge.verdict(run, Asking(), share)):
        if (worst := verdict.worst) is not None and worst.action.stops:
            return worst.validation.message
    return lacking(divisible(run), judge.context(run, ask), run.facts)


def _demand_same(run: Run, known: Child, share: Share) -> None:
    """O6: its limits are what is reserved for it. Two operators may have divided by different views."""
    if not same_share(share, known.reserve, divisible(run)):
        raise SpecConflict(f"another amount is reserved for {known.name} at its parent {run.spec.name}: look again")


def _demand_open(run: Run, known: Child | None, asked: Child | None) -> None:
    s = run.state
    if closed_to_children(s) or known is not None:
        why = f"parent {run.spec.name} takes no children any more: it has ended, or is about to"
        raise Refusal(why, status=403, reason="ParentEnded")
    if asked is None and (s.pausing or s.phase is RunPhase.PAUSED):
        raise Refusal(f"parent {run.spec.name} is paused", status=403, reason="ParentPaused")


def _still_open(child: Child) -> Condition:
    def condition(run: Run) -> None:
        known = run.state.child(child.uid, child.name)
        if known is None or not known.open:
            raise _Known

    return condition


def told(share: Share) -> dict[str, int]:
    """As records and answers have it."""
    return {name: amount for name, amount in asdict(share).items() if amount}
