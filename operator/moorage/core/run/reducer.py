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
from moorage.core.effects.levels import level_of, may_repeat
from moorage.core.journal.record import Record, RecordType, Source
from moorage.core.run import children, pauses
from moorage.core.run.changes import NOTHING, Changes, Handler, to
from moorage.core.run.phases import LIVE, TERMINAL, IllegalMove, RunPhase, move
from moorage.core.run.rework import REWORK, UNHEARD, onward, reworked
from moorage.core.run.state import (
    AMOUNTS,
    AgentEnd,
    AttemptEnd,
    Checkpoint,
    Deferral,
    Effect,
    End,
    Placement,
    Proposal,
    RunState,
    SandboxRef,
    Usage,
    Verification,
    Violation,
    changed,
    settled,
    working,
)

KEPT_SANDBOXES = 8  # the last ones; all of them stay in the journal
KEPT_CLOSED_EFFECTS = 16
KEPT_NAMES, KEPT_NAME = 4, 160  # of what a proposal lacks, and characters of each
KNOWN = frozenset({"confirmed", "rejected", "compensated"})
CLOSURES = KNOWN | {"not_dispatched", "unknown"}  # I8

FETCH = "git_fetch"  # the kind of what an attempt's start waits for
REPAIRED = "JournalRepaired"
ENDED, STOOD = frozenset({"COMPLETED", "FAILED", "CANCELLED"}), "PAUSED"  # statuses of a store's row (S4)

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


