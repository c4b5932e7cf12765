"""Policies after the agent's end: judge, verify and deliver what it proposes. Its own word is not success (N4, V3)."""

from __future__ import annotations

from moorage.api.wire import ResolvedRun, Role
from moorage.core.effects.pulls import KIND as PULL
from moorage.core.journal.record import RecordType
from moorage.core.run.actions import Action, Deliver, Plan, RegisterSandbox, Report, StartSandbox, StopSandbox
from moorage.core.run.approving import before_delivery
from moorage.core.run.ending import DELIVERY_RETRY_MS, not_known
from moorage.core.run.observed import Observed, SandboxView
from moorage.core.run.rework import next_round, to_be_heard
from moorage.core.run.state import Deferral, Effect, Proposal, RunState, SandboxRef
from moorage.core.run.waiting import (
    DELIVERING,
    classified,
    due,
    explained,
    next_try,
    stuck,
    unknown_of,
    unsettled,
    until_stuck,
    why_waiting,
)
from moorage.core.run.words import attempt_ended, fail, lacking, lost, report

MAX_VERIFIER_LOSSES = 3
PUSHED = "The branch is pushed: make the pull request by hand, or mend the cause and run again"
VERIFIER_SLACK_MS = 600_000  # checkout and set-up, beside the commands' own limits


def agent_ended(o: Observed, s: RunState, now: int) -> Plan | None:
    """The run's way from its agent's last word to a verdict."""
    end = s.agent_end
    if end is None or end.outcome in {"unknown", "paused"}:
        return None
    if (settling := unsettled(s)) is not None:
        return settling
    if end.outcome != "completed":
        why = end.message or f"the agent ended with exit code {end.exit_code}"
        return Plan(actions=(fail(end.reason or "AgentFailed", why),))
    if s.proposal is None or o.spec is None:
        return None
    return _judge(o, s, o.spec, s.proposal, now)


def _judge(o: Observed, s: RunState, spec: ResolvedRun, proposal: Proposal, now: int) -> Plan:
    if (unheard := to_be_heard(s, spec)) is not None:
        return Plan(actions=(unheard,), requeue_ms=1)
    delivery = spec.delivery
    if proposal.empty and delivery is not None and not delivery.allow_empty:
        why = "the agent ended without a change; set delivery.allowEmpty if that can be right"
        return Plan(actions=(fail("NoChange", lacking(s, why)),))
    if spec.acceptance:
        unproved = _verify(o, s, spec, proposal, now)
        if unproved is not None:
            return unproved
    if delivery is not None and not proposal.empty:
        waits = before_delivery(o, s, spec, proposal, now)
        if waits is not None:
            return waits
        if delivery.push:
            return _deliver(o.uid, s, spec, proposal, now)
    return Plan(actions=(_succeed(s, proposal),), requeue_ms=1)


def _succeed(s: RunState, proposal: Proposal) -> Report:
    commit = None if proposal.empty else proposal.commit
    return report(RecordType.RUN_SUCCEEDED, {"reason": "Completed", "message": lacking(s), "commit": commit}, "end")


def _verify(o: Observed, s: RunState, spec: ResolvedRun, proposal: Proposal, now: int) -> Plan | None:
    """None once the proposed commit has passed; else the plan that leads there or ends the run."""
    verdict = s.verification
    if verdict is not None and verdict.commit == proposal.commit and verdict.problem is None:
        if verdict.passed:
            return None
        return Plan(actions=(next_round(s, spec, proposal, verdict),), requeue_ms=1)
    if s.verifications_lost >= MAX_VERIFIER_LOSSES:
        why = _last_trouble(s)
        return Plan(actions=(fail("VerifierLost", f"acceptance could not be run: {why}", proposal.commit),))
    return _verifier(o, s, spec, proposal.commit, now)


def _last_trouble(s: RunState) -> str:
    if s.verification is not None and s.verification.problem:
        return s.verification.problem
    return s.verifier_trouble or "the verifier's sandbox died"


def _verifier(o: Observed, s: RunState, spec: ResolvedRun, commit: str, now: int) -> Plan:
    """Bring up the verifier number `serial` of this epoch, then wait for its verdict."""
    serial, known = verifier_serial(s), verifier_at_work(s)
    if known is None:
        return _start_verifier(o, s, commit, serial)
    view = next((v for v in o.sandboxes if v.uid == known.pod_uid), None)
    if view is None or view.ended:
        return Plan(actions=(lost(s, Role.VERIFIER, view, serial),), requeue_ms=1)
    return stuck(o, view, now) or _await_verdict(s, spec, view, serial, now)


def verifier_serial(s: RunState) -> int:
    """The number of the verifier that is, or will be, at work in this epoch, from 0."""
    return s.verifications_lost + s.verifiers_interrupted


def verifier_at_work(s: RunState) -> SandboxRef | None:
    """The verifier that was registered, and of whose end nothing was told."""
    mine = [x for x in s.sandboxes if x.role == Role.VERIFIER and x.epoch == s.epoch]
    return mine[-1] if len(mine) > s.verifications_lost else None


