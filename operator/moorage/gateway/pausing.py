"""Q5, C3: asking for a pause and for going on, for whoever has cause to: a limit, a command, a constraint, an approval.

What is asked for is a record; the runner hears of it by its orders, and the operator brings the run to its stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moorage.core.approvals.consent import parking
from moorage.core.constraints.context import lived_ms
from moorage.core.journal.record import Draft, RecordType
from moorage.core.run.limits import how_to_raise, spent
from moorage.core.run.pauses import PAUSABLE
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import PASSING, Pause, PauseReason, PauseStage, RunState
from moorage.gateway.errors import Refusal
from moorage.gateway.ledger import Ledger, Run
from moorage.gateway.signals import rung_within

if TYPE_CHECKING:
    from moorage.gateway.gate import Gate  # which has the judge of constraints, and that asks for pauses
    from moorage.gateway.questions import Gone


class Stopping(Refusal):
    """The run stops at its next safe point, and this would begin something new."""

    status, reason = 409, "RunPausing"

    def __init__(self) -> None:
        super().__init__("the run stops here until it is asked to go on; what was done so far is kept")


class Pauses:
    """For all doors that may stop a run softly, or let it go on."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._ledger = gate, gate.ledger

    async def request(
        self, run: Run, reason: PauseReason, message: str, *, by: str, limit: str | None = None, kill: bool = False
    ) -> bool:
        """Have the run stop at its next safe point, or with `kill` at once; durable on return.

        False where it stops, or stands, for that or a longer-lasting reason already. `limit` names the field of
        ResolvedLimits that is used up. Raise Refusal where there is nothing to pause (see `demand_pausable`), and what
        the ledger raises.
        """
        demand_pausable(run.state)
        if not is_news(run.state, reason, kill=kill):
            return False
        draft = self.request_draft(run, reason, message, by=by, limit=limit, kill=kill)
        await self._ledger.append(run, None, [draft], lambda now: demand_pausable(now.state))
        return True

    def request_draft(
        self, run: Run, reason: PauseReason, message: str, *, by: str, limit: str | None = None, kill: bool = False
    ) -> Draft:
        """The record alone, for one append with others, on a state that `demand_pausable` has let through."""
        return pause_draft(self._ledger, run, reason, message, by=by, limit=limit, kill=kill)

    async def resume(self, run: Run, *, by: str) -> None:
        """Let a paused run go on; one that is on its way to its stop goes on after that. Repeating it is harmless.

        Raise Refusal as `demand_resumable` does, and what the ledger raises.
        """
        self.demand_resumable(run)
        if run.state.pause is not None and not run.state.pause.released:
            await self._ledger.append(run, None, [self.resume_draft(run, by=by)], self.demand_resumable)

    def resume_draft(self, run: Run, *, by: str) -> Draft:
        """The record alone, as `request_draft`."""
        key = (run.state.pauses, run.state.epoch, run.state.offset)
        return self._ledger.observed(RecordType.RESUME_REQUESTED, {"by": by}, *key)

    def demand_resumable(self, run: Run) -> None:
        """Raise Refusal where nothing is paused, or where what holds the run isn't ended by a word."""
        s = run.state
        if s.end is not None or s.cancel_stage is not None or s.pause is None or s.pause.stage == PauseStage.RESUMED:
            raise Refusal("the run is not paused", status=409, reason="NotPaused")
        if (held := _held(s, s.pause)) is not None:
            raise Refusal(held, status=409, reason=s.pause.reason)
        lived = lived_ms(s, self._gate.deps.clock.now_ms())
        found = spent(run.limits, s, iterations=run.facts.completed, lived_ms=lived)
        if found is not None:
            spec = run.spec.model_copy(update={"limits": run.limits})
            why = f"{found.message}; {how_to_raise(spec, found.limit)}"
            raise Refusal(why, status=409, reason=PauseReason.BUDGET.value)

    async def demand_going(self, run: Run, gone: Gone, *, native: bool) -> None:
        """No new decision on the way to the stop: raise Stopping for a driver of ours, which knows what that means.

        An agent that doesn't is left waiting for its model, so that its tree and its session stand still until it is
        stopped, and is refused only where nobody stops it in time.
        """
        clock, settings = self._gate.deps.clock, self._gate.deps.settings
        deadline = clock.monotonic_ms() + settings.model_room_ms
        while run.state.pause is not None:  # the next attempt's epoch ends it, and fences who asks
            left = deadline - clock.monotonic_ms()
            if native or left <= 0 or await gone():
                raise Stopping
            bell = run.bell.arm()
            await self._ledger.refresh(run)
            await rung_within(bell, min(left, settings.keep_alive_ms))


def pause_draft(
    ledger: Ledger,
    run: Run,
    reason: PauseReason,
    message: str,
    *,
    by: str,
    limit: str | None = None,
    constraint: str | None = None,
    kill: bool = False,
    most: int | None = None,
    until: int | None = None,
) -> Draft:
    """The record that asks for a pause. `constraint` names the one that is violated, where that is why; `limit` with
    `most` what was used up, `until` (ms since the epoch) when there is more of it.
    """
    told = {"constraint": constraint, "most": most, "until": until}
    named = {name: value for name, value in told.items() if value is not None}
    payload = {"reason": reason.value, "by": by, "message": message, "limit": limit, "kill": kill, **named}
    key = (run.state.pauses, run.state.epoch, run.state.offset)
    return ledger.observed(RecordType.PAUSE_REQUESTED, payload, *key)


def pausable(s: RunState) -> bool:
    """Whether there is anything to pause."""
    try:
        demand_pausable(s)
    except Refusal:
        return False
    return True


def demand_pausable(s: RunState) -> None:
    """Raise Refusal, typed, where no attempt works and none waits to."""
    if s.end is not None:
        raise Refusal(f"the run has {s.phase.lower()}", status=409, reason="RunEnded")
    if s.cancel_stage is not None:
        raise Refusal("the run is being cancelled", status=409, reason="Cancelling")
    if s.phase is RunPhase.PAUSED:
        return
    if s.epoch == 0 or s.phase in {RunPhase.PENDING, RunPhase.QUEUED}:
        raise Refusal("the run has not started: set spec.suspend to keep it so", status=409, reason="NotStarted")
    if s.phase not in PAUSABLE or (s.agent_end is not None and s.agent_end.outcome == "completed"):
        why = "the run's agent is done: what it proposed is judged and delivered"
        raise Refusal(why, status=409, reason="AgentFinished")


def _held(s: RunState, pause: Pause) -> str | None:
    """What there is to do instead of asking for the run to go on."""
    if pause.reason == PauseReason.SUSPENDED and not pause.preempted:
        return "spec.suspend is true: set it to false"
    pending = parking(s.consents, s.epoch) if pause.reason == PauseReason.APPROVAL else None
    return None if pending is None else f"approve or reject {pending.name}: {pending.subject}"


def is_news(s: RunState, reason: PauseReason, *, kill: bool = False) -> bool:
    """Whether asking for that pause would change anything."""
    pause = s.pause
    if pause is None or pause.stage == PauseStage.RESUMED or pause.released or (kill and not pause.kill):
        return True
    return not pause.lasting and reason not in PASSING
