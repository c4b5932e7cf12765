"""A run as memory holds it: reduced from its journal up to an offset, and never ahead of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from moorage.api.budget import ResolvedLimits
from moorage.api.wire import ResolvedRun
from moorage.core.journal.chain import EMPTY, Head
from moorage.core.journal.record import Record
from moorage.core.journal.snapshots import Grown
from moorage.core.run.limits import in_force
from moorage.core.run.phases import IllegalMove
from moorage.core.run.reducer import reduce
from moorage.core.run.state import RunState
from moorage.gateway.errors import Illegal, Invalid
from moorage.gateway.facts import Facts, fold
from moorage.gateway.signals import Bell
from moorage.gateway.snapshots import Start
from moorage.store.errors import DuplicateMismatch, OffsetConflict, StoreBusy, StoreError
from moorage.store.port import AppendResult, Execution, Guard
from moorage.telemetry.metrics import GatewayMetrics


class Overtaken(StoreBusy):
    """Another gateway wrote to the run meanwhile, and what was to be written doesn't follow from that any more."""

    def __init__(self, run_uid: str) -> None:
        super().__init__(f"other gateways wrote to run {run_uid} meanwhile: ask again")


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
    waits_since: tuple[int, str, int] | None = None  # the epoch, what its start misses, since when (monotonic ms)
    fetching: tuple[int, asyncio.Task[str]] | None = None  # the epoch whose sandbox asked, and the base on its way
    grown: Grown = field(default_factory=Grown)  # since the last snapshot
    segment_bytes: int = 0  # of the present segment, as far as this process has seen them
    bell: Bell = field(default_factory=Bell)
    told: bool = False  # that others wrote to it; nobody has looked since
    let_in: set[str] = field(default_factory=set)  # UIDs of its sandboxes that the store is known to know
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    delivering: asyncio.Lock = field(default_factory=asyncio.Lock)
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def now(self) -> Reduced:
        """The last durable state. Callers got the run from `open`, which has read it."""
        if self.at is None:
            raise StoreBusy("the state of this run is being read again: ask again")
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
    def limits(self) -> ResolvedLimits:
        """The limits in force: as admitted, or as raised since."""
        return in_force(self.spec.limits, self.state.raised)

    @property
    def tenant(self) -> str:
        """The namespace."""
        return self.spec.tenant


class Write(Protocol):
    """What the store is asked to write, but for the guard."""

    def __call__(self, *, guard: Guard) -> Awaitable[AppendResult]:
        """Raise what the guard does, and the store's errors; nothing was written then."""


class Trial:
    """The store's guard: reduces new records before they are written, and holds what would follow.

    A store may ask again for the same append, after a transaction that it shared with others was undone.
    """

    def __init__(self, state: RunState, facts: Facts, leader: str | None = None) -> None:
        self._start, self._leader = (state, facts), leader
        self.state, self.facts = self._start

    def __call__(self, records: Sequence[Record]) -> None:
        """Raise Illegal or Invalid for what can't follow, OffsetConflict where others were written before, and
        DuplicateMismatch where the `leader` of these is there already; nothing is appended then.
        """
        self.state, self.facts = self._start
        if self._leader is not None and records[0].record_id != self._leader:
            raise DuplicateMismatch(records[0].run_uid, self._leader)
        for record in records:
            if record.seq != self.state.offset + 1:
                raise OffsetConflict(record.run_uid, self.state.offset, record.seq - 1)
            try:
                self.state, self.facts = reduce(self.state, record), fold(self.facts, record)
            except IllegalMove as error:
                raise Illegal(str(error)) from None
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Invalid(
                    f"{record.type}: the payload is not what it takes ({type(error).__name__}: {error})"
                ) from None


class Writing:
    """Times one write; a failure of the store drops what memory holds of the run."""

    def __init__(self, run: Run, metrics: GatewayMetrics) -> None:
        self._run, self._metrics = run, metrics

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self._metrics.append_seconds.observe(perf_counter() - self._began)
            return
        if isinstance(error, OffsetConflict):
            return  # another gateway was quicker; what memory holds is the older part of the same
        self._metrics.append_failures.labels(type(error).__name__).inc()
        dropped = isinstance(error, StoreError) and not isinstance(error, DuplicateMismatch)
        if dropped or not isinstance(error, Exception):
            self._run.at = None


def later(row: Execution, at: Reduced) -> bool:
    """Whether a row, as it was read, tells of more than memory holds. Fence, seal and repair raise the version."""
    known = at.row.version, at.state.offset
    return row.version >= known[0] and row.head.offset >= known[1] and (row.version, row.head.offset) != known


def beginning(at: Reduced) -> Start:
    """Where to read on from."""
    return Start(Head(at.state.offset, at.state.head) if at.state.offset >= 0 else EMPTY, at.state, at.facts)
