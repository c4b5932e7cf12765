"""O2, F5, B3: what a run becomes by being a child: where it starts, how long it may take, and its share of the budget.

A child says itself how much it may use, in each dimension in which its parent has a hard limit; where it says nothing,
it gets half of what is left, and no more than its Agent allows for, but as many questions to people as its delivery
asks: without them none of its work could leave. Its limits are what is reserved for it, and they are never raised. What
the parent's journal says of a child that was started already counts before anything else: a pass may have died in
between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moorage.api.agentrun import ParentRef
from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedApproval, ResolvedParent, ResolvedRun, ResolvedTimeouts, ResolvedWorkspace
from moorage.core.approvals.consent import for_delivery, spendable
from moorage.core.constraints.context import used
from moorage.core.constraints.judging import Context
from moorage.core.constraints.limits import EFFECTS, EGRESS, HUMAN_APPROVALS, SHARED, Dimension, with_more
from moorage.core.run.family import Child, Share
from moorage.core.run.observed import Problem
from moorage.core.run.state import RunState
from moorage.core.run.unseen import limit_missing

MAX_DEPTH = 3
DISPENSABLE: tuple[Dimension, ...] = (EFFECTS, EGRESS, HUMAN_APPROVALS)
"""Those that a child can work without: where half of what is left is nothing, it gets nothing of it."""


@dataclass(frozen=True)
class Parent:
    """A run that another one names as its parent, as the gateway knows it.

    `spec` has the limits that are in force; `reserved` is what its requests under way may come to. `released`: its refs
    are gone.
    """

    spec: ResolvedRun
    state: RunState
    created_at: int
    iterations: int
    reserved: Share = field(default_factory=Share)
    released: bool = False

    def context(self) -> Context:
        """What it has used and given away, and may still use for what is under way."""
        context = used(self.state, iterations=self.iterations, wall_ms=0, asking={})
        return with_more(context, tokens=self.reserved.tokens, cost_micros=self.reserved.cost_micros)


def closed_to_children(s: RunState) -> bool:
    """X2: whether children of this run are to end."""
    return s.end is not None or s.cancel_stage is not None or s.children_ending


def child_of(
    found: ResolvedRun, asked: ResolvedLimits, ref: ParentRef, created_at: int, parent: Parent | None
) -> ResolvedRun | Problem:
    """The run as a child, or what keeps it from being one. `asked`: the limits that it says itself, without its
    Agent's; `created_at`: of the child (ms).
    """
    problem = _unfit(found, ref, parent)
    if problem is not None or parent is None:
        return problem or _waits("ParentNotFound", f"AgentRun {ref.name} isn't there: create it in this namespace")
    before = parent.state.child(found.uid, found.name) or parent.state.child("", found.name)
    commit = _start(ref, parent.state)
    if commit is None:
        return _waits("ParentNotReady", f"AgentRun {ref.name} has no commit to start from yet")
    workspace = _workspace(found, parent.spec)
    if isinstance(workspace, Problem):
        return workspace
    limits = _limits(found, asked, parent, before)
    if isinstance(limits, Problem):
        return limits
    above = parent.spec.parent.depth if parent.spec.parent else 0
    changes = {
        "workspace": workspace,
        "limits": limits,
        "timeouts": _timeouts(found.timeouts, created_at, parent),
        "parent": ResolvedParent(uid=parent.spec.uid, name=parent.spec.name, commit=commit, depth=above + 1),
    }
    return found.model_copy(update=changes)


def _unfit(found: ResolvedRun, ref: ParentRef, parent: Parent | None) -> Problem | None:
    if parent is None:
        return None
    if parent.spec.uid == found.uid:
        return Problem("ParentNotFound", "spec.parentRef names the run itself: name another one", stalled=True)
    if parent.spec.parent is not None and parent.spec.parent.depth >= MAX_DEPTH:
        why = f"AgentRun {ref.name} has {MAX_DEPTH} runs above it already: children go no deeper"
        return Problem("ParentTooDeep", why, stalled=True)
    return None


def _waits(reason: str, message: str) -> Problem:
    return Problem(reason, message, stalled=False)


def _start(ref: ParentRef, s: RunState) -> str | None:
    """The commit that the child starts from."""
    point = s.checkpoint if ref.start == "Checkpoint" else None
    return point.commit if point is not None else s.workspace_base


def _workspace(found: ResolvedRun, parent: ResolvedRun) -> ResolvedWorkspace | Problem:
    """The parent's repository, which has the commit; of an ephemeral one there is only the parent's."""
    mine, theirs = found.workspace, parent.workspace
    if mine.kind == theirs.kind == "ephemeral":
        return theirs
    if mine.key != theirs.key:
        why = f"the workspace isn't that of its parent {parent.name}, where it starts: name the same one"
        return Problem("ParentWorkspaceDiffers", why, stalled=True)
    return mine


def _timeouts(own: ResolvedTimeouts, created_at: int, parent: Parent) -> ResolvedTimeouts:
    """F5: never later than the parent's deadline."""
    theirs = parent.spec.timeouts.deadline_ms
    if theirs is None:
        return own
    left = max(0, parent.created_at + theirs - created_at)
    return own.model_copy(update={"deadline_ms": left if own.deadline_ms is None else min(left, own.deadline_ms)})


