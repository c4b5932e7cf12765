"""E1, E5: the push upstream. Intent, dispatch, receipt; and where no receipt came, a look at the remote first.

A push is a compare-and-swap on the branch as it was meant to be found, so that two of them can't both move it. A push
whose end isn't known is never repeated blindly: the remote is asked, and its answer is journaled as reconciliation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from moorage.core.journal.record import RecordType
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect
from moorage.gateway.errors import Refusal
from moorage.gateway.facts import Intent
from moorage.gateway.gate import Gate, mirror_key
from moorage.gateway.ledger import Run
from moorage.gateway.upstream import reason_of, upstream_of
from moorage.workspace.errors import WorkspaceError
from moorage.workspace.mirror import PushKind, PushOutcome
from moorage.workspace.upstream import AnyUpstream, Closure, closure

KIND = "git_push"
DETAIL_LIMIT = 1_000


def effect_key(run_uid: str, commit: str) -> str:
    """E2: stable over retries; one per run and commit."""
    return hashlib.sha256(f"{run_uid}:deliver:{commit}".encode()).hexdigest()


class Delivery:
    """Delivers verified commits. One call per run at a time; other runs don't wait."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._ledger = gate.ledger
        self._mirrors = gate.deps.mirrors

    async def deliver(self, run: Run, epoch: int, commit: str) -> None:
        """Leave the effect closed, or unknown where the remote can't be asked. Repeating it repeats no effect."""
        async with run.delivering:
            effect = run.state.delivered()
            if effect is not None and (effect.open or effect.status == "unknown"):
                await self._reconcile(run, effect)
                effect = run.state.delivered()
            if effect is None or effect.status == "not_dispatched":
                await self._push(run, epoch, commit)

    # --- the first time -----------------------------------------------------------------------------------------------

    async def _push(self, run: Run, epoch: int, commit: str) -> None:
        if run.state.phase is RunPhase.CANCELLING or run.state.end is not None:
            return  # I5: only reconciliation is left
        branch = _demand_deliverable(run, commit)
        intent = Intent(self._next_id(run, commit), commit, branch, None)
        await self._intend(run, epoch, intent)
        try:
            upstream = await upstream_of(run.spec, self._gate.deps.secrets)
        except Refusal as error:
            await self._close(run, intent, _refused(error))
            return
        if upstream is None:
            await self._close(run, intent, ("rejected", "NoRemote: an ephemeral workspace has no remote"))
            return
        await self._dispatch(run, epoch, intent, upstream)

    def _next_id(self, run: Run, commit: str) -> str:
        key = effect_key(run.uid, commit)
        earlier = sum(1 for e in run.state.effects if e.key == key)
        return f"push-{key[:16]}-{earlier + 1}"

    async def _intend(self, run: Run, epoch: int, intent: Intent) -> None:
        """E1: durable before anything leaves."""
        payload = {
            "effect_id": intent.effect_id,
            "kind": KIND,
            "key": effect_key(run.uid, intent.commit),
            "level": "conditional",
            "target": f"{run.spec.workspace.url or run.spec.workspace.path or 'none'}#{intent.branch}",
            "commit": intent.commit,
            "branch": intent.branch,
            "old": intent.old,
        }
        await self._note(run, epoch, RecordType.EFFECT_INTENT, intent.effect_id, payload)

    async def _dispatch(self, run: Run, epoch: int, intent: Intent, upstream: AnyUpstream) -> None:
        payload = {"effect_id": intent.effect_id}
        await self._note(run, epoch, RecordType.EFFECT_DISPATCHED, intent.effect_id, payload)
        try:
            outcome = await self._mirrors.push_upstream(
                mirror_key(run), upstream, intent.commit, intent.branch, intent.old
            )
        except WorkspaceError as error:
            # push_upstream raises only before it talks to the remote.
            await self._close(run, intent, ("rejected", f"{reason_of(error)}: {error}"))
            return
        await self._close(run, intent, await self._verdict(intent, upstream, outcome))

    async def _verdict(self, intent: Intent, upstream: AnyUpstream, outcome: PushOutcome) -> tuple[str, str]:
        """Outcome and detail of a receipt. A conflict with ourselves, whose first answer got lost, is no conflict."""
        if outcome.kind is PushKind.CONFIRMED:
            return "confirmed", ""
        if outcome.kind is PushKind.UNKNOWN:
            return "unknown", f"{reason_of(outcome.reason)}: {outcome.message}"
        if outcome.kind is PushKind.CONFLICT:
            try:
                found = await self._mirrors.query_upstream(upstream, intent.branch)
            except WorkspaceError as error:
                return "unknown", f"{reason_of(error)}: {error}"
            if found == intent.commit:
                return "confirmed", "found at the target"
        return "rejected", f"{reason_of(outcome.reason)}: {outcome.message}"

    # --- an earlier time ----------------------------------------------------------------------------------------------

    async def _reconcile(self, run: Run, effect: Effect) -> None:
        """E5: ref at the target: it happened. Ref where it was: it didn't. Else somebody else moved it."""
        intent = run.facts.intent(effect.effect_id)
        if intent is None:
            return
        try:
            upstream = await upstream_of(run.spec, self._gate.deps.secrets)
            if upstream is None:
                return
            found = await self._mirrors.query_upstream(upstream, intent.branch)
        except (WorkspaceError, Refusal) as error:
            self._gate.deps.log.warning("effect_not_reconciled", run_uid=run.uid, reason=error.reason)
            return
        told = {
            Closure.RECOVERED: ("confirmed", "found at the target"),
            Closure.AGAIN: ("not_dispatched", "the branch is where it was before"),
            Closure.CONFLICT: ("rejected", f"DeliveryConflict: {intent.branch} is at {found}, not ours"),
        }
        outcome, detail = told[closure(found, target=intent.commit, expected_old=intent.old)]
        payload = {"effect_id": intent.effect_id, "outcome": outcome, "detail": detail, "found": found}
        self._gate.deps.metrics.effects.labels(KIND, outcome).inc()
        await self._note(run, None, RecordType.EFFECT_RECONCILED, f"{intent.effect_id}:{run.state.offset}", payload)

    # --- records ------------------------------------------------------------------------------------------------------

    async def _close(self, run: Run, intent: Intent, verdict: tuple[str, str]) -> None:
        """A receipt belongs to no attempt: what happened has happened, also when epoch or phase moved on meanwhile."""
        outcome, detail = verdict
        self._gate.deps.metrics.effects.labels(KIND, outcome).inc()
        payload = {"effect_id": intent.effect_id, "outcome": outcome, "detail": detail[:DETAIL_LIMIT]}
        kind = RecordType.EFFECT_RECEIPT if run.state.end is None else RecordType.EFFECT_RECONCILED
        await self._note(run, None, kind, intent.effect_id, payload)

    async def _note(
        self, run: Run, epoch: int | None, kind: RecordType, key: str, payload: Mapping[str, str | None]
    ) -> None:
        given = {name: value for name, value in payload.items() if value is not None}
        draft = self._ledger.observed(kind, given, key, effect_id=payload["effect_id"])
        await self._ledger.append(run, epoch, [draft])


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


def _refused(error: Refusal) -> tuple[str, str]:
    """Nothing was sent: a credential that is missing is a rejection, an API server that is away is not dispatched."""
    if error.status == 503:
        return "not_dispatched", error.message
    return "rejected", f"{error.reason}: {error.message}"
