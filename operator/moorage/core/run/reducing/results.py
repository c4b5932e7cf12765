"""The records of what an agent comes to: its end, its proposal, and the verdict on that (V3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.core.approvals import reducing as approvals
from moorage.core.journal.record import Record
from moorage.core.run import pauses
from moorage.core.run.changes import NOTHING, Changes, to
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.reducing.attempts import fetched
from moorage.core.run.state import AgentEnd, Proposal, RunState, Verification

KEPT_NAMES, KEPT_NAME = 4, 160  # of what a proposal lacks, and characters of each


def agent_finished(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """How the program ended."""
    if s.agent_end is not None:  # an agent ends once per attempt, and its first word stands
        return NOTHING
    end = AgentEnd(
        p["outcome"], p["reason"], p.get("message", ""), p.get("summary", ""), p.get("exit_code"), r.recorded_at
    )
    return {"agent_end": end, "progress_at": r.recorded_at, **fetched(s), **approvals.agent_ended(s, r, end.outcome)}


def proposed(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The commit that would be delivered. Raise IllegalMove for another one, or of an agent that hasn't completed."""
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


def verification_started(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """The first word of each verifier counts: it was told before anything of the repository's ran beside it."""
    if s.verifier_key is not None and s.verifier_key[0] == p["pod_uid"]:
        return NOTHING
    return {"verifier_key": (p["pod_uid"], p["key_sha256"])}


def verified(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """V3: the verdict."""
    verdict = Verification(p["commit"], p["passed"], p["isolated"], p.get("summary", ""), p.get("problem"))
    return {"verification": verdict, "failing": tuple(p.get("failing", ()))}
