"""T6: a tool call asks whether it may run, and waits at this door while nobody has answered.

The question is durable before the wait begins, and the answer before it is told; whoever asks again, after whatever
restart, asks the same question. Enforced by the runner, in the sandbox: what leaves the sandbox has doors of its own.
"""

from __future__ import annotations

from moorage.api.commands import ConsentAnswer, ConsentRequest
from moorage.core.approvals.consent import TOOL_CALL, Consent, asked, for_tool
from moorage.core.journal.record import RecordType
from moorage.gateway.gate import Caller, Gate
from moorage.gateway.signals import rung_within

PENDING = ConsentAnswer(status="pending")


class Consents:
    """For sandboxes."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._ledger = gate, gate.ledger
        self._settings, self._clock = gate.deps.settings, gate.deps.clock

    async def ask(self, caller: Caller, body: ConsentRequest) -> ConsentAnswer:
        """The answer as soon as there is one, or that there is none when the wait is over."""
        run, key = caller.run, f"tool:{body.key}"
        if asked(run.state.consents, key) is None:
            approval = for_tool(run.spec.approvals, body.tool)
            if approval is None:
                return ConsentAnswer(status="approved")
            await self._request(caller, key, approval.name, approval.reject_after_ms, body.tool)
        deadline = self._clock.monotonic_ms() + self._settings.orders_wait_ms
        while True:
            bell = run.bell.arm()
            await self._ledger.refresh(run)
            consent, left = asked(run.state.consents, key), deadline - self._clock.monotonic_ms()
            if consent is not None and not consent.pending:
                return _answer(consent)
            if left <= 0 or run.state.pausing or run.state.cancel_stage is not None:
                return PENDING
            await rung_within(bell, min(left, self._settings.keep_alive_ms))

    async def _request(self, caller: Caller, key: str, name: str, reject_after_ms: int | None, tool: str) -> None:
        until = None if reject_after_ms is None else self._clock.now_ms() + reject_after_ms
        said = {
            "key": key,
            "name": name,
            "before": TOOL_CALL,
            "subject": f"the tool {tool} is to run",
            "reject_at": until,
        }
        draft = self._ledger.observed(
            RecordType.APPROVAL_REQUESTED, said, key, attempt=caller.run.state.attempt or None
        )
        await self._ledger.append(caller.run, caller.epoch, [draft])


def _answer(consent: Consent) -> ConsentAnswer:
    return ConsentAnswer.model_validate({"status": consent.status, "by": consent.by, "reason": consent.reason})
