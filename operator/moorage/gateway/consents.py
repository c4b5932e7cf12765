"""T6: what waits at a door of the gateway until somebody has allowed it: a tool call, the way to a host, more cost.

The question is durable before the wait begins, and the answer before it is told; whoever asks again, after whatever
restart, asks the same question. Tool calls are held up by the runner, in the sandbox; hosts by the gateway itself.
"""

from __future__ import annotations

import contextlib
from uuid import uuid4

from moorage.api.commands import ConsentAnswer, ConsentRequest
from moorage.api.quantity import dollars
from moorage.api.wire import ResolvedApproval
from moorage.core.approvals.consent import (
    APPROVED,
    Consent,
    about,
    asked,
    asked_in,
    cost_key,
    for_cost,
    for_host,
    for_tool,
    tool_key,
)
from moorage.core.approvals.reducing import ended
from moorage.core.journal.record import RecordType
from moorage.core.run.phases import RunPhase
from moorage.gateway.constraints import Asking, Exhausted, of_people
from moorage.gateway.errors import Refusal
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.ledger import Run
from moorage.gateway.questions import Gone
from moorage.gateway.signals import rung_within
from moorage.gateway.watching import not_at_work

PENDING = ConsentAnswer(status="pending")
ASK_AGAIN_S = 60


class Needless(Exception):
    """The journal has the question, or nobody is left to ask it."""


class Consents:
    """For the doors of sandboxes."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._ledger = gate, gate.ledger
        self._settings, self._clock = gate.deps.settings, gate.deps.clock

    async def of_call(self, caller: Caller, body: ConsentRequest) -> ConsentAnswer:
        """Whether a tool call may run, as soon as that is known, or that nobody has answered when the wait is over."""
        approval = for_tool(caller.run.spec.approvals, body.tool)
        if approval is None:
            return ConsentAnswer(status="approved")
        subject = f"the tool {body.tool} is to run" + (f": {body.said}" if body.said else "")
        try:
            known = about(caller.run.state.consents, body.call)
            key = tool_key(body.key) if known is None else known.key
            found = await self._answered(caller, approval, key, subject, body.call)
        except Exhausted:  # the run is to pause for that, and its next attempt comes to the same call
            return PENDING
        return _answer(found) if found is not None else PENDING

    async def demand_host(self, caller: Caller, host: str) -> None:
        """Wait until the agent may reach that host. Raise Refusal where it may not (403), or nobody says (503), and
        Exhausted.
        """
        approval = for_host(caller.run.spec.approvals, host)
        if approval is None:
            return
        found = await self._answered(caller, approval, f"host:{host}", f"the agent is to reach {host}")
        if found is None:
            why = f"{host} waits for the approval {approval.name}: nothing was sent; ask again"
            later = {"retry-after": str(ASK_AGAIN_S)}
            raise Refusal(why, status=503, reason="AwaitingApproval", headers=later)
        if found.status != APPROVED:
            why = f"{host} was refused" + (f" by {found.by}" if found.by else "")
            raise Refusal(f"{why}: {found.reason}" if found.reason else why, status=403, reason="ApprovalRejected")

    async def demand_spending(self, caller: Caller, gone: Gone) -> None:
        """Hold a request to the model until somebody says that the run may spend on. Raise Exhausted where it may not.

        A run that is to stand still meanwhile is let through: whoever sees to that holds it, or refuses it. Raise
        Refusal where nobody waits for the answer any more.
        """
        spent = caller.run.state.committed_micros
        due = for_cost(caller.run.spec.approvals, spent)
        if due is None:
            return
        approval, step = due
        how = "spent" if spent == caller.run.state.usage.cost_micros else "spent, or given to children"
        subject = f"${dollars(spent)} are {how}, and more is to be"
        found, key = None, cost_key(approval.name, step)
        while found is None and not _stands(caller.run):
            if ended(caller.run.state) or await gone():
                raise not_at_work("nobody waits any more for what the model was to be asked")
            found = await self._answered(caller, approval, key, subject)
        if found is not None and found.status != APPROVED:
            raise Exhausted(f"BudgetExhausted: spending on was refused by {found.by or 'somebody'}")

    async def _answered(
        self, caller: Caller, approval: ResolvedApproval, key: str, subject: str, call: str = ""
    ) -> Consent | None:
        """The answer, once there is one; None where the wait is over without, the run is to stand still, or the
        question is withdrawn. Raise Exhausted where nobody may be asked.
        """
        run = caller.run
        if asked_in(run.state.consents, key, caller.epoch) is None:
            await self._request(caller, approval, key, subject, call)
        deadline = self._clock.monotonic_ms() + self._settings.orders_wait_ms
        while True:
            bell = run.bell.arm()
            await self._ledger.refresh(run)
            consent, left = asked(run.state.consents, key), deadline - self._clock.monotonic_ms()
            if consent is not None and not consent.pending:
                return consent
            if left <= 0 or consent is None or _stands(run):
                return None
            await rung_within(bell, min(left, self._settings.keep_alive_ms))

    async def _request(self, caller: Caller, approval: ResolvedApproval, key: str, subject: str, call: str) -> None:
        """Once in an attempt, however many ask at one moment and at whatever gateway. A call that another gateway knows
        by another key is asked for by that the next time.

        A question that is new is judged by the very state that its record follows (B2): those that wait count. Raise
        Exhausted where a constraint stops it.
        """
        patience, known = approval.reject_after_ms, asked(caller.run.state.consents, key)
        said = {
            "key": key,
            "name": approval.name,
            "before": approval.before,
            "subject": subject,
            "reject_at": None if patience is None else self._clock.now_ms() + patience,
            **({"call": call} if call else {}),
            **({"answered": True} if known is not None and not known.pending else {}),
        }
        attempt = caller.run.state.attempt or None
        draft = self._ledger.observed(RecordType.APPROVAL_REQUESTED, said, uuid4().hex, attempt=attempt)

        ask = Asking(of_people())

        def needed(run: Run) -> None:
            elsewhere = about(run.state.consents, call)
            if ended(run.state) or asked_in(run.state.consents, key, caller.epoch) is not None:
                raise Needless
            if elsewhere is not None and elsewhere.key != key:
                raise Needless
            if asked(run.state.consents, key) is None:
                self._gate.judge.demand(run, ask)

        with contextlib.suppress(Needless):
            async with self._gate.judge.noting(caller.run, ask):
                await self._ledger.append(caller.run, caller.epoch, [draft], needed)


def _stands(run: Run) -> bool:
    """Nothing new is begun in it."""
    s = run.state
    return s.pausing or s.phase is RunPhase.PAUSED or s.cancel_stage is not None or s.end is not None


def _answer(consent: Consent) -> ConsentAnswer:
    return ConsentAnswer.model_validate({"status": consent.status, "by": consent.by, "reason": consent.reason})
