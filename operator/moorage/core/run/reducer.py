"""S1: `S' = reduce(S, record)`: deterministic, versioned, without clock, network or chance.

Each handler says which fields a record changes, and changes nothing itself. A record that would move the run where the
table of phases doesn't lead raises `IllegalMove`, and the caller appends nothing (S2). Records that only inform
(outputs, refusals, unknown optional types) change the offset and nothing else.
`recorded_at` is carried as data for timeouts that the plan computes; it never decides a move (J2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.core.approvals import reducing as approvals
from moorage.core.commands import reducing as commands
from moorage.core.journal.record import Record, RecordType
from moorage.core.run import children, pauses, sessions
from moorage.core.run.changes import NOTHING, Changes, Handler
from moorage.core.run.phases import TERMINAL, IllegalMove, RunPhase
from moorage.core.run.reducing import attempts, constraints, effects, ends, repairs, results, usage
from moorage.core.run.state import RunState, changed, settled, working

CLOSING = TERMINAL | {RunPhase.CANCELLING, RunPhase.PAUSED}


def reduce(state: RunState, record: Record) -> RunState:
    """Return the state after `record`, which must be the next one of the same journal."""
    return changed(state, **_changes(state, record), offset=record.seq, head=record.hash)


def replay(records: Iterable[Record], start: RunState | None = None) -> RunState:
    """Recovery replay (P4): rebuild and call nothing."""
    replayed = Replay(start)
    for record in records:
        replayed.feed(record)
    return replayed.state


class Replay:
    """The same as `reduce` from record to record, without a frozen state for each: a journal may be long.

    After an IllegalMove it is of no use any more.
    """

    def __init__(self, start: RunState | None = None) -> None:
        self._state = working(start or RunState())
        self._fields = vars(self._state)
        self._last: Record | None = None

    def feed(self, record: Record) -> None:
        """Go on to `record`, the next one. Raise IllegalMove."""
        self._fields.update(_changes(self._state, record))
        self._last = record

    @property
    def state(self) -> RunState:
        """The state after the last record."""
        at = settled(self._state)
        return at if self._last is None else changed(at, offset=self._last.seq, head=self._last.hash)


def _changes(state: RunState, record: Record) -> Changes:
    """What `record` changes, beside the offset. Raise IllegalMove."""
    kind, phase = record.type, state.phase
    if phase in CLOSING:
        _refuse_work(phase, kind)
    handler = HANDLERS.get(kind)
    changes = handler(state, record, record.payload or {}) if handler else NOTHING
    if state.commands and "commands" not in changes:
        return {**changes, "commands": commands.after(state, record, changes.get("phase", phase))}
    return changes


def _refuse_work(phase: RunPhase, kind: str) -> None:
    """I5, I6: nothing follows an end but its aftermath, and no new work a cancellation or a pause."""
    if phase in TERMINAL and kind not in AFTER_END:
        raise IllegalMove(phase, phase, f"{kind} after the end")
    if phase not in TERMINAL and kind in NEW_WORK:
        why = "paused" if phase is RunPhase.PAUSED else "being cancelled"
        raise IllegalMove(phase, phase, f"{kind} while the run is {why}")


def _tool_response(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    return {**approvals.call_over(s, r), **usage.tool_response(s, r, p)}


def _approval_decided(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """T6; a person's word is charged (B1)."""
    return {**approvals.decided(s, r, p), **usage.charged(s, p)}


