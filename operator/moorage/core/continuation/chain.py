"""N1, N2, N4: the agent has stopped; the first link of the chain that has a say decides.

Invariants
- Without a tree that wasn't there before, each link nudges at most twice (`IDLE`), and all extra turns together are at
  most `FRUITLESS`. Over an attempt, ends are put off at most `MOST` times. So whatever an agent does, it ends.
- An answer that was cut by its length is gone on with at most three times in a row.
- A spent budget ends everything, and where the agent only plans nothing is asked of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from moorage.core.continuation.decisions import CompactAndRetry, Decision, Escalate, Nudge, Pass, Terminate
from moorage.core.continuation.loops import Finding

CUTS = 3
EMPTIES = 2
COMPACTIONS = 2
IDLE = 2
MOST = 8
FRUITLESS = 12
BUSY_TURNS = 3
SHORT = 200  # characters
KEPT_TREES = 64
NAMED = 5
NO_PROGRESS = "NoProgress"

CUT_TEXT = "Your answer was cut by the limit of output tokens. Go on exactly where it stopped."
CUT_CALL = (
    "Your answer was cut by the limit of output tokens within a tool call, so that call did not run. Make it again, in "
    "smaller parts."
)
EMPTY = "Your last answer was empty. Call a tool, or say in words that you are done."


class Finish(StrEnum):
    """Why the agent has stopped."""

    DONE = "done"
    CUT = "cut"  # by the limit of output tokens
    CUT_CALL = "cut-call"  # by it, within a tool call
    EMPTY = "empty"
    NO_ROOM = "no-room"  # its context is full
    DECLINED = "declined"  # the model will not go on


@dataclass(frozen=True)
class Stopped:
    """What is known where it stopped.

    said: characters of its last words. busy: turns in a row right before it that called tools. tree: what the worktree
    holds, by hash. spent: the limit that is reached, in words. objection: what the checks before an end found; None
    where they found nothing or weren't run. proved: they ran, and all of them passed.
    """

    finish: Finish
    said: int = 0
    busy: int = 0
    tree: str = ""
    open_todos: tuple[str, ...] = ()
    planning: bool = False
    spent: str | None = None
    objection: str | None = None
    proved: bool = False


@dataclass(frozen=True)
class Policy:
    """What is asked of this agent. `nudges`: the links that go by signs alone (its own plan, its last words) may speak.
    `judged`: acceptance commands decide on the result in any case.
    """

    nudges: bool = True
    judged: bool = False


@dataclass(frozen=True)
class Given:
    """What the agent has been given so far in this attempt: the chain's whole memory."""

    cuts: int = 0  # in a row
    empties: int = 0  # in a row
    compactions: int = 0
    put_off: int = 0  # ends that were not accepted
    fruitless: int = 0  # extra turns since the last new tree
    idle: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # nudges since the last new tree
    trees: tuple[str, ...] = ()


Link = Callable[[Stopped, Given, Policy], Decision | None]


def decide(at: Stopped, given: Given, policy: Policy) -> tuple[Decision, Given]:
    """What to do, and the memory to bring along next time."""
    known = _seen(at, given)
    decision = next((told for link in CHAIN if (told := link(at, known, policy)) is not None), Pass())
    return decision, _after(decision, at, known)


def worked(given: Given) -> Given:
    """After a turn that called tools, whole: rows of cut or empty answers are over."""
    return replace(given, cuts=0, empties=0, compactions=0)


def with_circle(decision: Decision, circle: Finding | None, policy: Policy) -> Decision:
    """N6: what the loop detector has to say is told beside a nudge, or makes it the last word."""
    if circle is None or not isinstance(decision, Nudge):
        return decision
    if circle.last:
        return Terminate(NO_PROGRESS, circle.facts, judged=policy.judged)
    return replace(decision, text=f"{decision.text}\n\n{circle.facts}")


def _seen(at: Stopped, given: Given) -> Given:
    """A tree that wasn't there before is an effect: what was given is paid for."""
    if not at.tree or at.tree in given.trees:
        return given
    new = bool(given.trees)
    trees = (*given.trees, at.tree)[-KEPT_TREES:]
    return replace(given, trees=trees, fruitless=0, idle=MappingProxyType({})) if new else replace(given, trees=trees)


def _after(decision: Decision, at: Stopped, given: Given) -> Given:
    match decision:
        case CompactAndRetry():
            return replace(given, compactions=given.compactions + 1, fruitless=given.fruitless + 1)
        case Nudge():
            return _nudged(decision.kind, at, given)
        case _:
            return given


def _nudged(kind: str, at: Stopped, given: Given) -> Given:
    cut, empty = at.finish in {Finish.CUT, Finish.CUT_CALL}, at.finish is Finish.EMPTY
    return replace(
        given,
        cuts=given.cuts + 1 if cut else 0,
        empties=given.empties + 1 if empty else 0,
        put_off=given.put_off + (at.finish is Finish.DONE),
        fruitless=given.fruitless + 1,
        idle=MappingProxyType({**given.idle, kind: given.idle.get(kind, 0) + 1}),
    )


