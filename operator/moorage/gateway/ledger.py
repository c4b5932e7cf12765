"""The journal service: the one writer of journals, and the reduced state of each run that follows from them.

Invariants
- Memory never runs ahead of the store: a state is swapped only after the append that leads to it is durable (J3).
- A record that the reducer refuses is not appended: the reducer runs as the store's guard, under the row's lock (S2).
- After any failure of the store the cached state is dropped and read anew, chain verified (J5).
- Appends of one run come one after the other; runs don't wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from weakref import WeakValueDictionary

from moorage.api.wire import FenceRequest, Repaired, ResolvedRun
from moorage.clock import Clock
from moorage.core.journal.canonical import canonical, canonical_hash
from moorage.core.journal.chain import Broken, ChainVerifier
from moorage.core.journal.plain import plain
from moorage.core.journal.record import (
    Assurance,
    BlobRef,
    Draft,
    Privacy,
    Record,
    RecordType,
    Retention,
    RunIdentity,
    Source,
    refuse_unknown_critical,
)
from moorage.core.journal.segments import CARRIED, Lineage
from moorage.core.journal.snapshots import Grown
from moorage.core.run.phases import IllegalMove, RunPhase
from moorage.core.run.reducer import Replay, reduce
from moorage.core.run.state import REDUCER_VERSION, RunState
from moorage.gateway.errors import Fenced, Illegal, Invalid
from moorage.gateway.facts import Facts, fold
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.signals import Bell
from moorage.gateway.snapshots import Snapshots, document
from moorage.points import Point, reached
from moorage.store.blobs import BlobStore
from moorage.store.errors import NothingToRepair, OffsetConflict, RunSealed, StoreError
from moorage.store.port import AppendResult, DurableExecutionStore, Execution, ExecutionStatus, NewExecution
from moorage.store.reading import survey
from moorage.store.specs import stored_spec
from moorage.telemetry.metrics import GatewayMetrics

ENDS = {
    RecordType.RUN_SUCCEEDED.value: ExecutionStatus.COMPLETED,
    RecordType.RUN_FAILED.value: ExecutionStatus.FAILED,
    RecordType.RUN_CANCELLED.value: ExecutionStatus.CANCELLED,
}
STATUSES = {
    RunPhase.SUCCEEDED: ExecutionStatus.COMPLETED,
    RunPhase.FAILED: ExecutionStatus.FAILED,
    RunPhase.CANCELLED: ExecutionStatus.CANCELLED,
    RunPhase.PAUSED: ExecutionStatus.PAUSED,
    RunPhase.RECOVERING: ExecutionStatus.RECOVERING,
}
Condition = Callable[["Run"], None]
RETRIES = 3  # another gateway appended meanwhile: read on and try again


@dataclass(frozen=True)
class Reduced:
    """A run at an offset: its row, its state, and what the doors know beside."""

    row: Execution
    state: RunState
    facts: Facts


@dataclass(eq=False)
class Run:
    """One run in memory. `at` is None until it was replayed, and again after the store failed."""

    uid: str
    spec: ResolvedRun
    at: Reduced | None = None
    unreachable_since: tuple[int, int] | None = None  # the epoch, and when it first missed its remote (monotonic ms)
    grown: Grown = field(default_factory=Grown)  # since the last snapshot
    segment_bytes: int = 0  # of the present segment, as far as this process has seen them
    bell: Bell = field(default_factory=Bell)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    delivering: asyncio.Lock = field(default_factory=asyncio.Lock)
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def now(self) -> Reduced:
        """The last durable state. Callers got the run from `open`, which has read it."""
        if self.at is None:
            raise StoreError("the state of this run is being read again: ask again")
        return self.at

    @property
    def state(self) -> RunState:
        """The reduced state."""
        return self.now.state

    @property
    def facts(self) -> Facts:
        """What the doors know beside the state."""
        return self.now.facts

    @property
    def tenant(self) -> str:
        """The namespace."""
        return self.spec.tenant


class Trial:
    """The store's guard: reduces new records before they are written, and holds what would follow.

    A store may ask again for the same append, after a transaction that it shared with others was undone.
    """

    def __init__(self, state: RunState, facts: Facts) -> None:
        self._start = state, facts
        self.state, self.facts = self._start

    def __call__(self, records: Sequence[Record]) -> None:
        """Raise Illegal or Invalid for what can't follow; nothing is appended then."""
        self.state, self.facts = self._start
        for record in records:
            try:
                self.state, self.facts = reduce(self.state, record), fold(self.facts, record)
            except IllegalMove as error:
                raise Illegal(str(error)) from None
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Invalid(
                    f"{record.type}: the payload is not what it takes ({type(error).__name__}: {error})"
                ) from None


