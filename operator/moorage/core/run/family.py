"""B3, X2: what a run knows of its children: what each may use, and what those that ended have used.

A child's share counts as used by its parent from the record on that reserves it, until the record that settles it at
what was really used. Both are in the parent's journal, so that no limit is passed whatever dies in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import add, attrgetter
from typing import Any

KEPT_PROBLEM = 256  # characters of it
KEPT_ENDED = 100  # of those that were started by hand


class ChildStatus(StrEnum):
    """How far a child is, as its parent's journal has it."""

    REQUESTED = "requested"  # by its parent's agent; the operator makes its object
    MADE = "made"  # its object was seen; where that is gone, somebody has deleted it
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True)
class Share:
    """Part of a budget, in the smallest units. The fields are those of a Context that are used up (B1)."""

    iterations: int = 0
    tokens: int = 0
    cost_micros: int = 0
    tool_calls: int = 0
    effects: int = 0
    egress_bytes: int = 0
    human_approvals: int = 0

    def plus(self, other: Share) -> Share:
        """Both together."""
        return Share(*map(add, _amounts(self), _amounts(other)))


AMOUNTS = tuple(f.name for f in fields(Share))
_amounts = attrgetter(*AMOUNTS)


def share_of(told: Mapping[str, Any]) -> Share:
    """As a record has it. Raise ValueError for a negative amount (I4); names of other versions are passed over."""
    amounts = {name: int(told.get(name, 0)) for name in AMOUNTS}
    if min(amounts.values()) < 0:
        raise ValueError(f"a share can't be negative: {amounts}")
    return Share(**amounts)


def total(shares: Iterable[Share]) -> Share:
    """The sum."""
    found = Share()
    for each in shares:
        found = found.plus(each)
    return found


@dataclass(frozen=True)
class Child:
    """A run that was started by this one, or in its name. `reserve` counts until it has ended, `used` from then on. One
    that the gateway hasn't admitted has no `uid` yet; `key` is the tool call that asked for it.

    `outcome`: its last phase, NeverStarted or Unreadable; `commit`: what it proposed; `base`: where that began.
    `problem`: what came of it otherwise than its run says, the beginning of it.
    """

    uid: str
    name: str
    reserve: Share = field(default_factory=Share)
    status: str = ChildStatus.STARTED
    used: Share = field(default_factory=Share)
    outcome: str = ""
    commit: str | None = None
    base: str | None = None
    key: str = ""
    problem: str = ""

    @property
    def ref(self) -> str:
        """What it is known by among its siblings."""
        return self.uid or self.name

    @property
    def open(self) -> bool:
        """Its share is not settled yet."""
        return self.status != ChildStatus.ENDED

    def ended(self, used: Share, outcome: str, commit: str | None, base: str | None = None, problem: str = "") -> Child:
        """The same, settled."""
        ended = replace(self, status=ChildStatus.ENDED, used=used, outcome=outcome, problem=problem[:KEPT_PROBLEM])
        return replace(ended, commit=commit, base=base)


def kept(children: tuple[Child, ...]) -> tuple[Child, ...]:
    """All that live or that an agent asked for, which may ask again (an Agent says how many), and the last others."""
    over = [each for each in children if not each.open and not each.key][:-KEPT_ENDED]
    return tuple(each for each in children if each not in over)
