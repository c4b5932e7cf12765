"""The journal service: the one writer of journals, and the reduced state of each run that follows from them.

Invariants
- Memory never runs ahead of the store: a state is swapped only after the append that leads to it is durable (J3).
- A record that the reducer refuses is not appended: the reducer runs as the store's guard, under the row's lock (S2).
- After any failure of the store the cached state is dropped and read anew, chain verified (J5).
- Appends of one run come one after the other; runs don't wait for each other.
- Where other gateways write to the store, too, what memory holds is compared with the run's row at each door, and only
  what is new is read on: an answer follows from everything that was acknowledged anywhere before it was asked for.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
from moorage.core.run.phases import RunPhase
from moorage.core.run.reducer import Replay
from moorage.core.run.state import REDUCER_VERSION, RunState
from moorage.gateway.crossing import crossing
from moorage.gateway.errors import Fenced, UnknownRun
from moorage.gateway.facts import Facts, fold
from moorage.gateway.reduced import Overtaken, Reduced, Run, Trial, Write, Writing, beginning, later
from moorage.gateway.repairing import surveyed
from moorage.gateway.settings import GatewaySettings
from moorage.gateway.signals import Bell
from moorage.gateway.snapshots import Snapshots, Start, document
from moorage.points import Point, reached
from moorage.store.blobs import BlobStore
from moorage.store.errors import (
    DuplicateMismatch,
    NothingToRepair,
    OffsetConflict,
    RunSealed,
    VersionConflict,
)
from moorage.store.peers import Peers
from moorage.store.port import AppendResult, DurableExecutionStore, Execution, ExecutionStatus, NewExecution, Session
from moorage.store.specs import stored_spec
from moorage.telemetry.metrics import GatewayMetrics, Violation

__all__ = ["STATUSES", "Appended", "Condition", "Ledger", "Overtaken", "Run"]

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
Condition = Callable[[Run], object]
Appended = Callable[[ResolvedRun, Sequence[Record]], None]
"""Is told what this process has made durable, in order and once; it neither waits nor raises."""

RETRIES = 32  # others appended meanwhile, each time: one of them gets on, and that is bounded by their number


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
        peers: Peers,
        appended: Appended | None = None,
    ) -> None:
        self.store, self.blobs = store, blobs
        self._snapshots, self._peers, self._appended = snapshots, peers, appended
        self.bell = Bell()
        self._started_at = clock.now_ms()
        self._clock, self._metrics, self._settings = clock, metrics, settings
        self._alive: WeakValueDictionary[str, Run] = WeakValueDictionary()
        self._recent: OrderedDict[str, Run] = OrderedDict()
        peers.listen(self._heard)

    @property
    def up_since(self) -> int:
        """Since when this gateway has heard whatever was said to it (ms)."""
        return max(self._started_at, self._peers.back_at)

    # --- runs in memory -----------------------------------------------------------------------------------------------

    async def open(self, uid: str) -> Run:
        """The run, replayed where it isn't in memory. Raise UnknownRun, SpecUnreadable, JournalCorrupted."""
        run = await self._known(uid)
        if run.at is None:
            async with run.writing:
                await self._load(run)
        elif self._peers.shared:
            await self.refresh(run)
        self._touch(run)
        return run

    async def kin(self, run: Run, uid: str) -> Run:
        """Another run's journal, read for this one. Raise as `open` does, and UnknownRun where it is another tenant's
        (I10): who names a run was checked when it was admitted, so that is counted (H3).
        """
        found = await self.open(uid)
        if found.tenant != run.tenant:
            self._metrics.violations.labels(Violation.CROSS_TENANT_READ).inc()
            raise UnknownRun(f"there is no run {uid} in {run.tenant}")
        return found

    async def woken(self, run: Run) -> None:
        """For one of many that wait: who wakes first reads on, and wakes the others where that changes anything. A
        wake-up may get lost: who has heard none for a while refreshes. Raise as `open` does.
        """
        if run.told or run.at is None:
            run.told = False
            await self.refresh(run)

    async def _known(self, uid: str) -> Run:
        """The one object of the run, whether or not its journal can be read."""
        return self._alive.get(uid) or self._alive.setdefault(uid, Run(uid, await stored_spec(self.store, uid)))

    async def refresh(self, run: Run) -> None:
        """Read on where another gateway has written to it since. Raise as `open` does."""
        row = await self.store.get(run.uid)
        if run.at is None or later(row, run.at):
            async with run.writing:
                await self._read_on(run)
        elif row.head.offset < run.at.row.head.offset:
            async with run.writing:
                await self._demand_all(run)

    async def _demand_all(self, run: Run) -> None:
        """H3: what was acknowledged is there, also after the store's failover. While nobody appends a row is as old as
        memory or newer; a repair makes another generation.
        """
        row = await self.store.get(run.uid)
        at = run.at
        if at is not None and row.generation == at.row.generation and row.head.offset < at.row.head.offset:
            self._metrics.violations.labels(Violation.LOST_RECORD).inc(at.row.head.offset - row.head.offset)
            run.at = None

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

    async def _read_on(self, run: Run) -> bool:
        """Whether others have written to it since; what they wrote is verified like everything."""
        at, row = await self._load(run), await self.store.get(run.uid)
        if not later(row, at):
            return False
        if row.sealed or row.generation != at.row.generation:
            run.at = None
            await self._load(run)
        else:
            run.at, size = await self._reduced(row, beginning(at))
            run.grown = run.grown.by(row.head.offset - at.state.offset, size)
            run.segment_bytes += size
            await self._settle_status(run)
        self._ring(run)
        return True

    async def _replay(self, run: Run, row: Execution) -> None:
        """From the latest snapshot that fits."""
        gone = await self.store.pruned(run.uid) if row.sealed else None
        if gone is not None:
            run.at = Reduced(row, self._snapshots.remembered(gone), Facts())
            return
        start = await self._snapshots.latest(row)
        run.at, size = await self._reduced(row, start)
        self._metrics.replays.inc()
        run.grown = Grown().by(row.head.offset - start.head.offset, size)
        await self._snap(run, ())

    async def _reduced(self, row: Execution, start: Start) -> tuple[Reduced, int]:
        """Verify the chain from there to the row's head and reduce it in one pass, page by page; the bytes of it."""
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
        return Reduced(row, replayed.state, facts), size

    async def _snap(self, run: Run, kinds: Iterable[str]) -> None:
        """P1: an optimisation, after what is durable already. A sealed run isn't worth any."""
        at = run.now
        if not at.row.sealed:
            run.grown = await self._snapshots.after(at.row, at.state, at.facts, run.grown, kinds)

    async def _settle_status(self, run: Run) -> None:
        """S4: the status follows from the phase. A crash between the two is mended here.

        Where another gateway was quicker, or has gone on since, it sees to that.
        """
        at = run.now
        wanted = STATUSES.get(at.state.phase, ExecutionStatus.RUNNING)
        if at.row.status is not wanted and not at.row.sealed:
            with contextlib.suppress(VersionConflict):
                row = await self.store.update_status(run.uid, wanted, at.row.version)
                run.at = Reduced(row, at.state, at.facts)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def admit(
        self,
        spec: ResolvedRun,
        fence: FenceRequest | None = None,
        content: BlobRef | None = None,
        beside: Sequence[Draft] = (),
    ) -> Run:
        """Make a run known, once (O6), and raise the fence of its first attempt with it.

        `content` is what `keep_spec` answered; `beside` follows the record of the admission. Raise SpecConflict where
        the uid came with another spec before, Fenced where that epoch is over.
        """
        reached(Point.ADMIT_BEFORE)
        content = content or await self.keep_spec(spec)
        reached(Point.ADMIT_WITHIN)
        run = await self._begin(spec, fence, content, beside)
        if run is None:  # it had begun before
            run = await self.open(spec.uid)
            if run.state.offset < 0:  # it had joined its session, and was looked at then (O7)
                await self.refresh(run)
            if fence is not None:
                await self.raise_fence(run, fence)
        reached(Point.ADMIT_AFTER)
        return run

    async def _begin(
        self, spec: ResolvedRun, fence: FenceRequest | None, content: BlobRef, beside: Sequence[Draft]
    ) -> Run | None:
        """One durable step. None where the run's journal has begun already."""
        new = _execution(spec, self._clock.now_ms())
        told = {"spec_hash": new.spec_hash}
        drafts = [self.observed(RecordType.RUN_ADMITTED, told, attachments={"spec": content}), *beside]
        if fence is not None:
            drafts.append(self._raised(fence))
        run, trial = Run(spec.uid, spec), Trial(RunState(), Facts())
        if fence is not None:
            reached(Point.EPOCH_BEFORE)
        with Writing(run, self._metrics):
            result = await self.store.admit(new, fence.epoch if fence else None, drafts, guard=trial)
        if fence is not None:
            reached(Point.EPOCH_AFTER)
        if not result.appended or self._alive.setdefault(spec.uid, run) is not run:
            return None
        async with run.writing:
            await self._advance(run, result, trial)
        self._touch(run)
        return run

    async def join(self, spec: ResolvedRun, session: Session) -> None:
        """O7: have a run known as the next one of its session, in one step. Raise VersionConflict, SpecConflict."""
        await self.store.persist(_execution(spec, self._clock.now_ms()), session)

    async def keep_spec(self, spec: ResolvedRun) -> BlobRef:
        """Make a run's spec durable: its first record will name it (J8)."""
        return await self._attach(spec.tenant, spec.model_dump_json().encode())

    async def append(
        self,
        run: Run,
        epoch: int | None,
        drafts: Sequence[Draft],
        condition: Condition | None = None,
        *,
        led: bool = False,
    ) -> AppendResult:
        """Append all or none, durable on return. `epoch` None: of no attempt. `condition` sees the state they follow.
        Those that are there already aren't appended again; where they are `led` by the first one, none follows it
        twice: that raises DuplicateMismatch. Raise what `condition` does, Fenced, Illegal, Invalid, and the store's
        errors; nothing was appended then.
        """
        async with run.writing:
            with crossing(drafts):
                return await self._append(run, epoch, drafts, condition or (lambda _: None), led)

    async def _append(
        self, run: Run, epoch: int | None, drafts: Sequence[Draft], condition: Condition, led: bool
    ) -> AppendResult:
        status = next((ENDS[d.type] for d in drafts if d.type in ENDS), None)
        for _ in range(RETRIES):
            at = await self._load(run)
            self._refuse_older(at.state, epoch)
            if self._segment_full(run):
                at = await self._new_segment(run)
            condition(run)
            write = partial(self.store.append, run.uid, epoch, drafts, at.state.offset, status=status)
            try:
                return await self._write(run, write, drafts[0].record_id if led else None)
            except OffsetConflict:
                await self._read_on(run)
            except DuplicateMismatch:  # two gateways gave one id at one moment: said anew, it is another fact
                if not await self._read_on(run):
                    raise
                break
        raise Overtaken(run.uid)

    async def _write(self, run: Run, write: Write, leader: str | None = None) -> AppendResult:
        """What follows the state in memory, by the store's word, which the reducer had a say in; memory comes after.
        `leader` is the id of the record without which none is written.
        """
        trial = Trial(run.state, run.facts, leader)
        with Writing(run, self._metrics):
            result = await write(guard=trial)
        return await self._advance(run, result, trial)

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
        try:
            await self._write(run, partial(self.store.append, run.uid, None, [draft], state.offset))
        except (OffsetConflict, DuplicateMismatch):  # another gateway was quicker
            await self._read_on(run)
            return run.now
        run.segment_bytes = 0
        await self._snapshots.take(run.now.row, run.state, run.facts)
        run.grown = Grown()
        return run.now

    async def raise_fence(self, run: Run, request: FenceRequest) -> None:
        """F2: fence and record in one step. The current epoch again is harmless. Raise Fenced for a lower one."""
        async with run.writing:
            reached(Point.EPOCH_BEFORE)
            for _ in range(RETRIES):
                at = await self._load(run)
                self._refuse_older(at.state, request.epoch)
                if request.epoch == at.state.epoch:
                    return
                write = partial(self.store.raise_fence, run.uid, request.epoch, [self._raised(request)])
                try:
                    await self._write(run, write)
                except OffsetConflict:
                    await self._read_on(run)
                else:
                    reached(Point.EPOCH_AFTER)
                    return
        raise Overtaken(run.uid)

    def _raised(self, request: FenceRequest) -> Draft:
        payload = request.model_dump(mode="json")
        return self.observed(RecordType.EPOCH_RAISED, payload, request.epoch, attempt=request.attempt)

    async def seal(self, run: Run, reason: str) -> None:
        """J7: the run is over and let go of: a tombstone ends its journal."""
        async with run.writing:
            await self._load(run)
            reached(Point.SEAL_BEFORE)
            with Writing(run, self._metrics):
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
            looked = await surveyed(self.store, row, run.spec)
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
        if self._appended is not None:
            self._appended(run.spec, result.appended)
        run.grown = run.grown.by(len(result.appended), result.size)
        run.segment_bytes += result.size
        await self._settle_status(run)
        await self._snap(run, {record.type for record in result.appended})
        self._ring(run)
        return result

    def _ring(self, run: Run) -> None:
        run.bell.ring()
        self.bell.ring()

    def _heard(self, uid: str | None) -> None:
        """M5: somebody wrote to a run, or to any. Who waits for it looks."""
        for run in [self._alive.get(uid)] if uid is not None else list(self._alive.values()):
            if run is not None:
                run.told = True
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
    told, space = spec.model_dump(mode="json"), spec.workspace.key
    identity = RunIdentity(tenant=spec.tenant, run_uid=spec.uid, session_id=spec.session_id, workspace=space)
    return NewExecution(identity=identity, name=spec.name, spec_hash=canonical_hash(told), spec=told, created_at=now)