# --- shares -----------------------------------------------------------------------------------------------------------


def _limits(
    found: ResolvedRun, asked: ResolvedLimits, parent: Parent, before: Child | None
) -> ResolvedLimits | Problem:
    own, theirs = found.limits, dividing(parent.spec.limits, parent.spec.approvals, parent.state)
    if before is not None:
        return own.model_copy(update=as_limits(before.reserve, theirs))
    if (problem := limit_missing(theirs, f"in a child of {parent.spec.name}", own)) is not None:
        return problem
    needed = Share(human_approvals=len(for_delivery(found.approvals)) if found.delivery is not None else 0)
    return divided(asked, theirs, parent.context(), usual=own, needed=needed)


def dividing(limits: ResolvedLimits, approvals: Sequence[ResolvedApproval], s: RunState) -> ResolvedLimits:
    """What shares come out of: the limits, and no more of the cost than somebody has allowed or needn't be asked for
    (T6), since a child counts its own steps from 0.
    """
    most, hard = spendable(approvals, s.consents, s.committed_micros), limits.cost_hard_micros
    if most is None:
        return limits
    most += s.carried.cost_micros  # which the run's own steps don't count, and its limits do
    return limits.model_copy(update={"cost_hard_micros": most if hard is None else min(most, hard)})


def divided(
    asked: ResolvedLimits,
    theirs: ResolvedLimits,
    context: Context,
    *,
    usual: ResolvedLimits | None = None,
    needed: Share | None = None,
) -> ResolvedLimits | Problem:
    """The child's limits out of what its parent has left. `asked`: what it says itself; `usual`: the same with what its
    Agent says beside it, where there is one, of which it gets no more than half of what is left. `needed`: what it
    surely uses, and gets no less of.
    """
    own, least, found = usual or asked, needed or Share(), dict[str, int]()
    for each in SHARED:
        left = each.left(theirs, context)
        if left is None:
            continue
        surely = getattr(least, each.uses)
        share = _share(each, left, each.hard(asked), each.hard(own), surely)
        if share is None:
            said = (
                f"of the parent's {each.noun} budget {each.spelt(left)} is left beside its own use, what its requests"
                " under way may come to, and its children's shares"
            )
            said += f", and its delivery asks for {surely}" if surely > left else ""
            return _waits("ParentBudget", f"{said}: ask for less, or wait until one of them ends")
        found[each.limit] = share
    return own.model_copy(update=found)


def _share(of: Dimension, left: int, asked: int | None, most: int | None, least: int) -> int | None:
    """None where there is too little."""
    if asked is not None:
        return asked if asked <= left else None
    if left < least:
        return None
    half = max(left // 2, least)
    if half == 0 and most != 0 and of not in DISPENSABLE:
        return None
    return half if most is None else min(half, most)


def as_limits(share: Share, theirs: ResolvedLimits) -> dict[str, int]:
    """A share as hard limits by their fields, in the dimensions that the parent limits."""
    return {each.limit: getattr(share, each.uses) for each in SHARED if each.hard(theirs) is not None}


def reserve_of(limits: ResolvedLimits) -> Share:
    """What a child with these limits may come to; what it is free in takes nothing from a limit of its parent's."""
    return Share(**{each.uses: each.hard(limits) or 0 for each in SHARED})


def same_share(one: Share, other: Share, theirs: ResolvedLimits) -> bool:
    """Whether both are the same to a parent with these limits."""
    return as_limits(one, theirs) == as_limits(other, theirs)


def asking(share: Share) -> dict[str, int]:
    """The share by dimension, as a context asks for it; nothing is asked for where there is none."""
    amounts = {each.name: getattr(share, each.uses) for each in SHARED}
    return {name: amount for name, amount in amounts.items() if amount}
