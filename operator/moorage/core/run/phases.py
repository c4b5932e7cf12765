"""S2, S3: the phases of a run and the one table of legal moves."""

from __future__ import annotations

from enum import StrEnum


class RunPhase(StrEnum):
    """Where a run stands, as told by its journal alone."""

    PENDING = "Pending"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    RUNNING = "Running"
    AWAITING_APPROVAL = "AwaitingApproval"
    AWAITING_INPUT = "AwaitingInput"
    PAUSED = "Paused"
    VERIFYING = "Verifying"
    DELIVERING = "Delivering"
    RECOVERING = "Recovering"
    CANCELLING = "Cancelling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    __hash__ = str.__hash__  # an enumeration's own is by name and in Python: a replay asks it for each record

    @property
    def terminal(self) -> bool:
        """I6: nothing leaves these."""
        return self in TERMINAL


P = RunPhase
TERMINAL = frozenset({P.SUCCEEDED, P.FAILED, P.CANCELLED})
LIVE = frozenset(
    {P.PROVISIONING, P.RUNNING, P.AWAITING_APPROVAL, P.AWAITING_INPUT, P.PAUSED, P.VERIFYING, P.DELIVERING}
)

_FORWARD: dict[RunPhase, frozenset[RunPhase]] = {
    P.PENDING: frozenset({P.QUEUED, P.PROVISIONING}),
    P.QUEUED: frozenset({P.PROVISIONING}),
    P.PROVISIONING: frozenset({P.RUNNING, P.PAUSED, P.VERIFYING, P.DELIVERING, P.PROVISIONING}),
    P.RUNNING: frozenset({P.AWAITING_APPROVAL, P.AWAITING_INPUT, P.PAUSED, P.VERIFYING, P.DELIVERING}),
    P.AWAITING_APPROVAL: frozenset({P.RUNNING, P.PAUSED, P.VERIFYING}),
    P.AWAITING_INPUT: frozenset({P.RUNNING, P.PAUSED}),
    P.PAUSED: frozenset(),  # its sandbox is gone: the way back leads through Recovering
    P.VERIFYING: frozenset({P.RUNNING, P.AWAITING_APPROVAL, P.DELIVERING, P.SUCCEEDED}),
    P.DELIVERING: frozenset({P.RUNNING, P.SUCCEEDED}),
    P.RECOVERING: frozenset({P.PROVISIONING, P.PAUSED, P.VERIFYING, P.DELIVERING}),
    P.CANCELLING: frozenset({P.CANCELLED}),
    P.SUCCEEDED: frozenset(),
    P.FAILED: frozenset(),
    P.CANCELLED: frozenset(),
}


def _moves() -> dict[RunPhase, frozenset[RunPhase]]:
    """The forward moves, plus what any live or non-terminal phase may do: fail, be cancelled, recover."""
    table = {}
    for phase, forward in _FORWARD.items():
        more: set[RunPhase] = set(forward)
        if phase not in TERMINAL:
            more.add(P.FAILED)
            if phase is not P.CANCELLING:
                more.add(P.CANCELLING)
        if phase in LIVE:
            more.add(P.RECOVERING)
        table[phase] = frozenset(more)
    return table


MOVES: dict[RunPhase, frozenset[RunPhase]] = _moves()


class IllegalMove(ValueError):
    """A record would move the run where the table doesn't lead. Nothing has been changed."""

    def __init__(self, old: RunPhase, new: RunPhase, why: str) -> None:
        self.old, self.new = old, new
        super().__init__(f"a run can't go from {old} to {new} ({why})")


def move(old: RunPhase, new: RunPhase, why: str) -> RunPhase:
    """Return `new` where the table allows it, also for staying; else raise IllegalMove."""
    if old is new and old not in TERMINAL:
        return new
    if new not in MOVES[old]:
        raise IllegalMove(old, new, why)
    return new