def _admitted(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    return to(s, RunPhase.QUEUED, r.type, spec_hash=p["spec_hash"], admitted_at=r.recorded_at)


def _epoch_raised(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    if p["epoch"] <= s.epoch:
        raise IllegalMove(s.phase, s.phase, f"epoch {p['epoch']} is not above {s.epoch}")
    return to(
        s,
        RunPhase.PROVISIONING,
        r.type,
        epoch=p["epoch"],
        attempt=p["attempt"],
        attempt_began_at=r.recorded_at,
        attempt_started=False,
        attempt_safe_points=0,
        agent_end=None,
        proposal=None,
        left_out=(),
        left_out_count=0,
        verification=None,
        progress_at=None,
        verifications_lost=0,
        verifiers_interrupted=0,
        deferral=None,
        recovered=s.attempt > 0,
        children_ending=False,
        consents=approvals.attempt_began(s),
        **pauses.went_on(s, r),
    )


def _pod_registered(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    ref = SandboxRef(p["pod_uid"], p["pod_name"], p["epoch"], p["role"], p.get("commit"))
    others = tuple(x for x in s.sandboxes if x.pod_uid != ref.pod_uid)
    return {"sandboxes": (*others, ref)[-KEPT_SANDBOXES:]}


def _placed(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    seen = Placement(p["pod_uid"], p["epoch"], p["role"], p.get("node"), p.get("runtime"), p["environment"])
    others = tuple(x for x in s.placements if x.pod_uid != seen.pod_uid)
    return {"placements": (*others, seen)[-KEPT_SANDBOXES:]}


def _attempt_started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    return {"attempt_started": True, "node": p.get("node") or s.node, "progress_at": r.recorded_at}


def _workspace_ready(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    return {"workspace_base": p["base"], "branch": p["branch"], "progress_at": r.recorded_at, **_fetched(s)}


def _fetched(s: RunState) -> Changes:
    """Nothing waits for the repository any more: it is there, or there is nobody left to wait."""
    return {"deferral": None} if s.deferral is not None and s.deferral.of_start else NOTHING


def _agent_started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    started = {"agent_started_at": s.agent_started_at or r.recorded_at, "progress_at": r.recorded_at}
    late = s.agent_end is not None  # told after its end: no way back
    return started if late else to(s, RunPhase.RUNNING, r.type, **started)


def _checkpoint(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    point = Checkpoint(p["commit"], p["tree"], p["iteration"], r.epoch)
    return {"checkpoint": point, "progress_at": r.recorded_at}


def _iteration_complete(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    done = p["iteration"]
    if done <= s.iteration:
        raise IllegalMove(s.phase, s.phase, f"iteration {done} was used before (at {s.iteration})")
    at = {"iteration": done, "attempt_safe_points": s.attempt_safe_points + 1, "progress_at": r.recorded_at}
    point = {**at, **approvals.iteration_over(s)}
    return point if (disk := p.get("disk_bytes")) is None else point | {"disk_bytes": disk}


def _tool_response(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    return {"usage": s.usage.plus("tool_calls"), "progress_at": r.recorded_at}


def _model_request(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    counted = "model_retries" if "retry_of" in p else "model_requests"  # O1: the same request once more
    return {"usage": s.usage.plus(counted), "progress_at": r.recorded_at}


def _model_response(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    if p.get("replayed"):  # R2: an answer given again is not billed again
        return {"progress_at": r.recorded_at}
    return {"usage": add_usage(s.usage, p.get("usage") or {}), "progress_at": r.recorded_at}


def add_usage(usage: Usage, more: Mapping[str, int]) -> Usage:
    """Sum by name; names that aren't in the vector are left out, negative amounts are refused (I4)."""
    known = {name: amount for name, amount in more.items() if name in AMOUNTS}
    for name, amount in known.items():
        if amount < 0:
            raise ValueError(f"usage {name} can't be negative: {amount}")
    for name, amount in known.items():
        usage = usage.plus(name, amount)
    return usage


def _agent_finished(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    if s.agent_end is not None:  # an agent ends once per attempt, and its first word stands
        return NOTHING
    end = AgentEnd(
        p["outcome"], p["reason"], p.get("message", ""), p.get("summary", ""), p.get("exit_code"), r.recorded_at
    )
    return {"agent_end": end, "progress_at": r.recorded_at, **_fetched(s), **approvals.agent_ended(s, r, end.outcome)}


def _result_proposed(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    proposal = Proposal(p["commit"], p["tree"], p["base"], p["empty"], p["files"])
    if s.proposal == proposal:
        return NOTHING
    if s.proposal is not None:
        raise IllegalMove(s.phase, s.phase, f"{proposal.commit} proposed after {s.proposal.commit}")
    if s.agent_end is None or s.agent_end.outcome != "completed":
        raise IllegalMove(s.phase, RunPhase.VERIFYING, "the agent has not completed")
    lacks = tuple(name[:KEPT_NAME] for name in p.get("left_out", ())[:KEPT_NAMES])
    told: Changes = {"left_out": lacks, "left_out_count": p.get("left_out_count", 0)}
    if pauses.outrun(s):
        told = {**told, "pause": None}
    return to(s, RunPhase.VERIFYING, r.type, proposal=proposal, verification=None, **told)


def _verification_started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The first word of each verifier counts: it was told before anything of the repository's ran beside it."""
    if s.verifier_key is not None and s.verifier_key[0] == p["pod_uid"]:
        return NOTHING
    return {"verifier_key": (p["pod_uid"], p["key_sha256"])}


def _verification_result(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    verdict = Verification(p["commit"], p["passed"], p["isolated"], p.get("summary", ""), p.get("problem"))
    return {"verification": verdict, "failing": tuple(p.get("failing", ()))}


def _attempt_ended(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    if p.get("role") == "verifier":
        return _verifier_ended(s, p)
    if s.phase is RunPhase.PAUSED:  # told too late: nobody waits for that attempt
        return NOTHING
    if p.get("reason") == REWORK and s.proposal is not None and s.verification is not None:
        told = reworked(s, s.proposal, s.verification, r.epoch, r.recorded_at)
        return to(s, RunPhase.RECOVERING, r.type, **told)
    if p.get("reason") == UNHEARD and s.proposal is not None:
        told = onward(s, s.proposal, p.get("message", ""), r.epoch, r.recorded_at)
        return to(s, RunPhase.RECOVERING, r.type, **told)
    weight = 1 if s.attempt_safe_points or not p.get("counts_double", True) else 2
    loss = AttemptEnd(p["epoch"], p["reason"], p.get("message", ""), r.recorded_at)
    return to(s, RunPhase.RECOVERING, r.type, strikes=s.strikes + weight, lost=s.lost + 1, last_loss=loss)


def _verifier_ended(s: RunState, p: Mapping[str, Any]) -> Changes:
    """One that is named by its pod died with its owner: it is forgotten, and doesn't count."""
    if (uid := p.get("interrupted")) is not None:
        others = tuple(x for x in s.sandboxes if x.pod_uid != uid)
        return {"sandboxes": others, "verifiers_interrupted": s.verifiers_interrupted + 1}
    trouble = f"{p['reason']}: {p.get('message', '')}"
    return {"verifications_lost": s.verifications_lost + 1, "verifier_trouble": trouble}


def _effect_intent(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    level = level_of(p.get("level"))
    effect = Effect(p["effect_id"], p["kind"], p["key"], p["target"], "intended", level=level, at=r.recorded_at)
    for earlier in s.effects:
        if earlier.key == effect.key and not may_repeat(level, earlier.status):
            why = f"{earlier.effect_id} of the same key is {earlier.status}"
            raise IllegalMove(s.phase, s.phase, f"effect {effect.effect_id} would be a repetition: {why}")
    if effect.kind == "git_push" and (s.proposal is None or p.get("commit", s.proposal.commit) != s.proposal.commit):
        raise IllegalMove(s.phase, RunPhase.DELIVERING, "only the proposed commit is delivered")
    effects = _keep((*s.effects, effect))
    if effect.kind == "git_push":
        return to(s, RunPhase.DELIVERING, r.type, effects=effects)
    return {"effects": effects, **_charged(s, p)}


def _charged(s: RunState, p: Mapping[str, Any]) -> Changes:
    """B3: what the record itself says was used. Older versions said nothing of it."""
    return {"usage": add_usage(s.usage, p["usage"])} if p.get("usage") else NOTHING


def _approval_decided(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """T6; a person's word is charged (B1)."""
    return {**approvals.decided(s, r, p), **_charged(s, p)}


def _keep(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """All open and unknown effects and the last closed ones."""
    closed = [e for e in effects if not e.open and e.status != "unknown"]
    dropped = {e.effect_id for e in closed[:-KEPT_CLOSED_EFFECTS]}
    return tuple(e for e in effects if e.effect_id not in dropped)


def _effect_dispatched(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Only what was meant and not closed meanwhile is sent off."""
    known = next((e for e in s.effects if e.effect_id == p["effect_id"]), None)
    if known is None or known.status not in {"intended", "dispatched"}:
        raise IllegalMove(s.phase, s.phase, f"effect {p['effect_id']} is {known.status if known else 'not known'}")
    return {"effects": _with_effect(s, r, known, "dispatched", "")}


def _effect_closed(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """I8: what is known of an effect is never given up for less."""
    outcome = p["outcome"]
    if outcome not in CLOSURES:
        raise IllegalMove(s.phase, s.phase, f"an effect can't end {outcome!r}")
    known = next((e for e in s.effects if e.effect_id == p["effect_id"]), None)
    if known is None:
        return _charged(s, p)
    if known.status in KNOWN and outcome in CLOSURES - KNOWN:
        raise IllegalMove(s.phase, s.phase, f"effect {known.effect_id} is known to be {known.status}, not {outcome}")
    effects = _with_effect(s, r, known, outcome, p.get("detail", ""))
    closed = {"effects": effects, "deferral": None} if outcome in KNOWN else {"effects": effects}
    return {**closed, **_charged(s, p)}


def _with_effect(s: RunState, r: Record, known: Effect, status: str, detail: str) -> tuple[Effect, ...]:
    now = changed(known, status=status, detail=detail, at=r.recorded_at)
    return tuple(now if e is known else e for e in s.effects)


def _effect_deferred(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """A try that came to nothing yet. A push that waits for its remote is a delivery under way."""
    if p["kind"] == FETCH:
        return _fetch_deferred(s, r, p)
    last = None if s.deferral is None or s.deferral.of_start else s.deferral
    since, tries = (last.since, last.tries) if last else (r.recorded_at, 0)
    deferral = Deferral(p["reason"], p.get("message", ""), tries + 1, since, r.recorded_at)
    if p["kind"] != "git_push":
        return {"deferral": deferral}
    if s.proposal is None:
        raise IllegalMove(s.phase, RunPhase.DELIVERING, "nothing was proposed")
    return to(s, RunPhase.DELIVERING, r.type, deferral=deferral)


def _fetch_deferred(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Only a start waits for its repository."""
    if s.phase is not RunPhase.PROVISIONING:
        return NOTHING
    since = s.deferral.since if s.deferral is not None and s.deferral.of_start else r.recorded_at
    return {"deferral": Deferral(p["reason"], p.get("message", ""), 0, since, r.recorded_at)}


def _constraints(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Whoever was asked stands or falls by this; who wasn't, behind an EMERGENCY_STOP, stays as it was.

    Runners of older versions might report one; they have no say in this.
    """
    if r.source != Source.GATEWAY:
        return NOTHING
    asked = {each["constraint"] for each in p["validations"]}
    kept = tuple(v for v in s.violations if v.constraint not in asked)
    return {"violations": kept + tuple(_violation(s, r, v) for v in p["validations"] if not v["holds"])}


def _violation(s: RunState, r: Record, p: Mapping[str, Any]) -> Violation:
    """Since when it stands is kept while it does, for the same action."""
    before = next((v for v in s.violations if v.constraint == p["constraint"]), None)
    at = before.at if before and before.action == p["action"] else r.recorded_at
    waived = before.waived if before else ""
    return Violation(p["constraint"], p["action"], p["reason"], p["message"], at, waived)


def _drift(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    return {"drift": s.drift + 1}


def _repaired(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """I1: a new generation. What was dropped is gone as fact and kept as doubt: spent, unknown, and not to be repeated.

    A run that had ended, as the store's row says, can't prove its end any more; any other recovers under a new epoch,
    one that stood still once somebody says so.
    """
    feared = tuple(_feared(e, r) for e in p["effects"] if all(e["effect_id"] != known.effect_id for known in s.effects))
    doubts = {
        "generation": p["generation"],
        "epoch": max(s.epoch, p["epoch"]),
        "usage": add_usage(s.usage, p["usage"]),
        "effects": _keep((*s.effects, *feared)),
        "last_loss": AttemptEnd(s.epoch, REPAIRED, p["why"], r.recorded_at),
    }
    if s.phase in TERMINAL:
        return doubts
    if p["status"] in ENDED:
        end = End(REPAIRED, f"the store says {p['status']}, the records of it are lost", None, r.recorded_at)
        return doubts | {"phase": move(s.phase, RunPhase.FAILED, r.type), "end": end}
    if p["status"] == STOOD:
        doubts |= pauses.stood(s, r)
    if s.phase not in LIVE or s.phase is RunPhase.PAUSED:  # who is paused stays so
        return doubts
    return doubts | {"phase": move(s.phase, RunPhase.RECOVERING, r.type)}


def _feared(e: Mapping[str, Any], r: Record) -> Effect:
    level = level_of(e.get("level"))
    return Effect(
        e["effect_id"], e["kind"], e["key"], e["target"], "unknown", e.get("detail", ""), level=level, at=r.recorded_at
    )


STAGES = ("requested", "propagated", "acknowledged", "quiesced", "reconciled")


def _cancel(stage: str) -> Handler:
    def handler(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
        if s.cancel_stage is None:
            if stage != "requested":
                raise IllegalMove(s.phase, s.phase, f"{r.type} without a request")
            phase = move(s.phase, RunPhase.CANCELLING, r.type)
            begun = {"cancel_reason": p["reason"], "cancel_stage": stage, "cancel_at": r.recorded_at}
            return {"phase": phase, "deferral": None, **begun}
        if STAGES.index(stage) <= STAGES.index(s.cancel_stage):
            return NOTHING
        return {"cancel_stage": stage}

    return handler


def _demand_evidence(s: RunState) -> None:
    """S3, N4: success needs a completed agent, no verdict against it, and a push that is known to have arrived."""
    push, verdict = s.delivered(), s.verification
    if s.agent_end is None or s.agent_end.outcome != "completed":
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, "the agent has not completed")
    if verdict is not None and (verdict.problem is not None or not verdict.passed):
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, "acceptance has not passed")
    if push is not None and push.status != "confirmed":
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, f"the push to {push.target} is {push.status}")
    pull = s.asked_for_merge()
    if pull is not None and pull.status != "confirmed":
        raise IllegalMove(s.phase, RunPhase.SUCCEEDED, f"the pull request at {pull.target} is {pull.status}")


def _end(phase: RunPhase) -> Handler:
    def handler(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
        if phase is RunPhase.SUCCEEDED:
            _demand_evidence(s)
        if phase is RunPhase.CANCELLED and s.open_effects:
            raise IllegalMove(s.phase, phase, f"effect {s.open_effects[0].effect_id} is not classified")
        end = End(p["reason"], p.get("message", ""), p.get("commit"), r.recorded_at)
        return {"phase": move(s.phase, phase, r.type), "end": end}

    return handler


HANDLERS: dict[str, Handler] = {
    RecordType.RUN_ADMITTED.value: _admitted,
    RecordType.EPOCH_RAISED.value: _epoch_raised,
    RecordType.POD_REGISTERED.value: _pod_registered,
    RecordType.SANDBOX_PLACED.value: _placed,
    RecordType.ATTEMPT_STARTED.value: _attempt_started,
    RecordType.WORKSPACE_READY.value: _workspace_ready,
    RecordType.AGENT_STARTED.value: _agent_started,
    RecordType.CHECKPOINT.value: _checkpoint,
    RecordType.ITERATION_COMPLETE.value: _iteration_complete,
    RecordType.TOOL_RESPONSE.value: _tool_response,
    RecordType.MODEL_REQUEST.value: _model_request,
    RecordType.MODEL_RESPONSE.value: _model_response,
    RecordType.AGENT_FINISHED.value: _agent_finished,
    RecordType.RESULT_PROPOSED.value: _result_proposed,
    RecordType.VERIFICATION_STARTED.value: _verification_started,
    RecordType.VERIFICATION_RESULT.value: _verification_result,
    RecordType.ATTEMPT_ENDED.value: _attempt_ended,
    RecordType.EFFECT_INTENT.value: _effect_intent,
    RecordType.EFFECT_DISPATCHED.value: _effect_dispatched,
    RecordType.EFFECT_RECEIPT.value: _effect_closed,
    RecordType.EFFECT_RECONCILED.value: _effect_closed,
    RecordType.EFFECT_DEFERRED.value: _effect_deferred,
    RecordType.CHILD_REQUESTED.value: children.child_requested,
    RecordType.CHILD_STARTED.value: children.child_started,
    RecordType.CHILD_ENDED.value: children.child_ended,
    RecordType.CHILDREN_ENDING.value: children.children_ending,
    RecordType.CONSTRAINT_EVALUATED.value: _constraints,
    RecordType.DRIFT_SAVED.value: _drift,
    RecordType.APPROVAL_REQUESTED.value: approvals.requested,
    RecordType.APPROVAL_DECIDED.value: _approval_decided,
    RecordType.COMMAND_ACCEPTED.value: commands.accepted,
    RecordType.COMMAND_REJECTED.value: commands.rejected,
    RecordType.COMMAND_DELIVERED.value: commands.delivered,
    RecordType.CANCEL_REQUESTED.value: _cancel("requested"),
    RecordType.CANCEL_PROPAGATED.value: _cancel("propagated"),
    RecordType.CANCEL_ACKNOWLEDGED.value: _cancel("acknowledged"),
    RecordType.CANCEL_QUIESCED.value: _cancel("quiesced"),
    RecordType.CANCEL_RECONCILED.value: _cancel("reconciled"),
    RecordType.PAUSE_REQUESTED.value: pauses.pause_requested,
    RecordType.PAUSED.value: pauses.paused,
    RecordType.RESUME_REQUESTED.value: pauses.resume_requested,
    RecordType.RESUMED.value: pauses.resumed,
    RecordType.LIMITS_RAISED.value: pauses.limits_raised,
    RecordType.JOURNAL_REPAIRED.value: _repaired,
    RecordType.RUN_SUCCEEDED.value: _end(RunPhase.SUCCEEDED),
    RecordType.RUN_FAILED.value: _end(RunPhase.FAILED),
    RecordType.RUN_CANCELLED.value: _end(RunPhase.CANCELLED),
}

NEW_WORK = frozenset(
    {
        RecordType.RUN_ADMITTED,
        RecordType.EPOCH_RAISED,
        RecordType.CHILD_REQUESTED,
        RecordType.CHILD_STARTED,
        RecordType.MODEL_REQUEST,
        RecordType.EFFECT_INTENT,
        RecordType.EFFECT_DISPATCHED,
    }
)  # I5: what a cancelling or paused run refuses; facts about work already begun are kept

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
