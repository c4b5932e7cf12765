"""F7: who may lead, decided from what one candidate has seen of the election's Lease. Pure; times are milliseconds of
the candidate's own monotonic clock (ADR 62), never those that somebody else wrote.

Invariant: a leader acts for `give_up_ms` at most after it *sent* its last renewal that was acknowledged. Nobody else
takes over before a whole `lease_ms` has passed since it *saw* that renewal, which is later. As `give_up_ms` is the
shorter one, two never act at once, unless one's clock runs half as fast again as the other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True)
class Terms:
    """How long things take, in milliseconds."""

    lease_ms: int = 15_000
    """A leader that is silent for so long is replaced."""

    give_up_ms: int = 10_000
    """A leader that could not renew for so long acts no more."""

    renew_ms: int = 5_000
    """Between two renewals: each is a write to the API server."""

    look_ms: int = 1_000
    """Between two looks of a candidate, which are reads, and between two tries of a renewal that failed."""


@dataclass(frozen=True)
class Claim:
    """What a Lease says. `holder` empty: nobody leads. `version` changes with each write."""

    holder: str
    version: str
    duration_ms: int


@dataclass(frozen=True)
class Sighting:
    """A claim, and when this candidate first saw it."""

    claim: Claim
    since: int


class Step(Enum):
    """What a candidate does after a look."""

    WAIT = auto()
    TAKE = auto()
    CREATE = auto()


def sighted(before: Sighting | None, found: Claim | None, now: int) -> Sighting | None:
    """What a candidate knows after a look. A Lease that is gone says nothing about its holder, who may work on: it
    counts as it was last seen.
    """
    if found is None or (before is not None and before.claim == found):
        return before
    return Sighting(found, now)


def step(me: str, seen: Sighting | None, *, stands: bool, now: int) -> Step:
    """Take the Lease where nobody holds it, where its holder was silent for too long, or where the holder is of this
    very name: an earlier process of this pod, which had ended before this one was started. `stands`: it is there.
    """
    free = seen is None or seen.claim.holder in {"", me} or now - seen.since >= seen.claim.duration_ms
    if not free:
        return Step.WAIT
    return Step.TAKE if stands else Step.CREATE
