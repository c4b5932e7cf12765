"""A journal as people read it: one row per record, each saying what happened in a few words and who saw it.

Pure: records in, rows out. Texts are bounded and carry no content but the typed reasons and messages of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moorage.api.quantity import dollars
from moorage.core.journal.record import Record, RecordType
from moorage.core.models.usage import total
from moorage.core.run.rework import REWORK, UNHEARD
from moorage.core.run.state import RunState
from moorage.core.run.status import grade

Payload = Mapping[str, Any]
MAX_TEXT = 160
GRADES: Mapping[str, str] = {
    "R1": "a new attempt owns the run and has not started yet",
    "R2": "its workspace is back, and what became of some effect is not known",
    "R3": "its workspace is back, and every effect is accounted for",
    "R4": "and its result passed acceptance in a sandbox of its own",
}


@dataclass(frozen=True)
class Row:
    """One line of the timeline. `seen_by` is who wrote the record, `assurance` whether it saw or was told (V4)."""

    seq: int
    at: int
    epoch: int
    iteration: int | None
    type: str
    what: str
    seen_by: str
    assurance: str

    def as_json(self) -> dict[str, Any]:
        """Plain data; `at` as RFC 3339 with milliseconds, UTC."""
        return {
            "seq": self.seq,
            "at": rfc3339(self.at),
            "epoch": self.epoch,
            "iteration": self.iteration,
            "type": self.type,
            "what": self.what,
            "seenBy": self.seen_by,
            "assurance": self.assurance,
        }


def rfc3339(at: int) -> str:
    """Milliseconds since the epoch as `2026-01-31T10:00:00.123Z`."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def row(record: Record) -> Row:
    """One record as a row; types of a newer version keep their name and nothing more."""
    payload = record.payload or {}
    describe = DESCRIPTIONS.get(record.type)
    return Row(
        seq=record.seq,
        at=record.recorded_at,
        epoch=record.epoch,
        iteration=_iteration(record, payload),
        type=record.type,
        what=bounded(describe(payload) if describe else record.type.lower().replace("_", " ")),
        seen_by=record.source,
        assurance=record.assurance,
    )


def recap(s: RunState) -> list[str]:
    """What all rows come to: attempts, what was recovered and how far that is proved, and what is left to a person."""
    said = [f"attempts {s.attempt}, epoch {s.epoch}, iterations {s.iteration}"] if s.attempt else []
    proved = grade(s)
    if proved is not None:
        why = f" after {s.last_loss.reason}" if s.last_loss else ""
        point = f", from iteration {s.checkpoint.iteration} at {_short(s.checkpoint.commit)}" if s.checkpoint else ""
        said.append(f"recovered{why}{point}: grade {proved}, {GRADES[proved]}")
    if s.generation > 1:
        said.append(f"the journal was repaired: this is generation {s.generation}, and what was dropped is in the rows")
    if s.drift:
        said.append(f"unsaved work was kept aside {s.drift} times: see the rows")
    said += [
        f"unknown: {e.kind} to {e.target}; look there, then: moorage resolve RUN {e.effect_id} --confirmed|--rejected"
        for e in s.unknown_effects
    ]
    return [bounded(line) for line in said]


