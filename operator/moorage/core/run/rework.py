"""N4, N6, M3: acceptance failed on what was proposed, or a message came too late for the agent that proposed it.
Another attempt goes on from there and is told, or the run ends.

The verdict is the isolated verification's in each round; no attempt counts as lost by it (R6).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moorage.api.wire import ResolvedRun, Role
from moorage.core.continuation.chain import NO_PROGRESS
from moorage.core.run.actions import Report
from moorage.core.run.limits import spent
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import AttemptEnd, Checkpoint, Proposal, Rejected, RunState, Verification
from moorage.core.run.words import attempt_ended, fail, lacking

REWORK = "AcceptanceFailed"
"""Why an attempt ends that another one follows to mend its result."""
UNHEARD = "MessageUnheard"
"""Why an attempt ends that another one follows to hear what its agent was too quick for."""
ONWARD = frozenset({REWORK, UNHEARD})
STUCK = 512  # characters of an agent's reason that are kept
UNSHRUNK = 3  # verdicts in a row whose failures got no less


def next_round(s: RunState, spec: ResolvedRun, proposal: Proposal, verdict: Verification) -> Report:
    """The end of this attempt, where there may be another one; else the run's. Where no budget is left for one, or none
    would help, the run is paused before it begins.
    """
    if s.rounds >= spec.acceptance_rounds:
        return fail(REWORK, lacking(s, verdict.summary), proposal.commit)
    return attempt_ended(s, Role.RUNNER, REWORK, verdict.summary)


def reworked(s: RunState, proposal: Proposal, verdict: Verification, epoch: int, at: int) -> dict[str, Any]:
    """What the end of such an attempt changes in a state, beside the phase."""
    return {
        "last_loss": AttemptEnd(s.epoch, REWORK, verdict.summary, at),
        "rounds": s.rounds + 1,
        "rejected": Rejected(proposal.commit, proposal.tree, s.failing, _unshrunk(s), _stuck(s, proposal)),
        **_from(s, proposal, epoch),
    }


def to_be_heard(s: RunState, spec: ResolvedRun) -> Report | None:
    """The end of this attempt, where a message that was taken on while its agent worked is still to be heard. Each
    makes one more attempt at the most, and none where no budget is left for another decision.
    """
    late = [c for c in s.commands if c.waits and c.reason != UNHEARD]
    if s.phase is not RunPhase.VERIFYING or not late or spent(spec.limits, s) is not None:
        return None
    why = f"{late[0].type} {late[0].command_id} came after the agent's last decision"
    return attempt_ended(s, Role.RUNNER, UNHEARD, why)


def onward(s: RunState, proposal: Proposal, message: str, epoch: int, at: int) -> dict[str, Any]:
    """What the end of such an attempt changes in a state, beside the phase."""
    late = tuple(replace(c, reason=UNHEARD, message="the next attempt hears it") if c.waits else c for c in s.commands)
    return {"last_loss": AttemptEnd(s.epoch, UNHEARD, message, at), "commands": late, **_from(s, proposal, epoch)}


def _from(s: RunState, proposal: Proposal, epoch: int) -> dict[str, Any]:
    """The next attempt begins with what this one proposed, which the gateway keeps as it keeps a checkpoint (P5)."""
    point = s.checkpoint
    if point is None or point.tree != proposal.tree:
        point = Checkpoint(proposal.commit, proposal.tree, s.iteration, epoch)
    return {"checkpoint": point, "agent_end": None, "proposal": None, "verification": None}


def stuck(s: RunState) -> str | None:
    """N6: why the round that is due would come to nothing, with what failed; None where it may come to something."""
    loss, rejected = s.last_loss, s.rejected
    if s.phase is not RunPhase.RECOVERING or loss is None or loss.reason != REWORK or rejected is None:
        return None
    return f"{rejected.stuck}; acceptance failed: {loss.message}" if rejected.stuck else None


def _stuck(s: RunState, proposal: Proposal) -> str:
    """Why no further round would help."""
    if s.agent_end is not None and s.agent_end.reason == NO_PROGRESS:
        return s.agent_end.message[:STUCK] or "the agent got nowhere"
    if s.rejected is not None and s.rejected.tree == proposal.tree:
        return "the agent was told what failed, and proposed the same again"
    times = _unshrunk(s)
    return f"what fails has got no less in {times} verifications" if times >= UNSHRUNK else ""


def _unshrunk(s: RunState) -> int:
    """Verdicts in a row, this one with them, in which what fails got no less."""
    before = s.rejected
    if before is None or set(s.failing) < set(before.failing):
        return 1
    return before.unshrunk + 1
