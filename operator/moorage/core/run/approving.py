"""Policies of what waits for a person (T6): asking before the result leaves, giving up in time where that was said, and
letting a sandbox go that would only wait.
"""

from __future__ import annotations

from moorage.api.wire import ResolvedApproval, ResolvedRun
from moorage.core.approvals.consent import (
    APPROVED,
    COST,
    DELIVERY,
    PENDING,
    REJECTED,
    TIMEOUT,
    Consent,
    asked,
    delivery_key,
    for_delivery,
    parking,
    refused_spending,
)
from moorage.core.constraints.limits import HUMAN_APPROVALS
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Plan, Report
from moorage.core.run.limits import Spent, how_to_raise, spent_of
from moorage.core.run.observed import Observed
from moorage.core.run.pauses import pausable
from moorage.core.run.state import PauseReason, Proposal, RunState
from moorage.core.run.words import ask_to_pause, fail, report

PARK_MS = 60_000  # a person who is there answers sooner; a sandbox that only waits costs its slot and its node
WITHOUT_SAFE_POINTS = frozenset({"command"})  # drivers that have none but those that their program reports
NOBODY = "nobody answered in the time that its approval allows"


def answering(o: Observed, s: RunState, now: int) -> Plan | None:
    """Each question that was to be answered by now, and a sandbox that has waited long enough."""
    if s.end is not None or s.cancel_stage is not None:
        return None
    late = tuple(_given_up(each) for each in s.consents if each.overdue(now))
    if late:
        return Plan(actions=late, requeue_ms=1)
    pending = _parking(s)
    if pending is not None and o.live_sandboxes and now >= _park_at(s, pending) and not _loses_work(o, s, pending):
        asking = ask_to_pause(s, PauseReason.APPROVAL, parked_for(pending), by="approvals")
        return Plan(actions=(asking,), requeue_ms=1)
    return None


def _parking(s: RunState) -> Consent | None:
    """What an agent at work would only wait for; one that is done has nobody who waits, whatever it asked before."""
    return parking(s.consents, s.epoch) if pausable(s) and s.pause is None else None


def _loses_work(o: Observed, s: RunState, pending: Consent) -> bool:
    """A program that has reported no safe point would begin anew, and spend the same again up to the same question.
    Drivers that ask before tool calls have safe points.
    """
    mute = o.spec is not None and o.spec.agent.driver in WITHOUT_SAFE_POINTS and s.attempt_safe_points == 0
    return mute and pending.before == COST


def _park_at(s: RunState, pending: Consent) -> int:
    """A new attempt's person gets the same time as the first one's."""
    return max(pending.at, s.attempt_began_at or 0) + PARK_MS


def parked_for(pending: Consent) -> str:
    """Why a run stands still."""
    return f"waits for the approval {pending.name}: {pending.subject}"


def held_for(spec: ResolvedRun, pending: Consent) -> str:
    """What lets one go on that stands still. Nobody keeps a process for it on a user's own machine."""
    then = "; then run its manifest again" if _is_local(spec) else ""
    return f"{parked_for(pending)}: {_to_answer(spec, pending)}{then}"


def refused_to_spend(spec: ResolvedRun, s: RunState) -> str | None:
    """Who has said that the run may not spend on, and why; None where nobody has, of the step that is due."""
    found = refused_spending(spec.approvals, s.consents, s.committed_micros)
    if found is None:
        return None
    return f"spending on was refused by {found.by or 'somebody'}" + (f": {found.reason}" if found.reason else "")


def asked_anew_by(spec: ResolvedRun) -> str:
    """What to do about a refusal that isn't the last word."""
    if _is_local(spec):
        return "run its manifest again to be asked anew"
    return f"to be asked anew: {_command(spec, 'resume')}; to end it: {_command(spec, 'cancel')}"


def goes_on_by_a_word(spec: ResolvedRun) -> str:
    """What lets one go on that stands still until somebody asks for it."""
    return "to go on, run its manifest again" if _is_local(spec) else f"to go on: {_command(spec, 'resume')}"


def _given_up(pending: Consent) -> Report:
    said = {"key": pending.key, "outcome": REJECTED, "by": TIMEOUT, "reason": NOBODY}
    return report(RecordType.APPROVAL_DECIDED, said, pending.offset)


