"""N6: a fold over what an agent does that notices when it goes in circles. Facts come first, the end afterwards.

What is counted begins anew with each tree that wasn't there before: whoever changes something gets somewhere. Memory is
bounded, whatever an agent does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

KEPT_CALLS = 64
KEPT_TREES = 64
SHOWN = 200  # characters of a call
IDLE = "IdleDecisions"


@dataclass(frozen=True)
class Thresholds:
    """calls: so often the same call on an unchanged tree. verifications: so many in a row whose failing set didn't
    shrink. share: percent of a hard limit used while the tree stayed the same; 0 where no change is asked for. turns:
    so many of them at least, since whoever has few may need most of them to look around. idle: so many decisions in a
    row that called nothing, each followed by another one.
    """

    calls: int = 5
    verifications: int = 3
    share: int = 40
    turns: int = 10
    idle: int = 5


@dataclass(frozen=True)
class Called:
    """A tool call: the tool, its arguments by hash, and both in a few words."""

    tool: str
    digest: str
    shown: str


@dataclass(frozen=True)
class Verified:
    """Acceptance commands ran, and these things failed."""

    failing: frozenset[str]


@dataclass(frozen=True)
class Stood:
    """A safe point: the tree, by hash, and how much of the hard limit that is nearest is used, in percent. `asks`: the
    agent asks for another decision already.
    """

    tree: str
    used: int = 0
    asks: bool = False


@dataclass(frozen=True)
class WentOn:
    """What was told as an end, and stood as one, was none: the agent asks for another decision."""


@dataclass(frozen=True)
class Spurred:
    """What the agent does next it has a new reason for: a person's words, or something that it waits for."""


Event = Called | Verified | Stood | WentOn | Spurred


@dataclass(frozen=True)
class Finding:
    """A circle. `facts` say what was seen; `last`: they were told before, and it went on."""

    kind: str
    facts: str
    last: bool


@dataclass(frozen=True)
class Watched:
    """The fold's memory."""

    calls: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    trees: tuple[str, ...] = ()
    since: int = 0  # percent that was used when the tree was last a new one
    turns: int = 0  # safe points since then
    idle: int = 0  # of those the last ones in a row between two decisions that called nothing
    failing: frozenset[str] = frozenset()
    unshrunk: int = 0  # verifications in a row
    told: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # kind -> the count that was told of


def watch(seen: Watched, event: Event, at: Thresholds) -> tuple[Watched, Finding | None]:
    """The memory after `event`, and what it gives away."""
    match event:
        case Called():
            return _called(seen, event, at)
        case Verified():
            return _verified(seen, event, at)
        case Stood():
            return _stood(seen, event, at)
        case WentOn():
            return _idled(seen, at)
        case Spurred():
            return _busy(seen), None


def _called(seen: Watched, event: Called, at: Thresholds) -> tuple[Watched, Finding | None]:
    key = f"{event.tool}:{event.digest}"
    times = seen.calls.get(key, 0) + 1
    others = {other: count for other, count in seen.calls.items() if other != key}
    kept = dict([*others.items()][-(KEPT_CALLS - 1) :]) | {key: times}
    seen = replace(_busy(seen), calls=MappingProxyType(kept))
    facts = (
        f"`{event.shown[:SHOWN]}` was called {times} times with the same arguments, and nothing in the worktree has"
        " changed meanwhile. Doing it again tells nothing new: try something else, or say what is in the way."
    )
    return _told(seen, "RepeatedCall", times, at.calls, facts)


def _busy(seen: Watched) -> Watched:
    """It does something, so whatever it said before that was no end."""
    told = {kind: count for kind, count in seen.told.items() if kind != IDLE}
    return replace(seen, idle=-1, told=MappingProxyType(told))


def _verified(seen: Watched, event: Verified, at: Thresholds) -> tuple[Watched, Finding | None]:
    shrunk = not event.failing or (bool(seen.failing) and event.failing < seen.failing)
    first = not seen.failing
    unshrunk = 0 if not event.failing else 1 if first or shrunk else seen.unshrunk + 1
    told = {k: n for k, n in seen.told.items() if k != "FailingSet"} if unshrunk <= 1 else seen.told
    seen = replace(seen, failing=event.failing, unshrunk=unshrunk, told=MappingProxyType(dict(told)))
    names = ", ".join(sorted(event.failing)[:5])
    facts = (
        f"The same acceptance failures have stood for {unshrunk} checks in a row: {names}. What was changed in between"
        " moved none of them: read them anew, and look for another cause."
    )
    return _told(seen, "FailingSet", unshrunk, at.verifications, facts)


def _stood(seen: Watched, event: Stood, at: Thresholds) -> tuple[Watched, Finding | None]:
    if event.tree not in seen.trees:
        return _moved(seen, event), None
    used, seen = event.used - seen.since, replace(seen, turns=seen.turns + 1)
    seen, found = _idled(seen, at) if event.asks else (seen, None)
    if found is not None or not at.share or seen.turns < at.turns:
        return seen, found
    facts = (
        f"{used} % of this run's limit were used in the {seen.turns} turns since the worktree was last changed. Change"
        " something, or say what is in the way."
    )
    return _told(seen, "UnchangedTree", used, at.share, facts)


def _idled(seen: Watched, at: Thresholds) -> tuple[Watched, Finding | None]:
    seen = replace(seen, idle=seen.idle + 1)
    facts = (
        f"{seen.idle} decisions in a row called no tool and changed nothing, and each was followed by another. Saying"
        " the same again changes nothing: do what is asked for, or say what is in the way, and stop."
    )
    return _told(seen, IDLE, seen.idle, at.idle, facts)


def _moved(seen: Watched, event: Stood) -> Watched:
    trees = (*seen.trees, event.tree)[-KEPT_TREES:]
    told = {kind: count for kind, count in seen.told.items() if kind == "FailingSet"}
    fresh = replace(seen, calls=MappingProxyType({}), told=MappingProxyType(told))
    return replace(fresh, trees=trees, since=event.used, turns=0, idle=0)


def _told(seen: Watched, kind: str, count: int, threshold: int, facts: str) -> tuple[Watched, Finding | None]:
    """The facts at the threshold; the end once it has been reached a second time."""
    if count < threshold:
        return seen, None
    before = seen.told.get(kind)
    if before is not None and count < before + threshold:
        return seen, None
    told = MappingProxyType({**seen.told, kind: count})
    return replace(seen, told=told), Finding(kind, facts, last=before is not None)