def bounded(text: str) -> str:
    """One line without control characters, at most MAX_TEXT long: a record's text never drives the terminal."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= MAX_TEXT else flat[: MAX_TEXT - 1] + "…"


def _iteration(record: Record, payload: Payload) -> int | None:
    found = payload.get("iteration", record.turn)
    return found if isinstance(found, int) else None


def _short(commit: object) -> str:
    return str(commit or "")[:12]


def _because(payload: Payload) -> str:
    reason, message = str(payload.get("reason") or ""), str(payload.get("message") or "")
    return ": ".join(part for part in (reason, message) if part)


def _admitted(p: Payload) -> str:
    return f"admitted with spec {_short(p.get('spec_hash'))}"


def _repaired(p: Payload) -> str:
    gap = p.get("dropped") or {}
    return (
        f"journal repaired: generation {p.get('generation')}, offsets {gap.get('first')} to {gap.get('last')} dropped"
    )


def _epoch(p: Payload) -> str:
    return f"attempt {p.get('attempt')} owns the run ({p.get('reason') or 'Start'})"


def _pod(p: Payload) -> str:
    grade = "" if p.get("isolated", True) else ", an ordinary process without isolation"
    return f"{p.get('role')} sandbox {p.get('pod_name')} registered{grade}"


def _started(p: Payload) -> str:
    node = p.get("node")
    return f"sandbox started on {node}" if node else "sandbox started"


def _workspace(p: Payload) -> str:
    return f"worktree ready at {_short(p.get('base'))} for branch {p.get('branch')}"


def _tool(p: Payload) -> str:
    return f"tool {p.get('tool') or p.get('name') or 'call'}"


def _tool_done(p: Payload) -> str:
    code = p.get("exit_code")
    if p.get("timed_out"):
        return f"{_tool(p)} timed out"
    if code is None:
        return f"{_tool(p)} {'answered' if p.get('ok', True) else 'failed'}"
    return f"{_tool(p)} answered, exit {code}"


def _model_request(p: Payload) -> str:
    return f"asked {p.get('model') or 'the model'}"


def _model_response(p: Payload) -> str:
    usage = p.get("usage") or {}
    tokens, micros, stop = total(usage), usage.get("cost_micros"), p.get("stop_reason")
    used = (f", {tokens} tokens" if tokens else "") + (f", ${dollars(micros)}" if micros else "")
    return (
        _answered(p)
        + used
        + (" by an estimate" if used and p.get("estimated") else "")
        + (f" ({stop})" if stop else "")
    )


def _answered(p: Payload) -> str:
    """How an exchange with a model ended. Status 0: there was no answer, and `problem` says why."""
    status, problem = p.get("status", 200), p.get("problem")
    if p.get("replayed"):
        return "recorded answer given again"
    if status == 0:
        return f"the model gave no answer: {problem}"
    if not 200 <= status < 300:
        return f"the model's provider refused with status {status}" + (f": {problem}" if problem else "")
    return f"the model's answer was cut: {problem}" if problem else "the model answered"


def _iteration_done(p: Payload) -> str:
    held = p.get("held_ms")
    waited = f", the next request waited {held} ms for it" if isinstance(held, int) else ""
    return f"iteration {p.get('iteration')} complete" + ("" if p.get("changed", True) else ", nothing changed") + waited


def _checkpoint(p: Payload) -> str:
    return f"checkpoint {_short(p.get('commit'))}{_left_out(p)}"


def _left_out(p: Payload) -> str:
    """How much of the agent's tree a commit lacks, and its first paths."""
    named = p.get("left_out") or ()
    count = p.get("left_out_count") or len(named)
    if not count:
        return ""
    more = ", …" if count > 2 else ""
    return f", {count} left out ({', '.join(map(str, named[:2]))}{more})"


def _output(p: Payload) -> str:
    return f"{p.get('size', p.get('bytes', '?'))} bytes of {p.get('stream', 'output')}"


def _agent_finished(p: Payload) -> str:
    code = p.get("exit_code")
    because = _because(p)
    if "summary" not in p:  # the gateway's word: its runner was told to begin nothing
        return f"no agent was started ({because})"
    return (
        f"agent {p.get('outcome')}"
        + (f", exit {code}" if code is not None else "")
        + (f" ({because})" if because else "")
    )


def _proposed(p: Payload) -> str:
    if p.get("empty"):
        return f"proposed no change{_left_out(p)}"
    return f"proposed {_short(p.get('commit'))}, {p.get('files')} files{_left_out(p)}"


def _drift(p: Payload) -> str:
    return f"unsaved work kept at {_short(p.get('commit'))}" + (
        "" if p.get("pushed", True) else ", on its volume alone"
    )


def _checked(p: Payload) -> str:
    found = FOUND.get(str(p.get("status")), "that could not be done")
    return f"the agent's end was checked in its own sandbox: {found}"


FOUND = {"clear": "nothing stands against it", "objected": "something stands against it"}
TOLD = {"nudge": "the agent is told to go on", "terminate": "the agent is ended"}


def _decided(p: Payload) -> str:
    return f"{TOLD.get(str(p.get('decision')), 'decided')} ({p.get('kind', 'Stopped')})"


def _attempt_ended(p: Payload) -> str:
    if p.get("reason") == REWORK:
        return "what was proposed is not accepted: another attempt goes on from it"
    if p.get("reason") == UNHEARD:
        return f"{p.get('message')}: another attempt goes on from what was proposed"
    return f"{p.get('role') or 'runner'} sandbox lost ({_because(p)})"


