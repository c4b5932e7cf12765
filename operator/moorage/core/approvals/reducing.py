"""How records change what a run waits for (T6). A question is asked once and answered once; the first answer stands.

One that nobody waits for any more is withdrawn: its agent has ended, or another attempt works on and doesn't come to
it. It is forgotten as if it had never been asked, costs nobody an answer, and is asked anew where somebody does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moorage.core.approvals.consent import (
    APPROVED,
    COST,
    DELIVERY,
    EGRESS,
    PARKED,
    PENDING,
    REJECTED,
    TIMEOUT,
    TOOL_CALL,
    Consent,
    asked,
    asked_in,
    is_about,
    kept,
)
from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes, to
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.state import PauseReason, RunState

ASKING = frozenset({RunPhase.RUNNING, RunPhase.VERIFYING})
STOPPED = frozenset({"paused", "unknown"})  # outcomes of an agent whose next attempt comes to the same questions


def requested(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The run waits, unless it stands still for another reason already. Who asks after its end is heard no more, and a
    new attempt comes to the question of an earlier one: it is the same, with the time that it has left, unless it is
    about something else by now. Where somebody has answered, that answer is the new attempt's.
    """
    if asked_in(s.consents, p["key"], s.epoch) is not None or (ended(s) and p["before"] != DELIVERY):
        return NOTHING
    new, known = _question(r, p), asked(s.consents, p["key"])
    if known is not None and not known.pending:
        return {"consents": _with(s.consents, replace(known, epoch=s.epoch))}
    consent = replace(known if known is not None and known.subject == new.subject else new, epoch=s.epoch)
    consents = _with(s.consents, consent)
    if s.phase not in ASKING or not _holds_up(s, consent):
        return {"consents": consents}
    return to(s, RunPhase.AWAITING_APPROVAL, r.type, consents=consents)


def _with(consents: tuple[Consent, ...], consent: Consent) -> tuple[Consent, ...]:
    """In the place of the one of its key, else as the last."""
    if asked(consents, consent.key) is None:
        return kept((*consents, consent))
    return kept(tuple(consent if each.key == consent.key else each for each in consents))


def _question(r: Record, p: Mapping[str, Any]) -> Consent:
    subject, until = p.get("subject", ""), p.get("reject_at")
    call = p.get("call", "")
    return Consent(p["key"], p["name"], p["before"], subject, PENDING, r.recorded_at, until, offset=r.seq, call=call)


def _holds_up(s: RunState, consent: Consent) -> bool:
    """An agent may have other things to do than to reach a host. Once it has proposed its result, what it asked before
    is nobody's business any more; nor is ever what an earlier attempt asked.
    """
    mine = consent.before != EGRESS if s.proposal is None else consent.before == DELIVERY
    return mine and consent.epoch == s.epoch


def ended(s: RunState) -> bool:
    """This attempt's agent asks for nothing any more. One that was stopped on its way, or lost, is gone on from."""
    return s.agent_end is not None and s.agent_end.outcome not in STOPPED


def agent_ended(s: RunState, r: Record, outcome: str) -> Changes:
    """It waits for nothing any more, and neither does its run; what it has come to is told next."""
    if outcome in STOPPED:
        return NOTHING
    consents = tuple(each for each in s.consents if not each.pending or each.before == DELIVERY)
    if s.phase is not RunPhase.AWAITING_APPROVAL or s.proposal is not None:
        return {"consents": consents}
    return to(s, RunPhase.RUNNING, r.type, consents=consents)


def attempt_began(s: RunState) -> tuple[Consent, ...]:
    """The next attempt asks itself for the hosts that it needs, and proposes a result of its own."""
    return tuple(each for each in s.consents if not each.pending or each.before in PARKED)


def gone_on(s: RunState, reason: str) -> Changes:
    """Who lets a run go on that stands for want of budget has what was refused to it asked anew."""
    left = tuple(c for c in s.consents if c.before != COST or c.status != REJECTED)
    return {"consents": left} if reason == PauseReason.BUDGET and len(left) < len(s.consents) else NOTHING


def iteration_over(s: RunState, r: Record) -> Changes:
    """All calls of it are done: one that nobody has answered isn't made any more, whoever asked, and this attempt's
    answers are used up. An answer to an earlier one waits for the call that it is about.
    """
    return _left(s, r, kept(tuple(_made(c, s.epoch) for c in s.consents if not c.pending or c.before != TOOL_CALL)))


def call_over(s: RunState, r: Record) -> Changes:
    """Who asks about a call and gives it up doesn't wait for the answer: an agent may do so over and over, and no safe
    point come.
    """
    over = r.tool_call_id or ""
    gone = {c.key for c in s.consents if c.pending and c.epoch == s.epoch and is_about(c, over)}
    return _left(s, r, tuple(c for c in s.consents if c.key not in gone)) if gone else NOTHING


def _left(s: RunState, r: Record, left: tuple[Consent, ...]) -> Changes:
    """These alone; the run goes on once none of them holds it up."""
    if left == s.consents:
        return NOTHING
    if s.phase is not RunPhase.AWAITING_APPROVAL or any(each.pending and _holds_up(s, each) for each in left):
        return {"consents": left}
    return to(s, RunPhase.RUNNING, r.type, consents=left)


def _made(consent: Consent, epoch: int) -> Consent:
    return replace(consent, call="") if consent.epoch == epoch else consent


def decided(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Once nothing is pending any more, the run goes on where it stood. A person's word is counted here, unless the
    record itself says what it used.
    """
    consent = asked(s.consents, p["key"])
    if consent is None or not consent.pending:
        return NOTHING
    if p["outcome"] not in {APPROVED, REJECTED}:
        raise IllegalMove(s.phase, s.phase, f"an approval can't end {p['outcome']!r}")
    answered = replace(consent, status=p["outcome"], at=r.recorded_at, by=p.get("by", ""), reason=p.get("reason", ""))
    consents = kept((*(each for each in s.consents if each.key != answered.key), answered))  # the newest answer
    uncounted = answered.by == TIMEOUT or p.get("usage")
    changes: dict[str, Any] = {"consents": consents}
    if not uncounted:
        changes["usage"] = s.usage.plus("human_approvals")
    if s.phase is not RunPhase.AWAITING_APPROVAL or any(each.pending and _holds_up(s, each) for each in consents):
        return changes
    back = RunPhase.RUNNING if s.proposal is None else RunPhase.VERIFYING
    return to(s, back, r.type, **changes)
