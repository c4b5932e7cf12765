"""What a RunCommand's status says, from the object, the run that it names and the gateway's answer: pure.

A receipt is told once: a final one stays as it is, whatever becomes of the run and whoever looks at it later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moorage.api.commands import CommandRequest, Receipt
from moorage.api.meta import format_time, kstatus, set_conditions
from moorage.api.runcommand import RunCommand, RunCommandStatus, State

FINAL = frozenset({"Rejected", "Delivered", "Done", "Expired"})
UNKNOWN_RUN_MS = 15_000  # one apply may bring a command before its run
WAIT_MS = 5_000  # for what wakes nobody: a run that is to be created, or admitted
LOOK_MS = 30_000  # an accepted command is woken by the journal; this is for a word of it that got lost
PASSING = frozenset({"EffectBusy"})  # refusals of this moment
KSTATUS: dict[str, Literal["Current", "InProgress", "Failed"]] = {
    "Pending": "InProgress",
    "Accepted": "InProgress",
    "Delivered": "Current",
    "Done": "Current",
    "Rejected": "Failed",
    "Expired": "Failed",
}
SAID = {
    "Accepted": "it is in the run's journal, and is to be done",
    "Delivered": "the agent has got it",
    "Done": "it is done",
}


@dataclass(frozen=True)
class Target:
    """The AgentRun of the name that a command gives. `ended`: the phase that it ended in, empty while it lives."""

    uid: str
    ended: str = ""


@dataclass(frozen=True)
class Refused:
    """The gateway's no to the call itself, or `reason` UnknownRun where it doesn't know the run."""

    reason: str
    message: str


@dataclass(frozen=True)
class Told:
    """What to write, and when to look again without being woken (None: never). `cancels`: the run is to be cancelled
    though no journal knows it yet.
    """

    state: State
    reason: str = ""
    message: str = ""
    receipt: Receipt | None = None
    again_ms: int | None = None
    cancels: bool = False


def request_of(command: RunCommand, authority: str) -> CommandRequest:
    """What is asked of the gateway. The same object always asks the same."""
    spec = command.spec
    return CommandRequest(
        command_id=command.metadata.name,
        type=spec.type,
        text=spec.text or "",
        effect=spec.effect or "",
        outcome=spec.outcome,
        note=spec.note or "",
        approval=spec.approval or "",
        question=spec.question or "",
        observed_offset=spec.observed_offset,
        issuer=spec.issuer or "",
        authority=authority,
        surface="kubernetes",
        input_source="RunCommand",
    )


def early(known: RunCommandStatus, target: Target | None, age_ms: int) -> Told | None:
    """What is told without asking the gateway; None: ask it. `age_ms` since the command was created."""
    taken = known.run_uid
    if taken and (target is None or target.uid != taken):
        return Told("Expired", "RunDeleted", "the run that had taken it is gone")
    if target is not None:
        return None
    why = "there is no AgentRun of that name in this namespace"
    if age_ms < UNKNOWN_RUN_MS:
        return Told("Pending", "UnknownRun", f"{why} yet", again_ms=WAIT_MS)
    return Told("Rejected", "UnknownRun", why)


def answered(command: RunCommand, target: Target, answer: Receipt | Refused) -> Told:
    """What is told after the gateway has spoken."""
    if isinstance(answer, Receipt):
        again = None if answer.final else LOOK_MS
        message = answer.message or SAID.get(answer.state, "")
        return Told(answer.state, answer.reason or answer.state, message, answer, again)
    if answer.reason != "UnknownRun":
        if answer.reason in PASSING:
            return Told("Pending", answer.reason, answer.message, again_ms=WAIT_MS)
        return Told("Rejected", answer.reason, answer.message)
    return _unadmitted(command, target)


def _unadmitted(command: RunCommand, target: Target) -> Told:
    """No journal knows the run: it waits to begin, or it ended without having begun."""
    cancel = command.spec.type == "Cancel"
    if target.ended:
        if cancel and target.ended == "Cancelled":
            return Told("Done", "Cancelled", "the run was cancelled before it began")
        return Told("Rejected", "RunEnded", f"the run has {target.ended.lower()} before it began")
    why = "the run has not begun: the command is taken on as soon as it does"
    return Told("Pending", "RunNotStarted", "" if cancel else why, again_ms=WAIT_MS, cancels=cancel)


def status_of(told: Told, known: RunCommandStatus, run_uid: str | None, generation: int, now: int) -> RunCommandStatus:
    """The status to be written. `now` in milliseconds since the epoch."""
    receipt = told.receipt
    conditions = kstatus(KSTATUS[told.state], told.reason or told.state, told.message, generation)
    decided = told.state != "Pending"
    return RunCommandStatus(
        observed_generation=generation,
        state=told.state,
        reason=told.reason or None,
        message=told.message or None,
        offset=receipt.offset if receipt else known.offset,
        issuer=(receipt.issuer if receipt else known.issuer) or None,
        run_uid=known.run_uid or (run_uid if receipt is not None else None),
        at=format_time(receipt.at) if receipt and receipt.at else known.at or (format_time(now) if decided else None),
        conditions=set_conditions(known.conditions, conditions, now),
    )