def _verifying(p: Payload) -> str:
    return f"acceptance started on {_short(p.get('commit'))}"


def _verdict(p: Payload) -> str:
    if p.get("problem"):
        return f"acceptance could not be run: {p['problem']}"
    verdict = "accepted" if p.get("passed") else "not accepted"
    where = "" if p.get("isolated", True) else " without a sandbox of its own"
    return f"{_short(p.get('commit'))} {verdict}{where}" + (f": {p['summary']}" if p.get("summary") else "")


DOES = {
    "git_push": "git push",
    "pull_request": "make a pull request",
    "http_request": "send a request",
    "tunnel": "open a tunnel",
}


def _intent(p: Payload) -> str:
    kind = str(p.get("kind", "act"))
    return f"means to {DOES.get(kind, kind.replace('_', ' '))} to {p.get('target')} ({p.get('effect_id')})"


def _dispatched(p: Payload) -> str:
    return f"effect {_short(p.get('effect_id'))} sent off"


def _adopted(p: Payload) -> str:
    return f"effect {_short(p.get('effect_id'))} is asked for again, and its recorded result given"


def _closed(p: Payload) -> str:
    detail = p.get("detail")
    return f"effect {_short(p.get('effect_id'))} {p.get('outcome')}" + (f": {detail}" if detail else "")


def _deferred(p: Payload) -> str:
    return f"{str(p.get('kind', 'effect')).replace('_', ' ')} has to wait: {_because(p)}"


def _fence(p: Payload) -> str:
    return f"refused epoch {p.get('epoch', '?')} at {p.get('door', 'a door')}"


def _judged(p: Payload) -> str:
    """What a change of verdict is about."""
    broken = [v for v in p.get("validations", ()) if not v.get("holds", True)]
    said = "; ".join(f"{v.get('constraint', '?')}: {v.get('message', '')} ({v.get('action', '?')})" for v in broken)
    return f"constraints: {said}" if said else "constraints hold"


def _cancel(stage: str) -> Callable[[Payload], str]:
    return lambda p: f"cancel {stage}" + (f" ({p['reason']})" if p.get("reason") else "")


def _asks(p: Payload) -> str:
    how = "comes to what was answered" if p.get("answered") else "waits for the approval"
    return f"{how} {p.get('name')}: {p.get('subject')}"


def _answered_by(p: Payload) -> str:
    why = f": {p['reason']}" if p.get("reason") else ""
    return f"{p.get('outcome')} by {p.get('by') or 'somebody'}{why}"


def _command(word: str) -> Callable[[Payload], str]:
    def describe(p: Payload) -> str:
        issuer = f" by {p['issuer']}" if p.get("issuer") else ""
        return f"{p.get('type')} {p.get('command_id')}{issuer} {word}" + (f" ({_because(p)})" if _because(p) else "")

    return describe


def _pause(word: str) -> Callable[[Payload], str]:
    def describe(p: Payload) -> str:
        because = _because(p) or (f"by {p['by']}" if p.get("by") else "")
        return word + (" at once" if p.get("kill") else "") + (f" ({because})" if because else "")

    return describe


def _raised(p: Payload) -> str:
    higher = sorted((p.get("limits") or {}).items())
    return "raised " + (", ".join(f"{name.replace('_', ' ')} to {to}" for name, to in higher) or "a limit")


def _child(word: str) -> Callable[[Payload], str]:
    def describe(p: Payload) -> str:
        outcome = f" ({p['outcome']})" if p.get("outcome") else ""
        problem = f": {p['problem']}" if p.get("problem") else ""
        return f"child {p.get('name', 'run')} {word}{outcome}{problem}"

    return describe


def _placed(p: Payload) -> str:
    runtime = f" under {p['runtime']}" if p.get("runtime") else ""
    return f"{p.get('role', 'sandbox')} runs on {p.get('node') or 'an unnamed node'}{runtime} in {p.get('environment')}"


def _ended(word: str) -> Callable[[Payload], str]:
    def describe(p: Payload) -> str:
        commit = f" with {_short(p['commit'])}" if p.get("commit") else ""
        because = _because(p)
        return f"{word}{commit}" + (f" ({because})" if because not in {"", "Completed"} else "")

    return describe


