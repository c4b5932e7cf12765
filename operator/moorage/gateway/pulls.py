"""W5: the pull request of a delivered branch, as an effect like any other (E1): look, intent, dispatch, receipt.

Its level is `queryable`. The forge is asked before anything is meant, and again wherever no receipt came: an open pull
request of the run's own branch is adopted, whoever made it, and none is made beside it. A forge may still be at work on
a request whose connection was cut: for QUIET_MS, that there is none proves nothing.
"""

from __future__ import annotations

import hashlib

from moorage.api.wire import ResolvedDelivery, ResolvedPullRequest
from moorage.core.effects.levels import Level
from moorage.core.effects.pulls import KIND, Pull, Wanted
from moorage.core.journal.record import Draft, RecordType
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import Effect
from moorage.core.run.waiting import due
from moorage.gateway.effects import DETAIL_LIMIT, EffectLog
from moorage.gateway.errors import Refusal
from moorage.gateway.forge import Busy, ForgeClient, Refused
from moorage.gateway.gate import Gate
from moorage.gateway.ledger import Run
from moorage.gateway.outward import Lost, Unreached
from moorage.gateway.sending import demand_still
from moorage.gateway.upstream import Trouble
from moorage.points import Point, reached

QUIET_MS = 10_000
EXISTS = frozenset({409, 422})
"""Statuses by which a forge refuses a second one, among much else."""
TITLE = 200
REASON = "PullRequestRejected"
AWAY = "ForgeUnreachable"
FAILURES = (Unreached, Lost, Busy, Refused, Refusal)


class PullRequests:
    """Makes them, and finds out what became of them. Nobody else does while a call is at it (see Delivery)."""

    def __init__(self, gate: Gate, log: EffectLog) -> None:
        self._gate, self._log = gate, log

    async def ask(self, run: Run, epoch: int) -> None:
        """One try, once the branch is known to be there, where one is wanted and none is made, refused or in doubt."""
        delivery, push, last = run.spec.delivery, run.state.delivered(), run.state.asked_for_merge()
        wanted = delivery.pull_request if delivery else None
        if delivery is None or wanted is None or push is None or push.status != "confirmed":
            return
        if run.state.end is not None or run.state.phase is RunPhase.CANCELLING:
            return  # I5
        if last is None or last.status == "not_dispatched":
            await self._ask(run, epoch, delivery, wanted)

    async def _ask(self, run: Run, epoch: int, delivery: ResolvedDelivery, asked: ResolvedPullRequest) -> None:
        forge = self._client(run, asked)
        try:
            base = asked.base or await forge.default_branch()
            there = await forge.find(delivery.branch, base)
        except FAILURES as error:
            await self._hindered(run, epoch, _meant(run, delivery.branch, asked), _trouble(error))
            return
        wanted = Wanted(asked.project, delivery.branch, base, _title(run, asked), _body(run, asked), asked.draft)
        intent = _meant(run, delivery.branch, asked, base)
        if there is not None:
            found = self._log.closed(run, intent["effect_id"], "confirmed", there.url)
            await self._log.append(run, epoch, self._note(intent), found)
            return
        await self._log.mean(run, epoch, self._note(intent))
        await self._dispatch(run, epoch, intent["effect_id"], forge, wanted)

    async def _dispatch(self, run: Run, epoch: int, effect_id: str, forge: ForgeClient, wanted: Wanted) -> None:
        peers = self._gate.deps.peers
        await self._log.append(run, epoch, self._log.dispatched(effect_id))
        reached(Point.PULL_BEFORE)
        try:
            demand_still(peers, peers.me)
            pull = await forge.make(wanted)
        except FAILURES as error:
            outcome, detail = await self._failed(forge, wanted, error)
        else:
            outcome, detail = "confirmed", pull.url
        reached(Point.PULL_WITHIN)
        until = self._log.patience()
        beside = []
        if outcome in {"unknown", "not_dispatched"} and run.state.end is None:
            reason, _, message = detail.partition(": ")
            beside.append(self._deferred(run, Trouble(reason, message, passing=True)))
        await self._log.receipt(run, effect_id, outcome, detail, beside=beside, until=until)
        reached(Point.PULL_AFTER)

    async def _failed(self, forge: ForgeClient, wanted: Wanted, error: Exception) -> tuple[str, str]:
        """What a failed request came to. Refused since there is one, that is ours: nobody else has the branch."""
        if isinstance(error, Refused) and error.status in EXISTS:
            try:
                there = await forge.find(wanted.head, wanted.base)
            except FAILURES as again:
                return "unknown", str(_trouble(again))
            if there is not None:
                return "confirmed", there.url
        trouble = _trouble(error, f"{wanted.head} into {wanted.base}")
        if not trouble.passing:
            return "rejected", str(trouble)
        maybe = isinstance(error, Lost) or (isinstance(error, Busy) and error.done)
        return ("unknown" if maybe else "not_dispatched"), str(trouble)

    # --- an earlier time ----------------------------------------------------------------------------------------------

    async def reconcile(self, run: Run, effect: Effect) -> None:
        """E4: the forge knows."""
        delivery = run.spec.delivery
        asked = delivery.pull_request if delivery else None
        if delivery is None or asked is None:
            await self._settle(run, effect, "unknown", "nobody can be asked whether it happened")
            return
        try:
            forge, commit = self._client(run, asked), run.state.proposal.commit if run.state.proposal else None
            base = run.facts.into or asked.base or await forge.default_branch()
            there = await forge.find(delivery.branch, base, of=commit)
        except FAILURES as error:
            await self._unanswered(run, effect, _trouble(error))
            return
        await self._answered(run, effect, there)

    async def _answered(self, run: Run, effect: Effect, there: Pull | None) -> None:
        if there is not None:
            await self._settle(run, effect, "confirmed", there.url)
        elif 0 <= self._gate.deps.clock.now_ms() - effect.at < QUIET_MS:
            why = "there is no pull request, but the forge may still be at work on it"
            await self._unanswered(run, effect, Trouble("EffectUnknown", why, passing=True))
        else:
            await self._settle(run, effect, "not_dispatched", "the forge has no pull request of the branch")

    async def _unanswered(self, run: Run, effect: Effect, trouble: Trouble) -> None:
        """Told while somebody waits for it; after the end nothing stays open, and what is unknown is told."""
        self._gate.deps.log.warning("effect_not_reconciled", run_uid=run.uid, reason=trouble.reason)
        if run.state.end is None:
            await self._defer(run, None, trouble)
        elif effect.open:
            await self._settle(run, effect, "unknown", str(trouble))

    async def _settle(self, run: Run, effect: Effect, outcome: str, detail: str) -> None:
        await self._log.append(run, None, self._log.settled(run, effect.effect_id, outcome, detail))

    # --- records ------------------------------------------------------------------------------------------------------

    async def _hindered(self, run: Run, epoch: int, intent: dict[str, str], trouble: Trouble) -> None:
        """Nothing was sent, and the forge says no, or says nothing."""
        if trouble.passing:
            await self._defer(run, epoch, trouble)
            return
        refused = self._log.closed(run, intent["effect_id"], "rejected", str(trouble))
        await self._log.append(run, epoch, self._note(intent), refused)

    async def _defer(self, run: Run, epoch: int | None, trouble: Trouble) -> None:
        waited = run.state.deferral
        if waited is None or due(run.uid, waited, self._gate.deps.clock.now_ms()):
            await self._log.append(run, epoch, self._deferred(run, trouble))

    def _deferred(self, run: Run, trouble: Trouble) -> Draft:
        payload = {"kind": KIND, "reason": trouble.reason, "message": trouble.message[:DETAIL_LIMIT]}
        return self._log.note(RecordType.EFFECT_DEFERRED, payload, run.state.offset)

    def _note(self, intent: dict[str, str]) -> Draft:
        return self._log.note(RecordType.EFFECT_INTENT, intent, intent["effect_id"])

    def _client(self, run: Run, asked: ResolvedPullRequest) -> ForgeClient:
        return ForgeClient(self._gate.deps, run.tenant, asked)


