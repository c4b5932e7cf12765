"""Whether a command is taken on (M2): an ordered chain of small policies for each type; the first that has a say
decides. What no policy refuses is accepted.

Pure: what is decided follows from the run's state and from what its driver can do. What else a door knows (whether a
budget lets a run go on, what an effect is known as) it decides after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moorage.api.commands import CommandRequest
from moorage.core.approvals.choosing import Unfit, meant
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import RunState


@dataclass(frozen=True)
class Abilities:
    """What the run's driver can do with commands: `steer` between tool calls, `follow_up` after the agent's end, and
    whether it has safe points before that end.
    """

    steer: bool = False
    follow_up: bool = False
    safe_points: bool = False


@dataclass(frozen=True)
class Accepted:
    """It is taken on. `done`: nothing is left to be done about it, and why. `about`: what exactly it was taken on for,
    for people; decided for something else it is another decision. `joins`: the id of an open command that has begun the
    same, and whose end is this one's.
    """

    done: str = ""
    about: str = ""
    joins: str = ""


@dataclass(frozen=True)
class Rejected:
    """It isn't, for good: the reason as one word, and what to do, for people."""

    reason: str
    message: str


Decision = Accepted | Rejected
Policy = Callable[[CommandRequest, RunState, Abilities], Decision | None]


def decide(asked: CommandRequest, state: RunState, abilities: Abilities) -> Decision:
    """Take it on or reject it, as the run stands."""
    for policy in POLICIES[asked.type]:
        if (decision := policy(asked, state, abilities)) is not None:
            return decision
    return Accepted()


def _not_ahead(asked: CommandRequest, s: RunState, _: Abilities) -> Decision | None:
    """Its author has seen what this journal doesn't hold."""
    if asked.observed_offset is None or asked.observed_offset <= s.offset:
        return None
    why = f"observedOffset {asked.observed_offset} is beyond the journal's head, {s.offset}: look at the run again"
    return Rejected("OffsetUnknown", why)


def _not_ended(_: CommandRequest, s: RunState, __: Abilities) -> Decision | None:
    if s.end is None:
        return None
    return Rejected("RunEnded", f"the run has {s.phase.lower()}; what is left to do takes a new AgentRun")


def _not_cancelling(_: CommandRequest, s: RunState, __: Abilities) -> Decision | None:
    if s.cancel_stage is None:
        return None
    return Rejected("Cancelling", "the run is being cancelled, and takes on nothing more")


def _can_steer(_: CommandRequest, __: RunState, can: Abilities) -> Decision | None:
    if can.steer:
        return None
    instead = "send a FollowUp, which it hears once it has stopped" if can.follow_up else "cancel it to stop it"
    return Rejected("DriverCannotSteer", f"the run's driver can't be told anything while it works: {instead}")


def _can_follow_up(_: CommandRequest, __: RunState, can: Abilities) -> Decision | None:
    if can.follow_up:
        return None
    return Rejected("DriverCannotFollowUp", "the run's driver can't go on once it has stopped: make a new AgentRun")


def _agent_hears(_: CommandRequest, s: RunState, __: Abilities) -> Decision | None:
    """An agent that has said its last word hears nothing more."""
    over = s.phase in {RunPhase.VERIFYING, RunPhase.DELIVERING}
    ended = s.agent_end is not None and s.agent_end.outcome in {"completed", "failed", "cancelled"}
    if not over and (not ended or s.phase is RunPhase.PAUSED):
        return None
    return Rejected(
        "AgentFinished", "the agent has stopped for good, and its result is on its way: make a new AgentRun"
    )


def _has_safe_points(_: CommandRequest, __: RunState, can: Abilities) -> Decision | None:
    if can.safe_points:
        return None
    return Rejected("NoSafePoint", "the run's driver has no safe point before its end, and its end is one anyway")


def _stands_already(_: CommandRequest, s: RunState, __: Abilities) -> Decision | None:
    return Accepted("SafePoint") if s.phase is RunPhase.PAUSED else None


def _answers(asked: CommandRequest, s: RunState, _: Abilities) -> Decision | None:
    """T6: an answer to the question that its author means, and to nothing else."""
    found = meant(s.consents, asked.approval, asked.question, asked.observed_offset)
    if isinstance(found, Unfit):
        return Rejected(found.reason, found.message)
    return Accepted("Approved" if asked.type == "Approve" else "Refused", f"{found.key}: {found.subject}")


_LIVE: tuple[Policy, ...] = (_not_ahead, _not_ended, _not_cancelling)
POLICIES: Mapping[str, tuple[Policy, ...]] = {
    "Steer": (*_LIVE, _can_steer, _agent_hears),
    "FollowUp": (*_LIVE, _can_follow_up, _agent_hears),
    "Checkpoint": (*_LIVE, _has_safe_points, _stands_already, _agent_hears),
    "Approve": (*_LIVE, _answers),
    "Reject": (*_LIVE, _answers),
    "Pause": _LIVE,
    "Resume": _LIVE,
    "Cancel": (_not_ahead, _not_ended),
    "Resolve": (_not_ahead,),
}
