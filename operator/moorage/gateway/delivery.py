"""E1, E5: the push upstream. Look, intent, dispatch, receipt; and where no receipt came, a look at the remote first.

A push is a compare-and-swap on the branch as it was meant to be found, so that two of them can't both move it. Nothing
is meant before the remote could be asked; a push whose end isn't known is never repeated blindly: the remote is asked,
and its answer is journaled as reconciliation. When to try again, and when to give up, is the operator's plan; each try
that comes to nothing is a record (EFFECT_DEFERRED), so that a restart of either forgets none.
"""

from __future__ import annotations

import hashlib
from functools import partial

from moorage.core.approvals.consent import unmet
from moorage.core.effects import http, pulls
from moorage.core.effects.levels import Level
from moorage.core.journal.record import Draft, RecordType
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect
from moorage.core.run.waiting import due
from moorage.gateway.calls import Calls
from moorage.gateway.effects import DETAIL_LIMIT, EffectLog
from moorage.gateway.errors import Refusal
from moorage.gateway.facts import Intent
from moorage.gateway.gate import Gate, mirror_key
from moorage.gateway.ledger import Run
from moorage.gateway.outward import Unreached
from moorage.gateway.pulls import PullRequests
from moorage.gateway.reconciling import Reconciling
from moorage.gateway.sending import demand_still
from moorage.gateway.underway import UnderWay, settling
from moorage.gateway.upstream import Trouble, reason_of, trouble_of, upstream_of
from moorage.points import Point, reached
from moorage.workspace.errors import BranchExists, DeliveryRejected, WorkspaceError
from moorage.workspace.mirror import PushKind, PushOutcome
from moorage.workspace.upstream import AnyUpstream, Closure, Seen, closure, taken

KIND = "git_push"
QUIET_MS = 10_000
"""A remote may still be at work on a push whose connection was cut: for so long, an absent branch proves nothing."""

Verdict = tuple[str, str]  # outcome and detail of a receipt


def effect_key(run_uid: str, commit: str) -> str:
    """E2: stable over retries; one per run and commit."""
    return hashlib.sha256(f"{run_uid}:deliver:{commit}".encode()).hexdigest()


class NoRemote(Refusal):
    """An ephemeral workspace: there is nowhere to push to."""

    status, reason = 424, "NoRemote"


