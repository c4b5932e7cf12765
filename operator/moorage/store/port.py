"""J11: DurableExecutionStore, the port that every adapter implements and one contract suite proves.

Two tables of facts: `executions`, one versioned row per run that holds the journal's head and the fence, and
`execution_events`, the append-only records. Every method that writes is atomic and returns only after its bytes are
durable; when it raises, nothing was written. Times are integer milliseconds since the epoch and are passed in.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from moorage.api.wire import Change
from moorage.core.journal.chain import EMPTY, Head
from moorage.core.journal.lineage import Dropped
from moorage.core.journal.pruning import Pruned
from moorage.core.journal.record import BlobRef, Draft, Record, RunIdentity, Stored
from moorage.core.journal.snapshots import Snapshot
from moorage.store.allowances import Allowance, Ask, Short, Taken

PAGE_RECORDS, PAGE_BYTES = 256, 1024 * 1024
"""What a stream of records reads at once: at least one record, and no further one once the bytes are reached."""

PRUNED_AT_ONCE = 512
"""Records that are removed in one transaction: a few milliseconds, after which others have their turn."""

Guard = Callable[[Sequence[Record]], None]
"""Sees new records before they are written, under the row's lock; what it raises refuses the append (S2)."""


class ExecutionStatus(StrEnum):
    """S4: what a store says of a run. The phases of a run follow from its journal and are finer."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    RECOVERING = "RECOVERING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def pending(self) -> bool:
        """Whether somebody must still push the run on (R7)."""
        return self in PENDING


PENDING = frozenset({ExecutionStatus.RUNNING, ExecutionStatus.PAUSED, ExecutionStatus.RECOVERING})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExecution:
    """A run to be made durable. `spec` is its resolved spec as JSON, `spec_hash` that spec's canonical hash (O6)."""

    identity: RunIdentity
    name: str
    spec_hash: str
    spec: Mapping[str, Any]
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The row of a run. `version` rises with each change of status, fence or seal, not with appends."""

    identity: RunIdentity
    name: str
    spec_hash: str
    created_at: int
    status: ExecutionStatus = ExecutionStatus.RUNNING
    version: int = 1
    fence_epoch: int = 0
    head: Head = EMPTY
    sealed: bool = False
    dropped: tuple[Dropped, ...] = ()
    """I1: the offsets that repairs left behind, which nothing reads again."""

    @property
    def generation(self) -> int:
        """Which generation of its journal goes on, from 1."""
        return len(self.dropped) + 1

    @property
    def run_uid(self) -> str:
        """The AgentRun's UID."""
        return self.identity.run_uid

    @property
    def tenant(self) -> str:
        """The AgentRun's namespace."""
        return self.identity.tenant

    @property
    def pending(self) -> bool:
        """Whether somebody must still push the run on (R7)."""
        return self.status.pending and not self.sealed


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What is durable now: the record of each draft, in the drafts' order, and the row after the append.

    `duplicates` are the ids of records that were there before; they keep their old place. `size` is what the new ones
    take, in bytes.
    """

    records: tuple[Record, ...]
    execution: Execution
    duplicates: frozenset[str] = frozenset()
    size: int = 0

    @property
    def offset(self) -> int:
        """The journal's head: the last record's `seq`."""
        return self.execution.head.offset

    @property
    def hash(self) -> str:
        """The chain's hash at the head; empty for an empty journal."""
        return self.execution.head.hash or ""

    @property
    def appended(self) -> tuple[Record, ...]:
        """The records that are new."""
        return tuple(r for r in self.records if r.record_id not in self.duplicates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """F2: which run, epoch and role a pod's UID stands for. `commit` is what a verifier verifies."""

    pod_uid: str
    run_uid: str
    epoch: int
    role: str
    pod_name: str
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPush:
    """W3, P5: what moved refs of a run, where the mirrors of several gateways have to follow. `number` counts from 0.

    `moves` are refs and the commits that they are at from now on. `pack` holds the objects that these need beyond the
    commit `base` and the pushes before; None where there are none. A `whole` one holds all that they need beyond the
    base, and names all of the run's refs: those before it are forgotten.
    """

    run_uid: str
    number: int
    epoch: int
    moves: tuple[tuple[str, str], ...]
    base: str | None = None
    pack: BlobRef | None = None
    whole: bool = False


ACTIVE: Final = "active"
IDLE: Final = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """O7: the work object that outlives runs. `lineage` names the runs in it, oldest first; `end` is its end record.

    The row of a run that no other one has gone on with isn't there: all that it would say is in the run's journal.
    `state`: `active` while the last run of the lineage may go on, `idle` once that was let go of. `budget`: what all
    runs have used before the last one or, idle, with it (B3); see moorage.core.run.sessions.
    """

    tenant: str
    session_id: str
    created_at: int
    active_at: int
    state: str = ACTIVE
    budget: Mapping[str, int] | None = None
    idle_ttl_ms: int | None = None
    lineage: tuple[str, ...] = ()
    end: Mapping[str, Any] | None = None
    version: int = 1


class DurableExecutionStore(Protocol):
    """Where runs, their journals and their sessions are kept. Errors are those of `moorage.store.errors`."""

    async def persist(self, new: NewExecution, session: Session | None = None) -> Execution:
        """Make a run durable. The same run with the same spec hash is the same run; another spec is SpecConflict.

        With `session`, a new run joins it in the same step (O7): the session is written as it is given, over the
        version that it names. For a run that is there already it isn't touched. Raise VersionConflict, UnknownSession;
        the run isn't there then.
        """

    async def admit(
        self, new: NewExecution, epoch: int | None, drafts: Sequence[Draft], *, guard: Guard | None = None
    ) -> AppendResult:
        """Persist a run and begin its journal in one step: `drafts` are its first records, under `epoch` where given.

        A run that has records already is left as it is, and the answer holds none. Raise as `persist` and
        `raise_fence` do.
        """

    async def get(self, run_uid: str) -> Execution:
        """Return the row of a run. Raise UnknownRun."""

    async def spec(self, run_uid: str) -> Mapping[str, Any]:
        """Return the resolved spec that the run was persisted with. Raise UnknownRun."""

    async def recover(self, run_uid: str) -> Execution:
        """Return the row of a run after verifying its whole chain and its head.

        Raise JournalCorrupted at the first bad record (J5), UnknownCritical (J10), UnknownRun.
        """

    async def list_pending(self, tenant: str | None = None) -> list[Execution]:
        """Return the runs that somebody must still push on, oldest first (R7)."""

    async def append(
        self,
        run_uid: str,
        epoch: int | None,
        drafts: Sequence[Draft],
        expected_offset: int | None = None,
        *,
        status: ExecutionStatus | None = None,
        guard: Guard | None = None,
    ) -> AppendResult:
        """Append all drafts or none (J3).

        `epoch` is the writer's; None is for a trusted writer's fact that belongs to no attempt: the current epoch.
        A draft whose record id is there already is not appended again. `expected_offset` is the head that the writer
        saw (-1: empty); it isn't asked when all drafts are there already. `status` is set in the same step.

        Raise UnknownRun, RunSealed, Fenced, DuplicateMismatch, OffsetConflict, what `guard` raises, JournalError.
        """

    async def raise_fence(
        self, run_uid: str, epoch: int, drafts: Sequence[Draft] = (), *, guard: Guard | None = None
    ) -> AppendResult:
        """Raise the epoch that commits, and append `drafts` under it, in one step (F2).

        The current epoch again is harmless; a lower one is Fenced: the fence never falls. Raise as `append` does.
        """

    async def repair(self, run_uid: str, good: Head, draft: Draft, expected_offset: int) -> AppendResult:
        """Begin a new generation of a broken journal (I1): `draft` follows the record at `good`, at a new offset.

        What lies between them is dropped: it stays where it is and isn't read again. `expected_offset` is the head that
        was looked at. Raise UnknownRun, RunSealed, OffsetConflict, NothingToRepair, JournalError.
        """

    async def update_status(self, run_uid: str, status: ExecutionStatus, expected_version: int) -> Execution:
        """Set the status of a row that still has the expected version (S4). Raise VersionConflict, UnknownRun."""

    async def read(self, run_uid: str, from_offset: int = 0, limit: int = 1000) -> list[Record]:
        """Return up to `limit` records from `from_offset` on, in order. Raise UnknownRun, Malformed."""

    def stored(self, run_uid: str, from_offset: int = 0, *, dropped: bool = False) -> AsyncGenerator[Stored, None]:
        """Stream the stored bytes from `from_offset` on, up to the head at the first step.

        With `dropped`, also what repairs left behind (I1). Memory is bounded by a page of PAGE_RECORDS and about
        PAGE_BYTES, however long the journal is.
        """

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; a later one of the same run and reducer replaces it. Raise SnapshotRefused, UnknownRun."""

    async def snapshot(self, run_uid: str, reducer_version: int) -> Snapshot | None:
        """Return the latest snapshot of a run that this reducer made, if there is one."""

    async def delete(self, run_uid: str, *, at: int, reason: str, actor: str | None = None) -> Execution:
        """Append a tombstone and seal the journal (J7). Rows stay for their retention. Twice is once."""

    async def prune(self, pruned: Pruned) -> None:
        """Remove a sealed journal, its snapshots and its claims on blobs, behind a signed tombstone (J7).

        The tombstone comes first, and from then on nothing of the journal is read; its records go in transactions of
        PRUNED_AT_ONCE, the last ones first. Twice is once, and finishes what was broken off.
        Raise UnknownRun, NotPrunable where the journal isn't sealed or ended elsewhere.
        """

    async def pruned(self, run_uid: str) -> Pruned | None:
        """Return what stands for a journal that was pruned. Raise UnknownRun, Malformed."""

    async def list_sealed(self) -> list[Execution]:
        """Return the runs whose journals are sealed and still there, all or a part of them, oldest first."""

    async def register_pod(self, pod: Pod) -> Pod:
        """Register a pod's UID (F2). The same again is harmless. Raise PodConflict, Fenced, UnknownRun, RunSealed."""

    async def find_pod(self, pod_uid: str) -> Pod | None:
        """Return what a pod's UID was registered as."""

    async def keep_push(self, push: KeptPush) -> None:
        """Add a push to those of its run, as the next one, under its current epoch (F3).

        Raise UnknownRun, RunSealed, Fenced, PushConflict where another number is the next.
        """

    async def kept_pushes(self, run_uid: str, number: int = 0) -> list[KeptPush]:
        """Return a run's pushes from that number on, in order; or all that are left, where a whole one came since.

        A sealed run has none (W5). Raise UnknownRun.
        """

    async def changes(self, after: int = 0, limit: int = 1000) -> list[Change]:
        """Return the runs that changed since the cursor `after`, each once, at its latest cursor, oldest first.

        Cursors rise over all runs. A run that changes again moves to the end: readers are told that, not how often.
        """

    async def newest_cursor(self) -> int:
        """Return the cursor of the latest change of all; 0 where there was none."""

    async def referenced_blobs(self, tenant: str) -> set[str]:
        """Return the SHA-256 of every blob that a record or a kept push of this tenant needs (J8)."""

    async def open_session(self, session: Session) -> Session:
        """Make a session durable; one that is there already is returned as it is (O7)."""

    async def get_session(self, tenant: str, session_id: str) -> Session:
        """Return a session. Raise UnknownSession."""

    async def update_session(self, session: Session, expected_version: int) -> Session:
        """Write a session that still has the expected version. Raise VersionConflict, UnknownSession."""

    async def list_open_sessions(self, tenant: str | None = None, active_since: int = 0) -> list[Session]:
        """Return the sessions without an end record that were active since then, oldest first (R7)."""

    async def set_allowance(self, tenant: str, allowance: Allowance) -> None:
        """What a tenant may take of models from now on (C5); one that bounds nothing is none."""

    async def allowances(self) -> dict[str, Allowance]:
        """Return those that bound anything, by tenant."""

    async def take(self, ask: Ask) -> Short | None:
        """Note a request at its worst case, where its tenant's allowance has room for it; else return what is short.
        Twice is once.
        """

    async def settle(self, ask: Ask, tokens: int, cost_micros: int) -> None:
        """The request that was noted has taken so much, and is under way no more. Twice is once, and nothing happens
        where it isn't noted: what can't be known to be done may be done again.
        """

    async def give_up(self, tenant: str, gateway: str) -> None:
        """What a gateway that is gone had under way for the tenant has taken its worst case. Twice is once."""

    async def taken(self, tenant: str, day: int) -> Taken:
        """Return what the tenant took in that day, and what it has under way, by way of all gateways."""

    async def close(self) -> None:
        """Let go of the store. Later calls are errors."""
