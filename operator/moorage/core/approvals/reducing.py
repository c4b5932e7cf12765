"""How records change what a run waits for (T6). A question is asked once and answered once; the first answer stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moorage.core.approvals.consent import (
    APPROVED,
    DELIVERY,
    EGRESS,
    PENDING,
    REJECTED,
    TIMEOUT,
    Consent,
    asked,
    kept,
)
from moorage.core.journal.record import Record
from moorage.core.run.changes import NOTHING, Changes, to
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.state import RunState

ASKING = frozenset({RunPhase.RUNNING, RunPhase.VERIFYING})


def requested(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The run waits, unless it stands still for another reason already."""
    if asked(s.consents, p["key"]) is not None:
        return NOTHING
    told = (p["key"], p["name"], p["before"], p.get("subject", ""))
    consent = Consent(*told, PENDING, r.recorded_at, p.get("reject_at"), offset=r.seq)
    consents = kept((*s.consents, consent))
    if s.phase not in ASKING or not _holds_up(s, consent):
        return {"consents": consents}
    return to(s, RunPhase.AWAITING_APPROVAL, r.type, consents=consents)


def _holds_up(s: RunState, consent: Consent) -> bool:
    """An agent may have other things to do than to reach a host. Once it has proposed its result, what it asked before
    is nobody's business any more.
    """
    return consent.before != EGRESS if s.proposal is None else consent.before == DELIVERY


def decided(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Once nothing is pending any more, the run goes on where it stood."""
    consent = asked(s.consents, p["key"])
    if consent is None or not consent.pending:
        return NOTHING
    if p["outcome"] not in {APPROVED, REJECTED}:
        raise IllegalMove(s.phase, s.phase, f"an approval can't end {p['outcome']!r}")
    answered = replace(consent, status=p["outcome"], at=r.recorded_at, by=p.get("by", ""), reason=p.get("reason", ""))
    consents = kept(tuple(answered if each is consent else each for each in s.consents))
    usage = s.usage if answered.by == TIMEOUT else s.usage.plus("human_approvals")
    if s.phase is not RunPhase.AWAITING_APPROVAL or any(each.pending and _holds_up(s, each) for each in consents):
        return {"consents": consents, "usage": usage}
    back = RunPhase.RUNNING if s.proposal is None else RunPhase.VERIFYING
    return to(s, back, r.type, consents=consents, usage=usage)
