"""S1: the state of a run at a journal offset, as plain frozen data.

Everything here follows from the journal; nothing is kept that could not be reduced again. Sizes are bounded: what grows
with a run (records, outputs) stays in the journal and the blob store.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from moorage.core.approvals.consent import Consent
from moorage.core.commands.command import Command
from moorage.core.effects.levels import Level, queryable
from moorage.core.run.family import Child, Share, total
from moorage.core.run.phases import RunPhase

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REDUCER_VERSION = 3
T = TypeVar("T", bound="DataclassInstance")


def changed(state: T, **changes: Any) -> T:
    """A copy with some fields changed: `dataclasses.replace` for a frozen class without `__post_init__`, at a fifth of
    its price. Raises AttributeError for a field that isn't there.
    """
    return _as(type(state), state.__dict__ | changes)


@dataclass(frozen=True)
class Usage:
    """B1 in the smallest units: tokens, micro-dollars, counts. Only ever grows (I4)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_micros: int = 0
    model_requests: int = 0
    tool_calls: int = 0
    model_retries: int = 0
    effects: int = 0
    egress_bytes: int = 0
    human_approvals: int = 0

    @property
    def tokens(self) -> int:
        """All tokens that count against a token limit."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def plus(self, name: str, amount: int = 1) -> Usage:
        """With so much more of that one, which must be a field."""
        return changed(self, **{name: getattr(self, name) + amount})


AMOUNTS = frozenset(f.name for f in fields(Usage))


@dataclass(frozen=True)
class Checkpoint:
    """P2: the last safe point with a tree of its own."""

    commit: str
    tree: str
    iteration: int
    epoch: int


@dataclass(frozen=True)
class AgentEnd:
    """How the agent's program ended, as its runner told."""

    outcome: str  # completed | failed | cancelled | exhausted | unknown
    reason: str
    message: str
    summary: str
    exit_code: int | None
    at: int


@dataclass(frozen=True)
class Proposal:
    """The commit that would be delivered."""

    commit: str
    tree: str
    base: str
    empty: bool
    files: int


@dataclass(frozen=True)
class Verification:
    """V3: the verdict on one commit. `isolated` is false where the commands had no sandbox of their own."""

    commit: str
    passed: bool
    isolated: bool
    summary: str
    problem: str | None = None


@dataclass(frozen=True)
class Rejected:
    """N4: the last proposal that acceptance failed on, and after which the agent goes on. `failing` names what failed;
    `unshrunk` counts the verdicts in a row in which that got no less; `stuck` says why no further round would help.
    """

    commit: str
    tree: str
    failing: tuple[str, ...] = ()
    unshrunk: int = 1
    stuck: str = ""


@dataclass(frozen=True)
class Effect:
    """E1: one external effect and how far it is known."""

    effect_id: str
    kind: str
    key: str
    target: str
    status: str  # intended | dispatched | confirmed | rejected | unknown | not_dispatched | compensated
    detail: str = ""
    level: str = Level.OPAQUE
    at: int = 0  # when it came to that status, as recorded (ms)

    @property
    def open(self) -> bool:
        """I8: not closed yet."""
        return self.status in {"intended", "dispatched"}

    @property
    def unsettled(self) -> bool:
        """Something is left to be found out, and there is a way to (E4)."""
        return self.open or (self.status == "unknown" and queryable(self.level))


@dataclass(frozen=True)
class Deferral:
    """Why an effect could not be made or settled at the last try, and how long that has lasted. Times are those of the
    records (ms): a restart loses none of them. `tries` is 0 where it isn't an effect that waits, but the attempt's
    start, for its repository.
    """

    reason: str
    message: str
    tries: int
    since: int
    at: int

    @property
    def of_start(self) -> bool:
        """The attempt can't start yet; no effect has been tried."""
        return self.tries == 0


@dataclass(frozen=True)
class SandboxRef:
    """F2: a registered pod."""

    pod_uid: str
    pod_name: str
    epoch: int
    role: str
    commit: str | None = None


@dataclass(frozen=True)
class Placement:
    """O4: where one sandbox runs, as the operator saw it.

    `runtime` is its runtime class or kind of isolation (None: the node's own), `environment` the digest of what it runs
    in: its image's, or this machine's.
    """

    pod_uid: str
    epoch: int
    role: str
    node: str | None
    runtime: str | None
    environment: str


@dataclass(frozen=True)
class AttemptEnd:
    """Why the last attempt was given up."""

    epoch: int
    reason: str
    message: str
    at: int


class PauseReason(StrEnum):
    """Why a run is stopped softly. Those of PASSING end by what is so when a pass comes by; the others hold until
    somebody asks for the run to go on.
    """

    SUSPENDED = "Suspended"  # spec.suspend
    BUDGET = "BudgetExhausted"
    COMMAND = "Command"
    APPROVAL = "Approval"
    CONSTRAINT = "Constraint"
    NO_PROGRESS = "NoProgress"  # N6
    DAY = "DayBudgetExhausted"  # C5: the namespace's day
    PREEMPTED = "Preempted"  # Q5: to make room. Journaled as SUSPENDED by QUEUE, which every operator lets go on