def _meant(run: Run, branch: str, asked: ResolvedPullRequest, base: str | None = None) -> dict[str, str]:
    key = hashlib.sha256(f"{run.uid}:pull:{branch}".encode()).hexdigest()
    return {
        "effect_id": f"pull-{key[:16]}-{run.state.offset + 1}",
        "kind": KIND,
        "key": key,
        "level": Level.QUERYABLE.value,
        "target": f"{asked.api} {asked.project}#{branch}",
        "branch": branch,
        **({"base": base} if base else {}),
    }


def _trouble(error: Exception, what: str = "it") -> Trouble:
    """Only what the forge itself has refused, or a credential that is no good, is final. `what` was asked for: of a
    branch that isn't there, a forge may say no more than that something isn't.
    """
    if isinstance(error, Refused):
        return Trouble(REASON, f"the forge refuses {what}: {error}", passing=False)
    if isinstance(error, Refusal):
        return Trouble(error.reason, error.message, passing=error.status == 503)
    return Trouble(AWAY, str(error), passing=True)


def _title(run: Run, asked: ResolvedPullRequest) -> str:
    delivery, end = run.spec.delivery, run.state.agent_end
    said = (asked.title, delivery.message if delivery else None, end.summary if end else None, run.spec.goal)
    first = (text.strip().splitlines()[0] for text in said if text and text.strip())
    return next(first, run.spec.name)[:TITLE]


def _body(run: Run, asked: ResolvedPullRequest) -> str:
    if asked.body is not None:
        return asked.body
    end = run.state.agent_end
    said = f"{end.summary.strip()}\n\n" if end and end.summary.strip() else ""
    return f"{said}Moorage-Run: {run.tenant}/{run.spec.name}\nMoorage-Run-Uid: {run.uid}\n"
