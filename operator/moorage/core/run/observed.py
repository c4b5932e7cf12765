"""What one pass knows: the object, what runs for it, and the journal's state. All reads end up here, none happen later.

Gather order matters: children first, the journal last, so that a sandbox seen ended has no result still on its way (a
runner reports its result before it exits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedRun, ResolvedTimeouts
from moorage.core.run.state import RunState
from moorage.core.scheduling.explain import Slots


class SandboxPhase(StrEnum):
    """The life of one sandbox as its substrate tells it."""

    WAITING = "Waiting"  # not started: unscheduled, pulling, mounting
    RUNNING = "Running"
    ENDED = "Ended"


@dataclass(frozen=True)
class SandboxView:
    """One sandbox. `reason` is typed (see REASONS in docs/reasons.md), `message` is for people."""

    name: str
    uid: str
    epoch: int
    role: str
    phase: SandboxPhase
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    node: str | None = None
    runtime: str | None = None  # runtime class or kind of isolation
    environment: str | None = None  # digest of what it runs in, once that is known (O4)
    created_at: int | None = None
    started_at: int | None = None
    stop_by: int | None = None  # it is being removed, and was to be gone by then (ms)
    unprepared: bool = False  # its node says that it has neither sandbox nor network yet

    @property
    def stopping(self) -> bool:
        """Somebody asked for its removal."""
        return self.stop_by is not None

    @property
    def ended(self) -> bool:
        """No process of it is left."""
        return self.phase is SandboxPhase.ENDED


@dataclass(frozen=True)
class LeaseView:
    """F1: the Lease of a live run."""

    epoch: int
    holder: str
    renewed_at: int
    duration_ms: int


@dataclass(frozen=True)
class Heartbeat:
    """F4 as the gateway last heard it; None in Observed when it never did."""

    epoch: int
    progress_seq: int
    heard_at: int
    progress_at: int


@dataclass(frozen=True)
class Problem:
    """Why a run can't be admitted as it stands. `stalled`: it needs its author; otherwise waiting may mend it. `held`:
    it is somebody else's limit that keeps it, and no time is counted against it (C6).
    """

    reason: str
    message: str
    stalled: bool
    held: bool = False


@dataclass(frozen=True)
class Observed:
    """Everything that a pass over one run may look at.

    F6: times that tell whether an owner lives (the Lease's, the heartbeat's, the gateway's, a sandbox's start) are the
    observer's own: when it first saw them.
    """

    uid: str
    tenant: str
    name: str
    generation: int
    created_at: int
    spec: ResolvedRun | None
    problem: Problem | None
    cancel: bool
    suspend: bool
    closed_without_journal: bool  # the object's status is terminal and no journal exists: nothing may revive it
    slots: Slots
    journal: RunState | None  # None: the gateway could not be asked
    gateway_up_since: int | None
    lease: LeaseView | None
    sandboxes: tuple[SandboxView, ...]
    volume: bool  # stands and is not being removed
    asked: ResolvedTimeouts = field(
        default_factory=ResolvedTimeouts
    )  # the author's times, also where the spec can't be resolved yet
    heartbeat: Heartbeat | None = None
    gone: bool = False  # the AgentRun is deleted, or about to be: what is left is closed and released
    gateway_trouble: str = "the gateway can't be reached"  # what to say where journal is None
    signature: str | None = None  # J6: the gateway's word for the journal's offset and head
    per_day: Mapping[str, int | None] = field(default_factory=dict)  # C5: the contract's lines of a day; None: no limit
    makes_room_for: str = ""  # Q5: the run that waits for its slot; where it may be asked for that
    untouched: bool = False  # created a moment ago and looked at by nobody: nothing stands for it
    progress_seen_at: int | None = None  # F6: when the observer first saw the journal's latest progress
    wanted: ResolvedLimits | None = None  # the limits as the author writes them now; those in force are in `spec`
    iterations: int | None = None  # how many are complete, by the gateway's count
    orphaned: bool = False  # X2: its parent has ended, or tells its children to end
    owed: bool = False  # B2, W7: it has ended, and its parent has still to settle its share and to keep its commit
    children_over: tuple[str, ...] = ()  # by Child.ref: open children that have ended, as their objects say
    children_gone: tuple[str, ...] = ()  # by Child.ref: open children that nobody will admit any more
    children_why: tuple[tuple[str, str], ...] = ()  # of those that are gone: Child.ref, and why it won't begin
    children_wanted: tuple[str, ...] = ()  # names of those that were asked for and have no object yet
    children_made: tuple[tuple[str, str], ...] = ()  # of those whose object is seen first: name, and UID of that
    problem_since: int | None = None  # when the observer first saw a problem that time counts against; else creation
    released: bool = False  # nothing of it is at the gateway but journal, blobs and evidence, or it isn't known there

    @property
    def live_sandboxes(self) -> tuple[SandboxView, ...]:
        """Those that may still do something."""
        return tuple(v for v in self.sandboxes if not v.ended)

    def sandbox(self, epoch: int, role: str) -> SandboxView | None:
        """The sandbox of that epoch and role (verifiers: the newest)."""
        found = [s for s in self.sandboxes if s.epoch == epoch and s.role == role]
        return found[-1] if found else None
