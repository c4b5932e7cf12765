"""O2, B3: what a run becomes by going on with an ended one: in whose session it is, where it begins, and what its
limits are.

A session is a line of runs of which one at a time lives, and it has one account: the limits are those that the run
before had in the end, and what all runs before have used counts against them. A run may say a limit of its own, as it
might raise one later; that, too, is a limit on all of the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage.api.budget import ResolvedLimits
from moorage.api.meta import ObjectRef
from moorage.api.wire import ResolvedOrigin, ResolvedRun, ResolvedWorkspace
from moorage.core.commands.command import MESSAGES, Command
from moorage.core.constraints.context import lived_ms
from moorage.core.journal.record import Record
from moorage.core.run.account import Account, account_of
from moorage.core.run.changes import Changes
from moorage.core.run.limits import NUMBERS
from moorage.core.run.observed import Problem
from moorage.core.run.parents import Parent
from moorage.core.run.phases import RunPhase
from moorage.core.run.state import RunState
from moorage.core.run.usage import used_in_session

OWN_WORDS = "builtin"
"""The driver whose conversation is in its model's protocol."""


def next_of(found: ResolvedRun, asked: ResolvedLimits, ref: ObjectRef, elder: Parent | None) -> ResolvedRun | Problem:
    """The run as one that goes on with `elder`, or what keeps it from that. `asked`: the limits that it says itself,
    without its Agent's.
    """
    problem = _missing(found, ref, elder)
    if problem is not None or elder is None:
        return problem or _waits(
            "ContinuedNotFound", f"AgentRun {ref.name} isn't there, or hasn't begun: create it in this namespace"
        )
    workspace = _workspace(found, elder.spec)
    if isinstance(workspace, Problem):
        return workspace
    changes = {
        "session_id": elder.spec.session_id,
        "origin": ResolvedOrigin(uid=elder.spec.uid, name=elder.spec.name),
        "workspace": workspace,
        "limits": _limits(found.limits, asked, elder.spec.limits),
    }
    return _same_driver(found, elder.spec) or found.model_copy(update=changes)


def _missing(found: ResolvedRun, ref: ObjectRef, elder: Parent | None) -> Problem | None:
    if elder is None:
        return None
    if elder.spec.uid == found.uid:
        return _author("ContinuedNotFound", "spec.continueFrom names the run itself: name one that has ended")
    if elder.spec.parent is not None:
        above = elder.spec.parent.name
        why = f"AgentRun {ref.name} is a child of {above}, which has back what is left of its budget: continue {above}"
        return _author("ContinuedIsChild", why)
    return _unended(ref.name, elder)


def _unended(name: str, elder: Parent) -> Problem | None:
    if elder.state.end is None:
        why = f"AgentRun {name} is {elder.state.phase.value}: this run begins once that has ended"
        return _waits("ContinuedNotEnded", why)
    if elder.released:
        why = f"AgentRun {name} was released, and its checkpoint is gone with that (its retention.ttlAfterFinished)"
        return _author("ContinuedReleased", f"{why}: begin a new run from the branch that it delivered")
    if elder.state.open_children:
        return _waits("ContinuedNotEnded", f"what AgentRun {name} has used is still being counted")
    return None


def _waits(reason: str, message: str) -> Problem:
    return Problem(reason, message, stalled=False)


def _author(reason: str, message: str) -> Problem:
    return Problem(reason, message, stalled=True)


def _workspace(found: ResolvedRun, elder: ResolvedRun) -> ResolvedWorkspace | Problem:
    """The same repository, which has the commits; of an ephemeral one there is only the elder's."""
    mine, theirs = found.workspace, elder.workspace
    if mine.kind == theirs.kind == "ephemeral":
        return theirs
    if mine.key != theirs.key:
        why = f"the workspace isn't that of {elder.name}, whose work this run goes on with: name the same one"
        return _author("ContinuedWorkspaceDiffers", why)
    return mine


def _same_driver(found: ResolvedRun, elder: ResolvedRun) -> Problem | None:
    """A conversation is in its program's own form, and that of `builtin` in its model's protocol."""
    mine, theirs = _speech(found), _speech(elder)
    if mine == theirs:
        return None
    why = f"AgentRun {elder.name} ran with {' and '.join(theirs)}, and this one has {' and '.join(mine)}"
    advice = "name an Agent like that run's, or begin a new run from the branch that it delivered"
    return _author("ContinuedDriverDiffers", f"{why}: the conversation can't be carried over; {advice}")


def _speech(spec: ResolvedRun) -> tuple[str, ...]:
    agent = spec.agent
    protocol = (agent.model.protocol,) if agent.driver == OWN_WORDS and agent.model is not None else ()
    return (agent.driver, *protocol)


def _limits(own: ResolvedLimits, asked: ResolvedLimits, theirs: ResolvedLimits) -> ResolvedLimits:
    """What the run says itself; else what was in force before it; else its Agent's."""
    kept = {name: getattr(theirs, name) for name in NUMBERS if getattr(asked, name) is None}
    return own.model_copy(update={name: most for name, most in kept.items() if most is not None})


# --- the account ------------------------------------------------------------------------------------------------------


def closing(s: RunState, iterations: int) -> Account:
    """The account after an ended run, of whom no request is under way. `iterations`: those that it completed itself."""
    at = s.end.at if s.end is not None else 0
    return Account(used_in_session(s, iterations), lived_ms(s, at))


def joined(s: RunState, r: Record, p: Mapping[str, Any]) -> Changes:
    """O2: what the session's account says as the run joins it."""
    account = account_of(p["account"])
    return {"carried": account.used, "carried_ms": account.wall_ms}


# --- what is carried --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """Where an ended run's work stands: the commit that a next one's result is compared with, and its last checkpoint,
    which has the conversation. `delivered`: the base has all of its work, and the checkpoint's tree is older.
    """

    base: str
    point: str | None
    delivered: bool

    @property
    def commits(self) -> tuple[str, ...]:
        """What whoever goes on with it needs."""
        return (self.base, self.point) if self.point is not None else (self.base,)


def ending(s: RunState, began: str | None, resumed: str | None) -> Ending | None:
    """`began`: the commit that it started from; `resumed`: the checkpoint of an earlier run that it began at. None
    where it ended before it had a worktree.
    """
    point = s.checkpoint.commit if s.checkpoint is not None else resumed
    if s.phase is RunPhase.SUCCEEDED and s.end is not None and s.end.commit is not None:
        return Ending(s.end.commit, point, delivered=True)
    return Ending(began, point, delivered=False) if began is not None else None


def unread(s: RunState) -> tuple[Command, ...]:
    """M3: the messages that were accepted for an ended run, and that its agent never got, oldest first."""
    return tuple(each for each in s.commands if each.type in MESSAGES and each.state == "Expired")
