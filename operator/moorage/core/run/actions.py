"""What a plan may ask for. Each action is idempotent and has one place that applies it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moorage.api.wire import ResolvedRun, Role


@dataclass(frozen=True)
class Admit:
    """Make the run known to the gateway: its resolved spec becomes the first record."""

    spec: ResolvedRun


@dataclass(frozen=True)
class Begin:
    """Admit a run that nobody has worked on with the fence of its first epoch, and create Lease and volume beside: one
    round trip. All of it stands before a sandbox may start; what a crash or a refusal leaves half done is finished or
    taken away by the next passes.
    """

    spec: ResolvedRun
    epoch: int


@dataclass(frozen=True)
class EnsureLease:
    """Create the Lease anew at the journal's epoch: somebody deleted it or put an older one back."""

    epoch: int


@dataclass(frozen=True)
class RaiseEpoch:
    """F2: Lease first, by compare-and-swap, then the gateway's fence."""

    epoch: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class EnsureVolume:
    """The run's volume, created or adopted by owner UID."""


@dataclass(frozen=True)
class StartSandbox:
    """Create or adopt the sandbox whose name follows from run, epoch, role and `serial`; then register it."""

    epoch: int
    role: Role
    serial: int = 0
    commit: str | None = None


@dataclass(frozen=True)
class RegisterSandbox:
    """A sandbox exists and the gateway doesn't know it: an earlier pass died in between."""

    name: str
    uid: str
    epoch: int
    role: Role
    commit: str | None = None


@dataclass(frozen=True)
class StopSandbox:
    """Remove a sandbox; `grace_ms` 0 kills at once. `force` gives up on hearing that its processes are gone: only for
    one on a lost node, whose writes the fence refuses.
    """

    name: str
    uid: str
    reason: str
    grace_ms: int = 30_000
    force: bool = False


@dataclass(frozen=True)
class Report:
    """Append one record as the operator. `record_id` follows from what it says, so that repeating it adds nothing."""

    record_id: str
    type: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Deliver:
    """Have the gateway settle effects of unknown end and, where a commit is given, push it upstream (E4, E5)."""

    commit: str | None = None


@dataclass(frozen=True)
class ReleaseLease:
    """The Lease away, of a run that nobody owns for now. Its epoch lives on in the fence (F1)."""


@dataclass(frozen=True)
class ReleaseVolume:
    """The volume away."""


@dataclass(frozen=True)
class ReleaseRun:
    """All that stands for an ended run away, but its object, journal, blobs and evidence (W5)."""


@dataclass(frozen=True)
class DeleteObject:
    """The AgentRun itself away: only where retention.deleteObject says so."""


@dataclass(frozen=True)
class SettleChildren:
    """B2: have the gateway settle the shares of children that ended. `gone`: those, by Child.ref, that nobody will
    admit any more: what the gateway hasn't heard of among them has used nothing. `over`: those that have ended, as
    their objects say. `why`: pairs of a Child.ref and of what is known of why it won't begin.
    """

    gone: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    why: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CreateChild:
    """The AgentRun of a child that the agent asked for; its name is the lock that makes it one."""

    name: str


Action = (
    Admit
    | Begin
    | EnsureLease
    | RaiseEpoch
    | EnsureVolume
    | StartSandbox
    | RegisterSandbox
    | StopSandbox
    | Report
    | Deliver
    | ReleaseLease
    | ReleaseVolume
    | ReleaseRun
    | DeleteObject
    | SettleChildren
    | CreateChild
)


@dataclass(frozen=True)
class Verdict:
    """The end of a run that has no journal: it was never admitted."""

    phase: str
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The next actions in order, when to look again (None: only on an event), and what people are told meanwhile."""

    actions: tuple[Action, ...] = ()
    requeue_ms: int | None = None
    reason: str = ""
    message: str = ""
    verdict: Verdict | None = None
