"""L1: the sandbox as the controller sees it: one port, pods on Kubernetes and processes on this machine behind it.

A substrate never decides anything: it creates or adopts by a name that follows from the run, tells what it sees, and
removes what it is told to. A name that is taken by somebody else's object is a `NameTaken`: never adopted, never
removed.

Every method may raise Unavailable; those that change something Conflict, NameTaken and Refused as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from moorage.api.wire import ResolvedRun, Role
from moorage.core.run.observed import LeaseView, SandboxView


@dataclass(frozen=True)
class RunKey:
    """Who a child belongs to. `name` is the AgentRun's; names derived from it are bounded (see moorage.api.names)."""

    uid: str
    tenant: str
    name: str


@dataclass(frozen=True)
class Which:
    """One sandbox of a run; its name follows from these. `commit` is what a verifier is for."""

    epoch: int
    role: Role
    serial: int = 0
    commit: str | None = None


@dataclass(frozen=True)
class Children:
    """All that stands for one run."""

    lease: LeaseView | None = None
    sandboxes: tuple[SandboxView, ...] = ()
    volume: bool = False


class NameTaken(RuntimeError):
    """An object of somebody else's has the name that follows from the run."""


class Conflict(RuntimeError):
    """A compare-and-swap lost: somebody else changed the object first. Gather again."""


class Refused(RuntimeError):
    """The substrate will not take it as it is (quota, admission, invalid): `reason` is typed, the message says why.

    `permanent`: no waiting mends it, so the run fails; all else is waited out (C6).
    """

    def __init__(self, reason: str, message: str, *, permanent: bool = False) -> None:
        self.reason, self.permanent = reason, permanent
        super().__init__(message)


class Unavailable(RuntimeError):
    """The substrate gives no answer now; nothing is known to have happened."""


class Substrate(Protocol):
    """Where a run's children live. All calls are idempotent."""

    async def observe(self, run: RunKey, *, fresh: bool = True) -> Children:
        """Everything of the run's that stands, read live. Without `fresh` it may be what was heard in the last seconds:
        that never lacks what is known to stand, but something else may have come or gone since.
        """

    async def raise_epoch(self, run: RunKey, epoch: int, holder: str) -> int:
        """Make the Lease's epoch at least `epoch` by compare-and-swap; return it. Conflict when it moved meanwhile."""

    async def release_lease(self, run: RunKey) -> None:
        """Remove the Lease; harmless when it is gone."""

    async def ensure_volume(self, run: RunKey, spec: ResolvedRun) -> None:
        """Create or adopt the run's volume."""

    async def start(self, run: RunKey, spec: ResolvedRun, which: Which) -> SandboxView:
        """Create or adopt that sandbox."""

    async def stop(self, run: RunKey, name: str, uid: str, grace_ms: int, *, force: bool = False) -> None:
        """Remove that very sandbox (by UID); harmless when it is gone. `force`: don't wait for a lost node's word."""

    async def release_volume(self, run: RunKey) -> None:
        """Remove the volume; harmless when it is gone."""

    async def release(self, run: RunKey) -> None:
        """Remove sandboxes, volume and Lease; harmless when they are gone."""
