"""X2, N3: how a parent's plan waits for its children, and has their shares settled."""

from __future__ import annotations

from dataclasses import replace

from moorage.api.wire import ResolvedRun
from moorage.core.constraints.context import lived_ms
from moorage.core.constraints.limits import SHARED
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Action, CreateChild, Plan, Report, SettleChildren
from moorage.core.run.ending import stop
from moorage.core.run.limits import spent
from moorage.core.run.observed import Observed
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Pause, PauseReason, RunState
from moorage.core.run.waiting import classified
from moorage.core.run.words import fail, report

PATIENCE_MS = 300_000  # N3: so long a parent that has said that it is done waits for its children
SETTLE_MS = 2_000  # a child has ended, and what it used isn't all known yet
RECHECK_MS = 30_000  # the end of a child wakes its parent; this is the net below
ENDS = frozenset({RecordType.RUN_SUCCEEDED, RecordType.RUN_FAILED, RecordType.RUN_CANCELLED})


def awaiting_children(o: Observed, s: RunState, now: int) -> Plan | None:
    """N3: an agent's end is judged once its children have ended; 300 s later they are told to."""
    end = s.agent_end
    if end is None or end.outcome != "completed" or not s.open_children:
        return None
    left = end.at + PATIENCE_MS - now
    if s.children_ending:
        return _closing(s)
    if left > 0:
        why = f"the agent is done, and waits {PATIENCE_MS // 1000} s at most for: {_named(s)}"
        return Plan(reason="ChildrenRunning", message=why, requeue_ms=left)
    return Plan(actions=(_told_to_end(s),), requeue_ms=1)


def share_spent(o: Observed, s: RunState, now: int) -> Plan | None:
    """B3: a child that is stopped for want of budget has ended: its limits aren't raised, so nothing makes it go on.
    One that gave its share to children of its own waits for what they give back, as any run does; and so does one
    whose spending somebody has refused, until it is asked anew.
    """
    pause, spec = s.pause, o.spec
    if spec is None or spec.parent is None or s.phase is not RunPhase.PAUSED or pause is None:
        return None
    if pause.reason != PauseReason.BUDGET or pause.by == "approvals" or _may_come_back(s, pause):
        return None
    if (pause.widened or pause.released) and not _spent(spec, s, pause, o):
        return None
    shared = pause.limit in {None, *(each.limit for each in SHARED)}
    what = f"its share of the budget of {spec.parent.name} is used up" if shared else "a child's limits aren't raised"
    return Plan(actions=(*classified(s.effects), fail(pause.reason, f"{what}: {pause.message}")), requeue_ms=1)


def _may_come_back(s: RunState, pause: Pause) -> bool:
    """Whether a child of its own holds some of what it was stopped for."""
    concerned = [each.uses for each in SHARED if pause.limit in {None, each.limit}]
    return any(getattr(child.reserve, uses) for child in s.open_children for uses in concerned)


def _spent(spec: ResolvedRun, s: RunState, pause: Pause, o: Observed) -> bool:
    lived = lived_ms(s, s.idle_since or pause.at)
    return spent(spec.limits, s, iterations=o.iterations, lived_ms=lived) is not None


def with_children(plan: Plan, o: Observed, s: RunState, now: int) -> Plan:
    """The plan, with the settlement of children that were seen to have ended; an end of the run waits for all of them.
    What is due to the run itself comes first: a child that can't be settled or made keeps nothing else.

    Whatever keeps it waiting, nothing of the run's own goes on meanwhile where it didn't end by itself.
    """
    if not s.open_children:
        return plan
    over = SettleChildren(o.children_gone, o.children_over, o.children_why)
    settle: tuple[Action, ...] = (over,) if o.children_over else ()
    if any(isinstance(each, Report) and each.type in ENDS for each in plan.actions):
        plan = _closing(s, () if s.agent_end else _stops(o, now))
    create: tuple[Action, ...] = tuple(CreateChild(name) for name in o.children_wanted)
    made = () if s.end else tuple(_made(name, uid) for name, uid in o.children_made)
    waits = [SETTLE_MS if o.children_over else RECHECK_MS, *([plan.requeue_ms] if plan.requeue_ms else [])]
    own = (*settle, *plan.actions) if s.end else (*plan.actions, *settle)  # a sealed journal takes no settlement
    return replace(plan, actions=(*own, *made, *create), requeue_ms=min(waits))


def _stops(o: Observed, now: int) -> tuple[Action, ...]:
    return tuple(action for view in o.live_sandboxes for action in stop(view, now, "RunEnded", 0))


def _closing(s: RunState, stops: tuple[Action, ...] = ()) -> Plan:
    told = () if s.children_ending else (_told_to_end(s),)
    why = f"its children end first: {_named(s)}"
    return Plan(actions=(*told, *stops), reason="ClosingChildren", message=why, requeue_ms=SETTLE_MS)


def _told_to_end(s: RunState) -> Report:
    return report(RecordType.CHILDREN_ENDING, {}, s.epoch)


def _made(name: str, uid: str) -> Report:
    return report(RecordType.CHILD_MADE, {"name": name, "uid": uid}, uid)


def _named(s: RunState) -> str:
    return ", ".join(each.name for each in s.open_children[:8])