def _start_verifier(o: Observed, s: RunState, commit: str, serial: int) -> Plan:
    registered = {x.pod_uid for x in s.sandboxes}
    stray = next((v for v in _verifiers(o, s) if v.uid not in registered and not v.ended), None)
    if stray is not None:
        return Plan(actions=(RegisterSandbox(stray.name, stray.uid, s.epoch, Role.VERIFIER, commit),), requeue_ms=1)
    return Plan(
        actions=(StartSandbox(s.epoch, Role.VERIFIER, serial, commit),),
        reason="Verifying",
        message="acceptance commands run on the proposed commit",
    )


def _verifiers(o: Observed, s: RunState) -> list[SandboxView]:
    return [v for v in o.sandboxes if v.role == Role.VERIFIER and v.epoch == s.epoch]


def _await_verdict(s: RunState, spec: ResolvedRun, view: SandboxView, serial: int, now: int) -> Plan:
    if view.started_at is None:
        reason, message = why_waiting(spec, view, now)
        return Plan(reason=reason or "Verifying", message=message, requeue_ms=until_stuck(spec, view, now))
    limit = sum(check.timeout_ms for check in spec.acceptance) + VERIFIER_SLACK_MS
    left = view.started_at + limit - now
    if left > 0:
        return Plan(reason="Verifying", message="acceptance commands run on the proposed commit", requeue_ms=left)
    why = f"no verdict after {limit // 1000} s"
    end = attempt_ended(s, Role.VERIFIER, "VerifierTimeout", why, serial)
    return Plan(actions=(StopSandbox(view.name, view.uid, "VerifierTimeout", 0), end), requeue_ms=1)


def _deliver(uid: str, s: RunState, spec: ResolvedRun, proposal: Proposal, now: int) -> Plan:
    """Push, then ask for a merge where that is wanted, until the remote has said something to either, for
    `timeouts.delivery` at most.
    """
    effect, pull = s.delivered(), spec.delivery.pull_request if spec.delivery else None
    if effect is not None and effect.status == "confirmed" and pull is not None:
        effect = s.asked_for_merge()
    if effect is not None and effect.status == "confirmed":
        return Plan(actions=(_succeed(s, proposal),), requeue_ms=1)
    if effect is not None and effect.status == "rejected":
        return Plan(actions=(_rejected(effect, proposal),), requeue_ms=1)
    if s.deferral is None:
        reason = "EffectUnknown" if effect is not None and effect.status == "unknown" else "Delivering"
        return Plan(actions=(Deliver(proposal.commit),), requeue_ms=DELIVERY_RETRY_MS, reason=reason)
    limit = s.deferral.since + spec.timeouts.delivery_ms
    if now >= limit:
        return Plan(actions=_undelivered(s, s.deferral, proposal, spec.timeouts.delivery_ms), requeue_ms=1)
    return _try_again(uid, s.deferral, proposal, limit, now)


def _rejected(effect: Effect, proposal: Proposal) -> Report:
    reason, _, message = effect.detail.partition(": ")
    kept = (
        f"{proposal.commit} is kept until the run is released: `kubectl moorage diff` shows it, and `git apply` takes"
        " that; or mend the cause and run again"
    )
    why = f"{(message or effect.detail).rstrip('.')}. {PUSHED if effect.kind == PULL else kept}"
    return fail(reason or "DeliveryRejected", why, proposal.commit)


def _try_again(uid: str, waited: Deferral, proposal: Proposal, limit: int, now: int) -> Plan:
    again = due(uid, waited, now)
    wait = DELIVERY_RETRY_MS if again else next_try(uid, waited) - now
    return Plan(
        actions=(Deliver(proposal.commit),) if again else (),
        requeue_ms=min(wait, limit - now),
        reason=waited.reason,
        message=explained(uid, waited, limit),
    )


def _undelivered(s: RunState, waited: Deferral, proposal: Proposal, patience_ms: int) -> tuple[Action, ...]:
    """The remote had its time. The work is kept, and what is not known is called neither success nor failure (E4)."""
    unknown = tuple(effect for effect in unknown_of(s) if effect.kind in DELIVERING)
    if unknown:
        end = fail("EffectUnknown", f"{not_known(unknown)}. The last answer was: {waited.message}", proposal.commit)
        return (*classified(s.effects), end)
    push = s.delivered()
    if push is not None and push.status == "confirmed":
        why = f"no pull request could be made within {patience_ms // 1000} s: {waited.message}. {PUSHED}"
        return (*classified(s.effects), fail(waited.reason, why, proposal.commit))
    why = (
        f"{proposal.commit} could not be delivered within {patience_ms // 1000} s: {waited.message}. Nothing was"
        " pushed. The commit is kept until the run is released (`kubectl moorage diff` shows it); when the remote is"
        " back, run again, with a longer timeouts.delivery if need be"
    )
    return (*classified(s.effects), fail(waited.reason, why, proposal.commit))