def due(s: RunState, now: int) -> int | None:
    """In how many milliseconds the first of the questions has to be looked at again; None where nobody would act."""
    if s.end is not None or s.cancel_stage is not None:
        return None
    times = [each.reject_at for each in s.consents if each.pending and each.reject_at is not None]
    pending = _parking(s)
    if pending is not None:
        times.append(_park_at(s, pending))
    return min((at - now for at in times if at > now), default=None)


def before_delivery(o: Observed, s: RunState, spec: ResolvedRun, proposal: Proposal, now: int) -> Plan | None:
    """None once every approval of the result is there; else the plan that asks, waits, or ends the run."""
    for approval in for_delivery(spec.approvals):
        consent = asked(s.consents, delivery_key(approval.name, proposal.commit))
        if consent is None and (reached := spent_of(HUMAN_APPROVALS, spec.limits, s)) is not None:
            return _unasked(spec, approval, reached, proposal)
        if consent is None:
            return _asks(s, spec, approval, proposal, now)
        if consent.pending:
            return Plan(reason="AwaitingApproval", message=told(spec, consent), requeue_ms=due(s, now))
        if consent.status != APPROVED:
            return Plan(actions=(_refused(approval, consent, proposal),), requeue_ms=1)
    return None


def _unasked(spec: ResolvedRun, approval: ResolvedApproval, reached: Spent, proposal: Proposal) -> Plan:
    """B3: nobody may be asked any more. The result waits for the raise, and costs nothing meanwhile; a child's limits
    aren't raised.
    """
    why = f"nobody may be asked for the approval {approval.name}: {reached.message}"
    if spec.parent is not None:
        ends = fail(PauseReason.BUDGET, f"{why}. {_kept(proposal)}", proposal.commit)
        return Plan(actions=(ends,), requeue_ms=1)
    return Plan(reason=PauseReason.BUDGET, message=f"{why}; {how_to_raise(spec, reached.limit)}")


def told(spec: ResolvedRun, consent: Consent) -> str:
    """What is waited for, and what to do."""
    return f"{consent.subject}: {_to_answer(spec, consent)}"


def _to_answer(spec: ResolvedRun, consent: Consent) -> str:
    """The command says which question it answers: another may wait by then."""
    return f"{_command(spec, 'approve', consent.name, '--question', consent.key)}, or reject"


def _command(spec: ResolvedRun, name: str, *arguments: str) -> str:
    """A command to the run, as it can be given by whoever reads it, whatever namespace is theirs."""
    where = () if _is_local(spec) else ("-n", spec.tenant)
    return " ".join(("moorage" if _is_local(spec) else "kubectl moorage", name, spec.name, *arguments, *where))


def _is_local(spec: ResolvedRun) -> bool:
    return spec.placement == "local"


def _asks(s: RunState, spec: ResolvedRun, approval: ResolvedApproval, proposal: Proposal, now: int) -> Plan:
    """Each attempt that proposes a result asks for it: another's question is withdrawn, were it of the same commit.
    The phase's one Event is told in the pass that asks, and has to say what for.
    """
    key, subject = delivery_key(approval.name, proposal.commit), f"{proposal.commit[:12]} is to be delivered"
    until = None if approval.reject_after_ms is None else now + approval.reject_after_ms
    said = {"key": key, "name": approval.name, "before": DELIVERY, "subject": subject, "reject_at": until}
    asking = report(RecordType.APPROVAL_REQUESTED, said, approval.name, s.epoch)
    message = told(spec, Consent(key, approval.name, DELIVERY, subject, PENDING, now))
    return Plan(actions=(asking,), requeue_ms=1, reason="AwaitingApproval", message=message)


def _refused(approval: ResolvedApproval, consent: Consent, proposal: Proposal) -> Report:
    who = f" by {consent.by}" if consent.by else ""
    why = f"the approval {approval.name} was refused{who}" + (f": {consent.reason}" if consent.reason else "")
    return fail("ApprovalRejected", f"{why}. {_kept(proposal)}", proposal.commit)


def _kept(proposal: Proposal) -> str:
    return f"{proposal.commit} is kept until the run is released: `kubectl moorage diff` shows it"