# --- the links --------------------------------------------------------------------------------------------------------


def spent_budget(at: Stopped, _given: Given, _policy: Policy) -> Decision | None:
    """B3: nothing is left for another turn. An end that was said already stands, and is judged as it is."""
    if at.spent is None:
        return None
    return Pass() if at.finish is Finish.DONE else Terminate("BudgetExhausted", at.spent)


def declined(at: Stopped, _given: Given, _policy: Policy) -> Decision | None:
    """Asking again would be asking for another answer."""
    if at.finish is not Finish.DECLINED:
        return None
    return Escalate("ModelDeclined", "the model declined to go on with this goal")


def full_context(at: Stopped, given: Given, _policy: Policy) -> Decision | None:
    """CompactAndRetry, while that may help."""
    if at.finish is not Finish.NO_ROOM:
        return None
    if given.compactions >= COMPACTIONS or given.fruitless >= FRUITLESS:
        return Escalate("ContextExceeded", "the conversation no longer fits the model's context")
    return CompactAndRetry()


def finish_reason_recovery(at: Stopped, given: Given, _policy: Policy) -> Decision | None:
    """Cut by its length: go on from there."""
    if at.finish not in {Finish.CUT, Finish.CUT_CALL}:
        return None
    if given.cuts >= CUTS or given.fruitless >= FRUITLESS:
        return Terminate("OutputLimit", f"{given.cuts + 1} answers in a row were cut by the limit of output tokens")
    return Nudge("FinishReasonRecovery", CUT_CALL if at.finish is Finish.CUT_CALL else CUT_TEXT)


def empty_answer(at: Stopped, given: Given, _policy: Policy) -> Decision | None:
    """Nothing was said: that is no end."""
    if at.finish is not Finish.EMPTY:
        return None
    if given.empties >= EMPTIES or given.fruitless >= FRUITLESS:
        return Terminate("EmptyAnswer", f"{given.empties + 1} answers in a row were empty")
    return Nudge("EmptyAnswer", EMPTY)


def plan_mode(at: Stopped, _given: Given, _policy: Policy) -> Decision | None:
    """A plan is what was asked for: its end is the agent's to say."""
    return Pass() if at.planning else None


def enough(_at: Stopped, given: Given, _policy: Policy) -> Decision | None:
    """The end was put off so often that it is taken: what decides comes afterwards."""
    return Pass() if given.put_off >= MOST else None


def pre_complete(at: Stopped, given: Given, policy: Policy) -> Decision | None:
    """N4: facts stand against the end."""
    if at.objection is None:
        return None
    if _idle(given, "PreComplete"):
        return Terminate(NO_PROGRESS, f"{UNMOVED}, though it was told: {at.objection}", judged=policy.judged)
    return Nudge("PreComplete", at.objection)


def pending_todo(at: Stopped, given: Given, policy: Policy) -> Decision | None:
    """Its own plan says that something is left."""
    if not policy.nudges or not at.open_todos:
        return None
    left = _listed(at.open_todos)
    if _idle(given, "PendingTodo"):
        return Terminate(NO_PROGRESS, f"{UNMOVED}, while its plan has open: {left}", judged=policy.judged)
    ask = "Do it, or mark as done what is done and drop what isn't needed; then say that you are done."
    return Nudge("PendingTodo", f"Your plan still has open: {left}. {ask}")


def recent_tool_activity(at: Stopped, given: Given, policy: Policy) -> Decision | None:
    """It was busy until now, and ends in a few words: it may have meant to go on. Facts that speak for the end outrank
    such a sign.
    """
    short = at.busy >= BUSY_TURNS and at.said < SHORT
    if not policy.nudges or not short or at.proved or _idle(given, "RecentToolActivity"):
        return None
    ask = "If something is left to be done, do it now. If not, say what you changed and how you checked it."
    return Nudge("RecentToolActivity", f"You were at work and stopped with few words. {ask}")


UNMOVED = "the agent says again and again that it is done, and changes nothing"


def _idle(given: Given, kind: str) -> bool:
    """N2: that nudge brought nothing new, twice."""
    return given.idle.get(kind, 0) >= IDLE or given.fruitless >= FRUITLESS


def _listed(items: tuple[str, ...]) -> str:
    more = f"; and {len(items) - NAMED} more" if len(items) > NAMED else ""
    return "; ".join(item[:120] for item in items[:NAMED]) + more


CHAIN: tuple[Link, ...] = (
    spent_budget,
    declined,
    full_context,
    finish_reason_recovery,
    empty_answer,
    plan_mode,
    enough,
    pre_complete,
    pending_todo,
    recent_tool_activity,
)
"""In order. N3, PendingBackgroundTask, goes before `pre_complete` once runs have children."""
