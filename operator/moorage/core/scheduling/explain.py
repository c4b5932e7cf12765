"""Q4: the wait in words: the place, what is short, and who would unblock it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slots:
    """What a run's pass knows of the queue. The default is that of a run whose turn it is.

    place: among those of its tenant that wait, from 1. limit, live: slots of the installation. most, held: those of the
    tenant (None: no bound of its own), bounded by the ResourceConstraint `set_by`. first_to_end: the name of the
    tenant's live run that began first. closed: why nothing of the tenant begins now.
    """

    free: bool = True
    place: int = 1
    tenant: str = ""
    live: int = 0
    limit: int = 1
    held: int = 0
    most: int | None = None
    set_by: str = ""
    first_to_end: str | None = None
    closed: str = ""
    kept: str = ""  # the reason why something else than the queue keeps it, which then passes it over


RECHECK_MS, NEAR, SELDOM = 120_000, 10, 15


def recheck_ms(slots: Slots) -> int:
    """In how many milliseconds a run that waits is looked at anew, and its place told. The queue wakes whose turn it
    is; the further back, the more seldom: each telling is a write, and thousands may wait.
    """
    return RECHECK_MS * min(SELDOM, -(-slots.place // NEAR))


def wait_of(slots: Slots) -> str:
    """For example: 3rd in team-a; team-a uses 4 of 4 sandboxes; next when build-7 ends or rcon/team-a is raised."""
    return f"{ordinal(slots.place)} in {slots.tenant}; {_short(slots)}"


def _short(slots: Slots) -> str:
    if slots.closed:
        return slots.closed
    raised = f"rcon/{slots.set_by} is raised" if slots.set_by else "its ResourceConstraint is raised"
    if slots.most == 0:
        return f"{slots.tenant} may use no sandbox at all; next when {raised}"
    if slots.most is not None and slots.held >= slots.most:
        ends = f"{slots.first_to_end} ends" if slots.first_to_end and slots.place == 1 else "runs of it end"
        return f"{slots.tenant} uses {slots.held} of {slots.most} sandboxes; next when {ends} or {raised}"
    if slots.live >= slots.limit:
        return (
            f"all {slots.limit} sandboxes of this installation are in use, {slots.held} of them by {slots.tenant}; next"
            " when one of them ends and it is this namespace's turn"
        )
    return (
        f"{slots.live} of {slots.limit} sandboxes of this installation are in use; its turn comes after those before it"
    )


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if n % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