class Ledger:
    """One object per process. `bell` rings whenever any run changed."""

    def __init__(
        self,
        store: DurableExecutionStore,
        blobs: BlobStore,
        clock: Clock,
        metrics: GatewayMetrics,
        settings: GatewaySettings,
        *,
        snapshots: Snapshots,
    ) -> None:
        self.store, self.blobs = store, blobs
        self._snapshots = snapshots
        self.bell = Bell()
        self.up_since = clock.now_ms()
        self._clock, self._metrics, self._settings = clock, metrics, settings
        self._alive: WeakValueDictionary[str, Run] = WeakValueDictionary()
        self._recent: OrderedDict[str, Run] = OrderedDict()

    # --- runs in memory -----------------------------------------------------------------------------------------------

    async def open(self, uid: str) -> Run:
        """The run, replayed where it isn't in memory. Raise UnknownRun, SpecUnreadable, JournalCorrupted."""
        run = await self._known(uid)
        if run.at is None:
            async with run.writing:
                await self._load(run)
        self._touch(run)
        return run

    async def _known(self, uid: str) -> Run:
        """The one object of the run, whether or not its journal can be read."""
        return self._alive.get(uid) or self._alive.setdefault(uid, Run(uid, await stored_spec(self.store, uid)))

    async def refresh(self, run: Run) -> None:
        """Read the run anew where another gateway has written to it since. Raise as `open` does."""
        async with run.writing:
            at, row = await self._load(run), await self.store.get(run.uid)
            if (row.fence_epoch, row.head) != (at.row.fence_epoch, at.row.head):
                run.at = None
                await self._load(run)

    def _touch(self, run: Run) -> None:
        self._recent[run.uid] = run
        self._recent.move_to_end(run.uid)
        while len(self._recent) > self._settings.cached_runs:
            self._recent.popitem(last=False)

    async def _load(self, run: Run) -> Reduced:
        if run.at is None:
            row = await self.store.get(run.uid)
            await self._replay(run, row)
            await self._settle_status(run)
        return run.now

    async def _replay(self, run: Run, row: Execution) -> None:
        """Verify the chain and reduce it in one pass, from the latest snapshot that fits, page by page."""
        gone = await self.store.pruned(run.uid) if row.sealed else None
        if gone is not None:
            run.at = Reduced(row, self._snapshots.remembered(gone), Facts())
            return
        start = await self._snapshots.latest(row)
        replayed, facts, size = Replay(start.state), start.facts, 0
        verifier = ChainVerifier(start.head, row.run_uid)
        if row.head.offset > start.head.offset:
            async for entry in self.store.stored(row.run_uid, start.head.offset + 1):
                if broken := verifier.feed(entry):
                    raise broken.error()
                if (record := verifier.last) is None:
                    continue
                refuse_unknown_critical(record)
                replayed.feed(record)
                facts = fold(facts, record)
                size += len(entry.body)
                if record.seq == row.head.offset:
                    break
        verdict = verifier.result(row.head)
        if isinstance(verdict, Broken):
            raise verdict.error()
        self._metrics.replays.inc()
        run.at = Reduced(row, replayed.state, facts)
        run.grown = Grown().by(row.head.offset - start.head.offset, size)
        await self._snap(run, ())

    async def _snap(self, run: Run, kinds: Iterable[str]) -> None:
        """P1: an optimisation, after what is durable already. A sealed run isn't worth any."""
        at = run.now
        if not at.row.sealed:
            run.grown = await self._snapshots.after(at.row, at.state, at.facts, run.grown, kinds)

    async def _settle_status(self, run: Run) -> None:
        """S4: the status follows from the phase. A crash between the two is mended here."""
        at = run.now
        wanted = STATUSES.get(at.state.phase, ExecutionStatus.RUNNING)
        if at.row.status is not wanted and not at.row.sealed:
            row = await self.store.update_status(run.uid, wanted, at.row.version)
            run.at = Reduced(row, at.state, at.facts)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def admit(self, spec: ResolvedRun, fence: FenceRequest | None = None, content: BlobRef | None = None) -> Run:
        """Make a run known, once (O6), and raise the fence of its first attempt with it.

        `content` is what `keep_spec` answered. Raise SpecConflict where the uid came with another spec before, Fenced
        where that epoch is over.
        """
        reached(Point.ADMIT_BEFORE)
        content = content or await self.keep_spec(spec)
        reached(Point.ADMIT_WITHIN)
        run = await self._begin(spec, fence, content)
        if run is None:  # it had begun before
            run = await self.open(spec.uid)
            if fence is not None:
                await self.raise_fence(run, fence)
        reached(Point.ADMIT_AFTER)
        return run

    async def _begin(self, spec: ResolvedRun, fence: FenceRequest | None, content: BlobRef) -> Run | None:
        """One durable step. None where the run's journal has begun already."""
        new = _execution(spec, self._clock.now_ms())
        drafts = [self.observed(RecordType.RUN_ADMITTED, {"spec_hash": new.spec_hash}, attachments={"spec": content})]
        if fence is not None:
            drafts.append(self._raised(fence))
        run, trial = Run(spec.uid, spec), Trial(RunState(), Facts())
        if fence is not None:
            reached(Point.EPOCH_BEFORE)
        with _Append(run, self._metrics):
            result = await self.store.admit(new, fence.epoch if fence else None, drafts, guard=trial)
        if fence is not None:
            reached(Point.EPOCH_AFTER)
        if not result.appended or self._alive.setdefault(spec.uid, run) is not run:
            return None
        async with run.writing:
            await self._advance(run, result, trial)
        self._touch(run)
        return run

    async def keep_spec(self, spec: ResolvedRun) -> BlobRef:
        """Make a run's spec durable: its first record will name it (J8)."""
        return await self._attach(spec.tenant, spec.model_dump_json().encode())

    async def append(
        self, run: Run, epoch: int | None, drafts: Sequence[Draft], condition: Condition | None = None
    ) -> AppendResult:
        """Append all or none, durable on return. `epoch` None: of no attempt. `condition` sees the state they follow.
        Raise what it does, Fenced, Illegal, Invalid, and the store's errors; nothing was appended then.
        """
        ends = any(draft.type in ENDS for draft in drafts)
        async with run.writing:
            if ends:
                reached(Point.TERMINAL_BEFORE)
            result = await self._append(run, epoch, drafts, condition or (lambda _: None))
            if ends:
                reached(Point.TERMINAL_AFTER)
            return result

    async def _append(self, run: Run, epoch: int | None, drafts: Sequence[Draft], condition: Condition) -> AppendResult:
        status = next((ENDS[d.type] for d in drafts if d.type in ENDS), None)
        for last in range(RETRIES, -1, -1):
            at = await self._load(run)
            self._refuse_older(at.state, epoch)
            if self._segment_full(run):
                at = await self._new_segment(run)
            condition(run)
            trial = Trial(at.state, at.facts)
            try:
                with _Append(run, self._metrics):
                    result = await self.store.append(
                        run.uid, epoch, drafts, at.state.offset, status=status, guard=trial
                    )
            except OffsetConflict:
                if not last:
                    raise
            else:
                return await self._advance(run, result, trial)
        raise AssertionError("unreachable")

    def _segment_full(self, run: Run) -> bool:
        """P3: before the append that would make it longer still. What has ended needs no other one."""
        at, kept = run.now, self._settings
        length = at.state.offset + 1 - at.facts.segment.first
        full = length >= kept.segment_records or run.segment_bytes >= kept.segment_bytes
        return full and not at.row.sealed and not at.state.phase.terminal

    async def _new_segment(self, run: Run) -> Reduced:
        """The journal goes on in the next segment, from the state that it carries over."""
        at = run.now
        state, segment = at.state, at.facts.segment
        content = canonical(document(state, at.facts))
        carried = await self.blobs.put(run.tenant, content, Privacy.CONTENT, Retention.JOURNAL)
        digest = canonical_hash(plain(state))
        follows = Lineage(segment.number + 1, segment.first, state.offset, state.head, digest, REDUCER_VERSION)
        draft = self.observed(
            RecordType.SEGMENT_STARTED, follows.payload(), follows.segment, attachments={CARRIED: carried}
        )
        trial = Trial(at.state, at.facts)
        try:
            with _Append(run, self._metrics):
                result = await self.store.append(run.uid, None, [draft], state.offset, guard=trial)
        except OffsetConflict:  # another gateway was quicker
            run.at = None
            return await self._load(run)
        await self._advance(run, result, trial)
        run.segment_bytes = 0
        await self._snapshots.take(run.now.row, run.state, run.facts)
        run.grown = Grown()
        return run.now

    async def raise_fence(self, run: Run, request: FenceRequest) -> None:
        """F2: fence and record in one step. The current epoch again is harmless. Raise Fenced for a lower one."""
        async with run.writing:
            at = await self._load(run)
            self._refuse_older(at.state, request.epoch)
            if request.epoch == at.state.epoch:
                return
            trial = Trial(at.state, at.facts)
            reached(Point.EPOCH_BEFORE)
            with _Append(run, self._metrics):
                result = await self.store.raise_fence(run.uid, request.epoch, [self._raised(request)], guard=trial)
            await self._advance(run, result, trial)
            reached(Point.EPOCH_AFTER)

    def _raised(self, request: FenceRequest) -> Draft:
        payload = request.model_dump(mode="json")
        return self.observed(RecordType.EPOCH_RAISED, payload, request.epoch, attempt=request.attempt)

    async def seal(self, run: Run, reason: str) -> None:
        """J7: the run is over and let go of: a tombstone ends its journal."""
        async with run.writing:
            await self._load(run)
            reached(Point.SEAL_BEFORE)
            with _Append(run, self._metrics):
                await self.store.delete(run.uid, at=self._clock.now_ms(), reason=reason)
            run.at = None
            await self._load(run)
            reached(Point.SEAL_AFTER)
        self._ring(run)

    async def repair(self, uid: str, reason: str, actor: str) -> Repaired:
        """I1: a new generation of a broken journal, without its first bad record and whatever follows that.

        Raise UnknownRun, NothingToRepair, RunSealed, OffsetConflict where somebody appended meanwhile.
        """
        run = await self._known(uid)
        async with run.writing:
            row = await self.store.get(uid)
            looked = await survey(self.store, row)
            if looked.end() is None:
                raise NothingToRepair(uid)
            said = looked.payload(row.generation + 1, row.fence_epoch, row.status.value, reason)
            draft = self.observed(RecordType.JOURNAL_REPAIRED, said, row.generation + 1, turn=looked.turn, actor=actor)
            result = await self.store.repair(uid, looked.good, draft, row.head.offset)
            run.at = None
            await self._load(run)
        self._ring(run)
        first, last = looked.dropped
        return Repaired(
            generation=result.execution.generation,
            first=first,
            last=last,
            offset=result.offset,
            unreadable=said["unreadable"],
            why=said["why"],
        )

    async def refuse_fenced(self, run: Run, epoch: int, door: str, pod_uid: str) -> Fenced:
        """F3: count the call of an older epoch, have the owner's journal say so once, and return the refusal."""
        current = run.state.epoch
        self._metrics.fence_refusals.labels(door).inc()
        payload = {"door": door, "epoch": epoch, "pod_uid": pod_uid}
        draft = self.observed(RecordType.FENCE_REFUSED, payload, current, epoch, pod_uid, door)
        with contextlib.suppress(RunSealed):
            await self.append(run, None, [draft])
        return Fenced(epoch, current)

    async def _advance(self, run: Run, result: AppendResult, trial: Trial) -> AppendResult:
        run.at = Reduced(result.execution, trial.state, trial.facts)
        if result.offset != trial.state.offset:  # all of it was there before, and another gateway has gone on since
            run.at = None
            await self._load(run)
        for record in result.appended:
            self._metrics.records.labels(record.source).inc()
        run.grown = run.grown.by(len(result.appended), result.size)
        run.segment_bytes += result.size
        await self._settle_status(run)
        await self._snap(run, {record.type for record in result.appended})
        self._ring(run)
        return result

    def _ring(self, run: Run) -> None:
        run.bell.ring()
        self.bell.ring()

    def _refuse_older(self, state: RunState, epoch: int | None) -> None:
        if epoch is not None and epoch < state.epoch:
            raise Fenced(epoch, state.epoch)

    # --- drafts -------------------------------------------------------------------------------------------------------

    async def attach(self, run: Run, content: bytes) -> BlobRef:
        """Make erasable content durable, apart for each tenant, before the record that names it (J8)."""
        return await self._attach(run.tenant, content)

    async def _attach(self, tenant: str, content: bytes) -> BlobRef:
        return await self.blobs.put(tenant, content, Privacy.CONTENT, Retention.ERASABLE)

    def observed(
        self,
        kind: RecordType,
        payload: Mapping[str, Any],
        *key: object,
        source: Source = Source.GATEWAY,
        **ids: Any,
    ) -> Draft:
        """A fact that this gateway saw itself. Its id follows from kind and `key`: saying it again adds nothing."""
        return Draft(
            record_id=":".join(["gw", kind.value, *(str(k) for k in key)]),
            type=kind.value,
            recorded_at=self._clock.now_ms(),
            source=source,
            assurance=Assurance.OBSERVED,
            payload=payload,
            **ids,
        )


def _execution(spec: ResolvedRun, now: int) -> NewExecution:
    content = spec.model_dump(mode="json")
    identity = RunIdentity(
        tenant=spec.tenant, run_uid=spec.uid, session_id=spec.session_id, workspace=spec.workspace.key
    )
    return NewExecution(
        identity=identity, name=spec.name, spec_hash=canonical_hash(content), spec=content, created_at=now
    )


class _Append:
    """Times one write; a failure of the store drops what memory holds of the run."""

    def __init__(self, run: Run, metrics: GatewayMetrics) -> None:
        self._run, self._metrics = run, metrics

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self._metrics.append_seconds.observe(perf_counter() - self._began)
            return
        self._metrics.append_failures.labels(type(error).__name__).inc()
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            self._run.at = None