QUEUE = "queue"
PASSING = frozenset(
    {PauseReason.SUSPENDED, PauseReason.BUDGET, PauseReason.APPROVAL, PauseReason.DAY, PauseReason.PREEMPTED}
)


class PauseStage(StrEnum):
    """How far a pause is."""

    REQUESTED = "requested"  # the attempt goes on to its next safe point
    PAUSED = "paused"
    RESUMED = "resumed"  # the next attempt is on its way


@dataclass(frozen=True)
class Pause:
    """Q5: a stop that can be taken back. `at`: since when it is at its stage (ms, as recorded).

    `limit` names the field of ResolvedLimits, or the line of the namespace's contract, that was used up, `constraint`
    what was violated, where that is why. `most` of that line's there were, and more `until` (ms since the epoch).
    `kill` waits for no safe point (C2). `released`: somebody has asked for the run to go on. `widened`: what was used
    up has been raised since.
    """

    reason: str
    by: str
    message: str
    at: int
    stage: str = PauseStage.REQUESTED
    limit: str | None = None
    kill: bool = False
    released: bool = False
    widened: bool = False
    constraint: str | None = None
    most: int | None = None
    until: int | None = None

    @property
    def pending(self) -> bool:
        """The run isn't stopped yet."""
        return self.stage == PauseStage.REQUESTED

    @property
    def preempted(self) -> bool:
        """Q5: it was stopped to make room, and not by its author."""
        return self.reason == PauseReason.PREEMPTED or (self.reason == PauseReason.SUSPENDED and self.by == QUEUE)

    @property
    def told(self) -> str:
        """The reason as people hear it."""
        return PauseReason.PREEMPTED.value if self.preempted else self.reason

    @property
    def lasting(self) -> bool:
        """It ends by somebody's word alone, and not by what is so."""
        return self.reason not in PASSING

    def widened_by(self, raised: Collection[str]) -> bool:
        """Whether raising these limits lets it go on: the one that was used up; any, where only the agent knew it."""
        return self.reason == PauseReason.BUDGET and (self.limit in raised if self.limit else bool(raised))


@dataclass(frozen=True)
class Raise:
    """A limit that was raised after admission: the field of ResolvedLimits, its value, and in which epoch."""

    limit: str
    to: int
    epoch: int


@dataclass(frozen=True)
class End:
    """The terminal record."""

    reason: str
    message: str
    commit: str | None
    at: int


@dataclass(frozen=True)
class Violation:
    """C2: a constraint that doesn't hold at the moment, and what follows from it: `action` as in judging.Action.

    `waived`: a person has let the run go on under that action all the same; it warns instead from then on, until it
    holds again, and still stops the run by a graver one. Empty where nobody has.
    """

    constraint: str
    action: str
    reason: str
    message: str
    at: int
    waived: str = ""


