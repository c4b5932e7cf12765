"""The records of an attempt: admitted, owned, at work, at its safe points, given up (R1, R6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.approvals import reducing as approvals
from moorage.core.journal.record import Record
from moorage.core.run import pauses
from moorage.core.run.changes import NOTHING, Changes, to
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.rework import REWORK, UNHEARD, onward, reworked
from moorage.core.run.state import AttemptEnd, Checkpoint, Placement, RunState, SandboxRef

KEPT_SANDBOXES = 8  # the last ones; all of them stay in the journal


def admitted(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """O6: the resolved spec is fixed; the run waits for its turn."""
    return to(s, RunPhase.QUEUED, r.type, spec_hash=p["spec_hash"], admitted_at=r.recorded_at)


def epoch_raised(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """F1, R1: the next owner. What only an attempt has begins anew."""
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


def pod_registered(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """F2: the last word on a pod counts."""
    ref = SandboxRef(p["pod_uid"], p["pod_name"], p["epoch"], p["role"], p.get("commit"))
    others = tuple(x for x in s.sandboxes if x.pod_uid != ref.pod_uid)
    return {"sandboxes": (*others, ref)[-KEPT_SANDBOXES:]}


def placed(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """O4: where it runs."""
    seen = Placement(p["pod_uid"], p["epoch"], p["role"], p.get("node"), p.get("runtime"), p["environment"])
    others = tuple(x for x in s.placements if x.pod_uid != seen.pod_uid)
    return {"placements": (*others, seen)[-KEPT_SANDBOXES:]}


def started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """Its runner has been heard."""
    return {"attempt_started": True, "node": p.get("node") or s.node, "progress_at": r.recorded_at}


def workspace_ready(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The worktree stands, and the wait for the repository is over."""
    return {"workspace_base": p["base"], "branch": p["branch"], "progress_at": r.recorded_at, **fetched(s)}


def fetched(s: RunState) -> Changes:
    """Nothing waits for the repository any more: it is there, or there is nobody left to wait."""
    return {"deferral": None} if s.deferral is not None and s.deferral.of_start else NOTHING


def agent_started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The program runs."""
    started = {"agent_started_at": s.agent_started_at or r.recorded_at, "progress_at": r.recorded_at}
    late = s.agent_end is not None  # told after its end: no way back
    return started if late else to(s, RunPhase.RUNNING, r.type, **started)


def checkpoint(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """P2: from here it can be gone on from."""
    point = Checkpoint(p["commit"], p["tree"], p["iteration"], r.epoch)
    return {"checkpoint": point, "progress_at": r.recorded_at}


def iteration_complete(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """J9: the safe point. Raise IllegalMove for a number that was used before (E2)."""
    done = p["iteration"]
    if done <= s.iteration:
        raise IllegalMove(s.phase, s.phase, f"iteration {done} was used before (at {s.iteration})")
    at = {"iteration": done, "attempt_safe_points": s.attempt_safe_points + 1, "progress_at": r.recorded_at}
    point = {**at, **approvals.iteration_over(s, r)}
    return point if (disk := p.get("disk_bytes")) is None else point | {"disk_bytes": disk}


def ended(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """R6: lost, which counts, or over for another attempt to go on, which doesn't."""
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


def drift_saved(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """R3: how often something was set aside."""
    return {"drift": s.drift + 1}
