"""decide(observed, now) -> Plan: an ordered chain of small policies, each pure; the first that has a say decides.

Invariants
- An action is planned only from what was observed, never from what an earlier plan meant to do: any pass may be the
  first one after a crash, and a crash between two actions is finished by the next pass (F2).
- No sandbox is started while an older one of the same run may still write the volume.
- A terminal record is planned only with its evidence in the journal: succeeded needs a completed agent, a verdict on
  the proposed commit where one was asked, and a confirmed push where one was asked.
- The run is looked at again no later than its next deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from moorage.core.run.actions import Plan, StartSandbox
from moorage.core.run.admission import admitted, not_admitted
from moorage.core.run.approving import answering, due
from moorage.core.run.attempts import attempt, ownership, recovering
from moorage.core.run.ending import cancelling, ended
from moorage.core.run.observed import Observed
from moorage.core.run.parenthood import awaiting_children, share_spent, with_children
from moorage.core.run.pausing import clock_ends, pausing, raising
from moorage.core.run.result import agent_ended
from moorage.core.run.state import RunState
from moorage.core.run.waiting import classified
from moorage.core.run.words import fail, placed
from moorage.core.scheduling.explain import recheck_ms, wait_of

GATEWAY_RETRY_MS = 1_000

Policy = Callable[[Observed, RunState, int], Plan | None]


def decide(o: Observed, now: int) -> Plan:
    """Return the next plan. `now` is in milliseconds since the epoch, UTC."""
    if o.closed_without_journal:
        return Plan()
    if o.journal is None:
        return Plan(requeue_ms=GATEWAY_RETRY_MS, reason="GatewayUnavailable", message=o.gateway_trouble)
    for policy in POLICIES:
        plan = policy(o, o.journal, now)
        if plan is not None:
            return _completed(plan, o, o.journal, now)
    return _completed(Plan(), o, o.journal, now)


def _completed(plan: Plan, o: Observed, s: RunState, now: int) -> Plan:
    """With what belongs to every plan."""
    return _in_time(_with_placements(with_children(_in_turn(plan, o), o, s, now), o, s), o, s, now)


def _in_turn(plan: Plan, o: Observed) -> Plan:
    """C6: who was refused a sandbox has given its slot back, and starts one when it is its turn again."""
    if o.slots.free or not any(isinstance(action, StartSandbox) for action in plan.actions):
        return plan
    return Plan(requeue_ms=recheck_ms(o.slots), reason="Queued", message=wait_of(o.slots))


def _with_placements(plan: Plan, o: Observed, s: RunState) -> Plan:
    """O4: the plan, after the word on where sandboxes run that it isn't known of yet. Waits for nothing."""
    if o.released:
        return plan
    ours, known = {x.pod_uid for x in s.sandboxes}, {p.pod_uid for p in s.placements}
    news = tuple(placed(v, v.environment) for v in o.sandboxes if v.environment and v.uid in ours - known)
    return replace(plan, actions=(*news, *plan.actions)) if news else plan


def deadline(o: Observed, s: RunState, now: int) -> Plan | None:
    """C2: it is absolute: an EMERGENCY_STOP that ends the run, wherever it stands."""
    limit = o.spec.timeouts.deadline_ms if o.spec else None
    if limit is None or s.admitted_at is None or now < o.created_at + limit:
        return None
    end = fail("DeadlineExceeded", f"scheduling.deadline of {limit // 1000} s has passed")
    return Plan(actions=(*classified(s.effects), end), requeue_ms=1)


def _in_time(plan: Plan, o: Observed, s: RunState, now: int) -> Plan:
    """The plan, with the next deadline as the latest time to look again.

    One that has passed is none: whoever acts on it was asked in this pass, and would be as idle in the next.
    """
    if s.end is not None:
        return plan
    limit = o.spec.timeouts.deadline_ms if o.spec else None
    ends = [] if limit is None or s.admitted_at is None else [o.created_at + limit]
    waits = [at - now for at in (*ends, *clock_ends(o, s)) if at > now]
    for wait in (plan.requeue_ms, due(s, now)):
        waits += [] if wait is None else [wait]
    return replace(plan, requeue_ms=min(waits)) if waits else plan


POLICIES: tuple[Policy, ...] = (
    not_admitted,
    ended,
    cancelling,
    deadline,
    raising,
    answering,
    share_spent,
    pausing,
    admitted,
    ownership,
    awaiting_children,
    agent_ended,
    recovering,
    attempt,
)