HANDLERS: dict[str, Handler] = {
    RecordType.RUN_ADMITTED.value: attempts.admitted,
    RecordType.SESSION_JOINED.value: sessions.joined,
    RecordType.EPOCH_RAISED.value: attempts.epoch_raised,
    RecordType.POD_REGISTERED.value: attempts.pod_registered,
    RecordType.SANDBOX_PLACED.value: attempts.placed,
    RecordType.ATTEMPT_STARTED.value: attempts.started,
    RecordType.WORKSPACE_READY.value: attempts.workspace_ready,
    RecordType.AGENT_STARTED.value: attempts.agent_started,
    RecordType.CHECKPOINT.value: attempts.checkpoint,
    RecordType.ITERATION_COMPLETE.value: attempts.iteration_complete,
    RecordType.TOOL_RESPONSE.value: _tool_response,
    RecordType.MODEL_REQUEST.value: usage.model_request,
    RecordType.MODEL_RESPONSE.value: usage.model_response,
    RecordType.AGENT_FINISHED.value: results.agent_finished,
    RecordType.RESULT_PROPOSED.value: results.proposed,
    RecordType.VERIFICATION_STARTED.value: results.verification_started,
    RecordType.VERIFICATION_RESULT.value: results.verified,
    RecordType.ATTEMPT_ENDED.value: attempts.ended,
    RecordType.EFFECT_INTENT.value: effects.intended,
    RecordType.EFFECT_DISPATCHED.value: effects.dispatched,
    RecordType.EFFECT_RECEIPT.value: effects.closed,
    RecordType.EFFECT_RECONCILED.value: effects.closed,
    RecordType.EFFECT_DEFERRED.value: effects.deferred,
    RecordType.CHILD_REQUESTED.value: children.child_requested,
    RecordType.CHILD_MADE.value: children.child_made,
    RecordType.CHILD_STARTED.value: children.child_started,
    RecordType.CHILD_ENDED.value: children.child_ended,
    RecordType.CHILDREN_ENDING.value: children.children_ending,
    RecordType.CONSTRAINT_EVALUATED.value: constraints.evaluated,
    RecordType.DRIFT_SAVED.value: attempts.drift_saved,
    RecordType.APPROVAL_REQUESTED.value: approvals.requested,
    RecordType.APPROVAL_DECIDED.value: _approval_decided,
    RecordType.COMMAND_ACCEPTED.value: commands.accepted,
    RecordType.COMMAND_REJECTED.value: commands.rejected,
    RecordType.COMMAND_DELIVERED.value: commands.delivered,
    RecordType.CANCEL_REQUESTED.value: ends.cancelling("requested"),
    RecordType.CANCEL_PROPAGATED.value: ends.cancelling("propagated"),
    RecordType.CANCEL_ACKNOWLEDGED.value: ends.cancelling("acknowledged"),
    RecordType.CANCEL_QUIESCED.value: ends.cancelling("quiesced"),
    RecordType.CANCEL_RECONCILED.value: ends.cancelling("reconciled"),
    RecordType.PAUSE_REQUESTED.value: pauses.pause_requested,
    RecordType.PAUSED.value: pauses.paused,
    RecordType.RESUME_REQUESTED.value: pauses.resume_requested,
    RecordType.RESUMED.value: pauses.resumed,
    RecordType.LIMITS_RAISED.value: pauses.limits_raised,
    RecordType.JOURNAL_REPAIRED.value: repairs.repaired,
    RecordType.RUN_SUCCEEDED.value: ends.ending(RunPhase.SUCCEEDED),
    RecordType.RUN_FAILED.value: ends.ending(RunPhase.FAILED),
    RecordType.RUN_CANCELLED.value: ends.ending(RunPhase.CANCELLED),
}
NEW_WORK = frozenset(
    {
        RecordType.RUN_ADMITTED,
        RecordType.EPOCH_RAISED,
        RecordType.CHILD_REQUESTED,
        RecordType.MODEL_REQUEST,
        RecordType.EFFECT_INTENT,
        RecordType.EFFECT_DISPATCHED,
    }
)  # I5: what a cancelling or paused run refuses; facts about work already begun are kept. CHILD_STARTED sees to itself
AFTER_END = frozenset(
    {
        RecordType.TOMBSTONE,
        RecordType.SANDBOX_PLACED,
        RecordType.FENCE_REFUSED,
        RecordType.EFFECT_RECONCILED,
        RecordType.COMMAND_ACCEPTED,  # to resolve one of them
        RecordType.MODEL_RESPONSE,  # what was spent is spent
        RecordType.CHILD_ENDED,
        RecordType.JOURNAL_REPAIRED,
    }
)