class Delivery:
    """Delivers verified commits. One call per run at a time; other runs don't wait."""

    def __init__(self, gate: Gate, calls: Calls, under_way: UnderWay) -> None:
        self._gate = gate
        self._mirrors = gate.deps.mirrors
        self._log = EffectLog(gate)
        self._pulls = PullRequests(gate, self._log)
        kinds = {KIND: self.reconcile, http.KIND: calls.reconcile, pulls.KIND: self._pulls.reconcile}
        self._reconciling = Reconciling(self._log, kinds, under_way)

    async def deliver(self, run: Run, epoch: int, commit: str | None) -> None:
        """One try: settle what is unsettled, of every kind, then push what is known not to have been, and ask for its
        merge where that is wanted. Repeating it repeats no effect. Without a commit nothing is pushed.

        While another call is at it, here or at another gateway, this one does nothing: what that one comes to is in the
        journal.
        """
        if run.delivering.locked():
            return
        async with run.delivering, self._gate.deps.peers.claim(settling(run)) as granted:
            if not granted:
                return
            await self._gate.ledger.refresh(run)
            await self._reconciling.settle(run)
            last = run.state.delivered()
            if commit is not None and (last is None or last.status == "not_dispatched"):
                await self._push(run, epoch, commit)
            if commit is not None:
                await self._pulls.ask(run, epoch)

    # --- the first time -----------------------------------------------------------------------------------------------

    async def _push(self, run: Run, epoch: int, commit: str) -> None:
        if run.state.phase is RunPhase.CANCELLING or run.state.end is not None:
            return  # I5: only reconciliation is left
        branch = _demand_deliverable(run, commit)
        demand_approved(run, commit)
        intent = Intent(self._next_id(run, commit), commit, branch, None)
        try:
            upstream = await self._upstream(run)
            seen = await self._mirrors.look_upstream(upstream, branch)
        except (WorkspaceError, Refusal, OSError) as error:
            await self._hindered(run, epoch, intent, trouble_of(error))
            return
        try:
            await self._gate.refs.current(run)
        except (WorkspaceError, Refusal, OSError) as error:  # what this gateway lacks, another one may have
            await self._defer(run, epoch, trouble_of(error))
            return
        foreseen = _foreseen(seen, intent)
        if foreseen is not None:
            await self._log.append(
                run, epoch, self._meant(run, intent), self._log.closed(run, intent.effect_id, *foreseen)
            )
            return
        await self._log.mean(run, epoch, self._meant(run, intent))
        await self._dispatch(run, epoch, intent, upstream)

    async def _upstream(self, run: Run) -> AnyUpstream:
        upstream = await upstream_of(run.spec, self._gate.deps.secrets)
        if upstream is None:
            raise NoRemote("an ephemeral workspace has no remote")
        return upstream

    def _next_id(self, run: Run, commit: str) -> str:
        key = effect_key(run.uid, commit)
        return f"push-{key[:16]}-{run.state.offset + 1}"

    async def _hindered(self, run: Run, epoch: int, intent: Intent, trouble: Trouble) -> None:
        """Nothing was sent, and the remote says no, or says nothing."""
        if trouble.passing:
            await self._defer(run, epoch, trouble)
            return
        refused = self._log.closed(run, intent.effect_id, "rejected", f"{trouble.reason}: {trouble.message}")
        await self._log.append(run, epoch, self._meant(run, intent), refused)

    async def _dispatch(self, run: Run, epoch: int, intent: Intent, upstream: AnyUpstream) -> None:
        me = self._gate.deps.peers.me
        await self._log.append(run, epoch, self._log.dispatched(intent.effect_id))
        reached(Point.PUSH_BEFORE)
        try:
            demand_still(self._gate.deps.peers, me)
            outcome = await self._mirrors.push_upstream(
                mirror_key(run), upstream, intent.commit, intent.branch, intent.old
            )
        except Unreached as error:
            await self._receipt(run, intent, ("not_dispatched", f"StoreUnavailable: {error}"))
            return
        except (WorkspaceError, OSError) as error:  # push_upstream raises only before it talks to the remote
            trouble = trouble_of(error)
            await self._receipt(run, intent, ("not_dispatched" if trouble.passing else "rejected", str(trouble)))
            return
        reached(Point.PUSH_WITHIN)
        await self._receipt(run, intent, await self._verdict(intent, upstream, outcome))
        reached(Point.PUSH_AFTER)

    async def _verdict(self, intent: Intent, upstream: AnyUpstream, outcome: PushOutcome) -> Verdict:
        """A conflict with ourselves, whose first answer got lost, is no conflict; what the remote could not do may be
        what this very push is at."""
        said = f"{reason_of(outcome.reason)}: {outcome.message}"
        if outcome.kind is PushKind.CONFIRMED:
            return "confirmed", ""
        if outcome.kind is PushKind.REJECTED:
            return "rejected", said
        if outcome.kind is PushKind.UNKNOWN and outcome.reason != DeliveryRejected.reason:
            return "unknown", said
        try:
            seen = await self._mirrors.look_upstream(upstream, intent.branch)
        except (WorkspaceError, OSError) as error:
            return "unknown", str(trouble_of(error))
        if outcome.kind is PushKind.UNKNOWN:
            in_the_way = _foreseen(seen, intent) if seen.at is None else None
            return in_the_way or ("unknown", said)
        return ("confirmed", "found at the target") if seen.at == intent.commit else ("rejected", said)

    async def _receipt(self, run: Run, intent: Intent, verdict: Verdict) -> None:
        outcome, detail = verdict
        beside, until = [], self._log.patience()
        await self._log.outlast(run, partial(self._gate.ledger.refresh, run), until)
        if outcome in {"unknown", "not_dispatched"} and run.state.end is None and _open(run, intent):
            reason, _, message = detail.partition(": ")
            beside.append(self._deferred(run, Trouble(reason, message, passing=True)))
        await self._log.receipt(run, intent.effect_id, *verdict, beside=beside, until=until)

    # --- an earlier time ----------------------------------------------------------------------------------------------

    async def reconcile(self, run: Run, effect: Effect) -> None:
        """E4, E5: the remote knows."""
        intent = run.facts.intent(effect.effect_id)
        if intent is None:
            await self._settle(run, effect, ("unknown", "nobody can be asked whether it happened"))
        else:
            await self._ask(run, effect, intent)

    async def _ask(self, run: Run, effect: Effect, intent: Intent) -> None:
        try:
            upstream = await self._upstream(run)
            seen = await self._mirrors.look_upstream(upstream, intent.branch)
            verdict = await self._answer(run, upstream, effect, intent, seen)
        except (WorkspaceError, Refusal, OSError) as error:
            await self._unanswered(run, effect, trouble_of(error))
            return
        if verdict is None:
            why = f"{intent.branch} isn't there, but the push may still be on its way"
            await self._unanswered(run, effect, Trouble("EffectUnknown", why, passing=True))
            return
        await self._settle(run, effect, verdict, seen.at)

    async def _answer(
        self, run: Run, upstream: AnyUpstream, effect: Effect, intent: Intent, seen: Seen
    ) -> Verdict | None:
        """E5: ref at the target: it happened. Ref where it was: it didn't; None where it is too early to say so. Else
        somebody has moved it: on from our commit, or away from it.
        """
        found = seen.at
        match closure(found, target=intent.commit, expected_old=intent.old):
            case Closure.RECOVERED:
                return "confirmed", "found at the target"
            case Closure.AGAIN:
                early = 0 <= self._gate.deps.clock.now_ms() - effect.at < QUIET_MS
                return None if early else _not_taken(effect, intent, seen)
        if found is not None and await self._went_on(run, upstream, intent.commit, found):
            return "confirmed", f"found below the branch's head {found}"
        return "rejected", f"DeliveryConflict: {intent.branch} is at {found}, not ours"

    async def _went_on(self, run: Run, upstream: AnyUpstream, ours: str, found: str) -> bool:
        """Somebody pushed on top of ours before we had asked."""
        key = mirror_key(run)
        await self._gate.refs.current(run)
        await self._mirrors.ensure(key, upstream)
        return await self._mirrors.has_commit(key, found) and await self._mirrors.is_ancestor(key, ours, found)

    async def _unanswered(self, run: Run, effect: Effect, trouble: Trouble) -> None:
        """Told while somebody waits for it; after the end nothing stays open, and what is unknown is told."""
        self._gate.deps.log.warning("effect_not_reconciled", run_uid=run.uid, reason=trouble.reason)
        if run.state.end is None:
            await self._defer(run, None, trouble)
        elif effect.open:
            await self._settle(run, effect, ("unknown", str(trouble)))

    async def _settle(self, run: Run, effect: Effect, verdict: Verdict, found: str | None = None) -> None:
        await self._log.append(run, None, self._log.settled(run, effect.effect_id, *verdict, found=found))

    async def _defer(self, run: Run, epoch: int | None, trouble: Trouble) -> None:
        """A try before its time is no news: whoever asks too often makes no journal longer."""
        waited = run.state.deferral
        if waited is None or due(run.uid, waited, self._gate.deps.clock.now_ms()):
            await self._log.append(run, epoch, self._deferred(run, trouble))

    # --- records ------------------------------------------------------------------------------------------------------

    def _meant(self, run: Run, intent: Intent) -> Draft:
        payload = {
            "effect_id": intent.effect_id,
            "kind": KIND,
            "key": effect_key(run.uid, intent.commit),
            "level": Level.CONDITIONAL.value,
            "target": _target(run, intent.branch),
            "commit": intent.commit,
            "branch": intent.branch,
            "old": intent.old,
        }
        return self._log.note(RecordType.EFFECT_INTENT, payload, intent.effect_id)

    def _deferred(self, run: Run, trouble: Trouble) -> Draft:
        payload = {"kind": KIND, "reason": trouble.reason, "message": trouble.message[:DETAIL_LIMIT]}
        return self._log.note(RecordType.EFFECT_DEFERRED, payload, run.state.offset)