@dataclass(frozen=True)
class RunState:
    """`S` of S1 for one run. Compare two by `==` or by their state hash."""

    phase: RunPhase = RunPhase.PENDING
    offset: int = -1
    head: str = ""
    spec_hash: str = ""
    admitted_at: int | None = None
    epoch: int = 0
    attempt: int = 0
    attempt_began_at: int | None = None
    attempt_started: bool = False
    attempt_safe_points: int = 0
    strikes: int = 0  # R6: attempts lost, those without a new safe point counted double
    lost: int = 0  # the same, each counted once; not those that a pause, a verdict or a message ended
    last_loss: AttemptEnd | None = None
    node: str | None = None
    iteration: int = 0
    progress_at: int | None = None
    workspace_base: str | None = None
    branch: str | None = None
    agent_started_at: int | None = None
    checkpoint: Checkpoint | None = None
    agent_end: AgentEnd | None = None
    proposal: Proposal | None = None
    left_out: tuple[str, ...] = ()  # the first of what the proposal lacks, as its runner told, with the reasons
    left_out_count: int = 0
    verifications_lost: int = 0  # in this epoch
    verifiers_interrupted: int = 0  # in this epoch: their owner died, which says nothing of them
    verifier_trouble: str | None = None
    verifier_key: tuple[str, str] | None = None  # pod UID, and SHA-256 of what its verdict must bring
    verification: Verification | None = None
    sandboxes: tuple[SandboxRef, ...] = ()
    placements: tuple[Placement, ...] = ()
    effects: tuple[Effect, ...] = ()
    deferral: Deferral | None = None  # until the effect is closed, or the workspace stands
    usage: Usage = field(default_factory=Usage)
    disk_bytes: int = 0  # at the last safe point that told
    violations: tuple[Violation, ...] = ()  # that stand
    cancel_reason: str | None = None
    cancel_stage: str | None = None  # requested | propagated | acknowledged | quiesced | reconciled
    cancel_at: int | None = None
    recovered: bool = False
    drift: int = 0
    end: End | None = None
    failing: tuple[str, ...] = ()  # what the last verdict failed by
    rounds: int = 0  # N4: attempts that followed a failed acceptance
    rejected: Rejected | None = None
    generation: int = 1  # of the journal; each repair begins one (I1)
    consents: tuple[Consent, ...] = ()  # T6: all pending ones and the last that were answered
    commands: tuple[Command, ...] = ()  # M2: all open ones and the last closed ones, oldest first
    pause: Pause | None = None  # until the next attempt owns the run
    pauses: int = 0  # how often it was paused
    idle_since: int | None = None  # paused, and no attempt owns it yet
    idle_ms: int = 0  # what earlier pauses took
    raised: tuple[Raise, ...] = ()  # by the name of the limit
    children: tuple[Child, ...] = ()  # all that live and the last that ended, oldest first
    children_used: Share = field(default_factory=Share)  # by all that ended
    children_asked: int = 0  # for by its agent, in all
    children_ending: bool = False  # X2: they are to end before this run does, and no others begin
    carried: Share = field(default_factory=Share)  # B3: what the runs of its session before it have used
    carried_ms: int = 0  # likewise, of wallClock

    @property
    def pausing(self) -> bool:
        """It stops at its next safe point, and begins nothing new there."""
        return self.pause is not None and self.pause.pending

    @property
    def stopped_since(self) -> int | None:
        """Q5: when it stopped to make room, while it is stopped for that: ms since the epoch, of whole seconds."""
        stopped = self.phase is RunPhase.PAUSED and self.pause is not None and self.pause.preempted
        return self.pause.at // 1000 * 1000 if stopped and self.pause is not None else None

    @property
    def open_children(self) -> tuple[Child, ...]:
        """Those whose share isn't settled."""
        return tuple(child for child in self.children if child.open)

    def child(self, uid: str, name: str) -> Child | None:
        """The child of that UID, or the one of that name that was asked for and has no UID yet."""
        asked = (c for c in self.children if c.open and not c.uid and c.name == name)
        return next((c for c in self.children if c.uid == uid), None) if uid else next(asked, None)

    @property
    def given_away(self) -> Share:
        """B3: what its children have used, and what those that live may use."""
        return total([self.children_used, *(child.reserve for child in self.children if child.open)])

    @property
    def committed_micros(self) -> int:
        """What it has spent, with what its children have and may."""
        return self.usage.cost_micros + self.given_away.cost_micros

    @property
    def open_effects(self) -> tuple[Effect, ...]:
        """Effects whose end isn't known yet."""
        return tuple(e for e in self.effects if e.open)

    @property
    def unsettled_effects(self) -> tuple[Effect, ...]:
        """Effects that somebody should still ask about: open ones, and unknown ones whose target can be asked."""
        return tuple(e for e in self.effects if e.unsettled)

    @property
    def unknown_effects(self) -> tuple[Effect, ...]:
        """Effects that ended unknown: they ask for a person (E4)."""
        return tuple(e for e in self.effects if e.status == "unknown")

    def sandbox(self, epoch: int, role: str) -> SandboxRef | None:
        """The last registered sandbox of that epoch and role."""
        found = [s for s in self.sandboxes if s.epoch == epoch and s.role == role]
        return found[-1] if found else None

    def delivered(self) -> Effect | None:
        """The push of this run's proposal, if one was intended."""
        return self._last("git_push")

    def asked_for_merge(self) -> Effect | None:
        """The pull request of what was delivered, if one was intended (W5)."""
        return self._last("pull_request")

    def _last(self, kind: str) -> Effect | None:
        return next((e for e in reversed(self.effects) if e.kind == kind), None)


class _Counting(Usage):
    """Usage that only one replay holds: it is added to in place."""

    def plus(self, name: str, amount: int = 1) -> Usage:
        self.__dict__[name] += amount
        return self


def working(state: RunState) -> RunState:
    """A copy for one replay, which writes into its fields: a long journal would make two copies for each record.

    It must be given to nobody: take `settled` of it.
    """
    return changed(state, usage=_as(_Counting, vars(state.usage).copy()))


def settled(state: RunState) -> RunState:
    """The frozen state that a working copy has come to. Raises AttributeError for a field that isn't there."""
    return changed(state, usage=_as(Usage, vars(state.usage).copy()))


def _as(kind: type[T], said: dict[str, Any]) -> T:
    """One of that kind with these fields, which it takes over. Raises AttributeError for a field that isn't there."""
    if len(said) != len(kind.__dataclass_fields__):
        unknown = [name for name in said if name not in kind.__dataclass_fields__]
        raise AttributeError(f"{kind.__name__} has no field {', '.join(unknown)}")
    copy = object.__new__(kind)
    object.__setattr__(copy, "__dict__", said)
    return copy