DESCRIPTIONS: Mapping[str, Callable[[Payload], str]] = {
    RecordType.RUN_ADMITTED: _admitted,
    RecordType.EPOCH_RAISED: _epoch,
    RecordType.POD_REGISTERED: _pod,
    RecordType.SANDBOX_PLACED: _placed,
    RecordType.ATTEMPT_STARTED: _started,
    RecordType.BASE_FIXED: lambda p: f"every attempt starts from {_short(p.get('base'))}",
    RecordType.WORKSPACE_READY: _workspace,
    RecordType.AGENT_STARTED: lambda p: f"agent started{' (' + str(p['driver']) + ')' if p.get('driver') else ''}",
    RecordType.MODEL_REQUEST: _model_request,
    RecordType.MODEL_RESPONSE: _model_response,
    RecordType.TOOL_REQUEST: _tool,
    RecordType.TOOL_RESPONSE: _tool_done,
    RecordType.CONTEXT_COMPACTED: lambda p: f"context compacted ({p.get('stage')})",
    RecordType.COMPLETION_CHECKED: _checked,
    RecordType.CONTINUATION_DECIDED: _decided,
    RecordType.ITERATION_COMPLETE: _iteration_done,
    RecordType.CHECKPOINT: _checkpoint,
    RecordType.AGENT_OUTPUT: _output,
    RecordType.AGENT_FINISHED: _agent_finished,
    RecordType.RESULT_PROPOSED: _proposed,
    RecordType.DRIFT_SAVED: _drift,
    RecordType.ATTEMPT_ENDED: _attempt_ended,
    RecordType.VERIFICATION_STARTED: _verifying,
    RecordType.VERIFICATION_RESULT: _verdict,
    RecordType.EFFECT_INTENT: _intent,
    RecordType.EFFECT_DISPATCHED: _dispatched,
    RecordType.EFFECT_RECEIPT: _closed,
    RecordType.EFFECT_RECONCILED: _closed,
    RecordType.EFFECT_DEFERRED: _deferred,
    RecordType.EFFECT_ADOPTED: _adopted,
    RecordType.APPROVAL_REQUESTED: _asks,
    RecordType.APPROVAL_DECIDED: _answered_by,
    RecordType.COMMAND_ACCEPTED: _command("accepted"),
    RecordType.COMMAND_REJECTED: _command("rejected"),
    RecordType.COMMAND_DELIVERED: lambda p: f"the agent is given {p.get('command_id')}",
    RecordType.CANCEL_REQUESTED: _cancel("requested"),
    RecordType.CANCEL_PROPAGATED: _cancel("propagated"),
    RecordType.CANCEL_ACKNOWLEDGED: _cancel("acknowledged"),
    RecordType.CANCEL_QUIESCED: _cancel("quiesced: nothing runs any more"),
    RecordType.CANCEL_RECONCILED: _cancel("reconciled: every effect is classified"),
    RecordType.PAUSE_REQUESTED: _pause("is to pause"),
    RecordType.PAUSED: _pause("paused: nothing stands but the volume"),
    RecordType.RESUME_REQUESTED: _pause("is asked to go on"),
    RecordType.RESUMED: _pause("goes on"),
    RecordType.LIMITS_RAISED: _raised,
    RecordType.SESSION_JOINED: lambda p: f"goes on with {p.get('name')}, in its session and out of its budget",
    RecordType.CHILD_REQUESTED: _child("is asked for by the agent"),
    RecordType.CHILD_MADE: _child("has an AgentRun"),
    RecordType.CHILD_STARTED: _child("has a share of the budget"),
    RecordType.CHILD_ENDED: _child("has ended"),
    RecordType.CHILDREN_ENDING: lambda _: "its children are told to end",
    RecordType.CONSTRAINT_EVALUATED: _judged,
    RecordType.FENCE_REFUSED: _fence,
    RecordType.BUDGET_SETTLED: lambda _: "budget settled",
    RecordType.RUN_SUCCEEDED: _ended("succeeded"),
    RecordType.RUN_FAILED: _ended("failed"),
    RecordType.RUN_CANCELLED: _ended("cancelled"),
    RecordType.SEGMENT_STARTED: lambda p: f"segment {p.get('segment')} begins",
    RecordType.JOURNAL_REPAIRED: _repaired,
    RecordType.TOMBSTONE: lambda p: f"deleted and sealed ({_because(p) or 'asked for'})",
}