def _target(run: Run, branch: str) -> str:
    return f"{run.spec.workspace.url or run.spec.workspace.path or 'none'}#{branch}"


def _open(run: Run, intent: Intent) -> bool:
    """Nobody else has closed it."""
    return any(effect.effect_id == intent.effect_id for effect in run.state.open_effects)


def _foreseen(seen: Seen, intent: Intent) -> Verdict | None:
    """What a push would come to, where the branch is no more as it was meant to be found, or can't be made."""
    if seen.at == intent.commit:
        return "confirmed", "found at the target"
    if seen.at == intent.old and (seen.at or not seen.obstacle):
        return None
    return "rejected", f"{reason_of(BranchExists.reason)}: {BranchExists(taken(intent.branch, seen))}"


def _not_taken(effect: Effect, intent: Intent, seen: Seen) -> Verdict:
    """The branch is where it was before. What the remote could not do is final; what never got there is sent again."""
    refused = effect.detail if effect.detail.startswith(f"{DeliveryRejected.reason}: ") else None
    again = ("rejected", refused) if refused else ("not_dispatched", "the branch is where it was before")
    return _foreseen(seen, intent) or again


def demand_approved(run: Run, commit: str) -> None:
    """T6: raise Refusal where a person has to allow it first, whoever asks for the push."""
    lacking = unmet(run.spec.approvals, run.state.consents, commit)
    if lacking is not None:
        why = f"{commit} waits for the approval {lacking.name}: nothing of it leaves before"
        raise Refusal(why, status=409, reason="AwaitingApproval")


def _demand_deliverable(run: Run, commit: str) -> str:
    """The branch, where this very commit was proposed and, if anything was asked, accepted (N4). Else a Refusal."""
    state, delivery = run.state, run.spec.delivery
    if delivery is None or not delivery.push:
        raise Refusal("this run delivers nothing upstream", status=409, reason="NothingToDeliver")
    if state.proposal is None or state.proposal.commit != commit:
        raise Refusal(f"{commit} is not what the run proposed", status=409, reason="NotProposed")
    verdict = state.verification
    accepted = verdict is not None and verdict.commit == commit and verdict.passed
    if run.spec.acceptance and not accepted:
        raise Refusal(f"{commit} has not passed acceptance", status=409, reason="NotVerified")
    return delivery.branch
