"""K1: what must hold after a run whose processes died: read from its journal, whoever wrote it.

`look` reads a store. `judge` compares what was seen after each death with the end, and the end with that of an
undisturbed run.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from moorage.core.effects.http import KIND as HTTP
from moorage.core.effects.levels import Level
from moorage.core.journal.chain import Broken, ChainVerifier
from moorage.core.journal.record import Assurance, Draft, Record, RecordType, Source, decode
from moorage.core.run.phases import IllegalMove
from moorage.core.run.reducer import Replay
from moorage.core.run.result import MAX_VERIFIER_LOSSES
from moorage.core.run.state import Effect, RunState, Usage
from moorage.store.errors import Fenced, RunSealed
from moorage.store.port import DurableExecutionStore
from moorage.store.postgres import PostgresStore
from moorage.store.sqlite import SqliteStore

ENDS = frozenset({RecordType.RUN_SUCCEEDED, RecordType.RUN_FAILED, RecordType.RUN_CANCELLED})
PUSH, CONFIRMED, UNKNOWN = "git_push", ": confirmed", ": unknown"
MOST_RUNS = 1_000


class Kind(StrEnum):
    """What may be wrong."""

    DUPLICATE = "duplicate"
    LOSS = "loss"
    DIVERGENCE = "divergence"
    LEFTOVER = "leftover"


@dataclass(frozen=True)
class Finding:
    """One thing that must not be, and what was seen."""

    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True)
class Journal:
    """What one run's journal came to: its records are read by and kept by nobody.

    `head`: the hash of its last record. `before`: the hash at each count of records that was asked for, where there are
    as many. `problem`: why it can't be believed.
    """

    uid: str
    records: int
    head: str
    state: RunState
    ends: int = 0
    repeated: tuple[Finding, ...] = ()
    before: Mapping[int, str] = field(default_factory=dict)
    problem: str | None = None


class Reading:
    """Reads a journal from record to record. Of each of a model's answers a digest is kept, of all else nothing."""

    def __init__(self, uid: str, marks: Iterable[int] = ()) -> None:
        self._uid, self._marks = uid, frozenset(marks)
        self._replay = Replay()
        self._records, self._head, self._ends, self._iteration = 0, "", 0, 0
        self._before: dict[int, str] = {}
        self._repeated: list[Finding] = []
        self._asked: dict[str, str] = {}
        self._answered: set[str] = set()

    def feed(self, record: Record) -> None:
        """The next one. Raises IllegalMove for one that can't follow."""
        self._replay.feed(record)
        self._records, self._head = self._records + 1, record.hash
        if self._records in self._marks:
            self._before[self._records] = record.hash
        self._ends += record.type in ENDS
        payload = record.payload or {}
        if record.type == RecordType.ITERATION_COMPLETE:
            self._counted(int(payload["iteration"]))
        elif record.type == RecordType.MODEL_REQUEST and record.request_id:
            self._question(record.request_id, str(payload.get("bytes_hash")))
        elif record.type == RecordType.MODEL_RESPONSE:
            asked = self._asked.pop(record.request_id or "", None)
            self._answered |= {asked} if asked and payload.get("complete") else set()

    def _counted(self, iteration: int) -> None:
        if iteration <= self._iteration:
            self._repeated.append(Finding(Kind.DUPLICATE, f"iteration {iteration} was counted twice"))
        self._iteration = max(iteration, self._iteration)

    def _question(self, request_id: str, digest: str) -> None:
        """R2: a request whose whole answer is in the journal never leaves again."""
        if digest in self._answered:
            self._repeated.append(Finding(Kind.DUPLICATE, f"the model was asked again at record {self._records - 1}"))
        self._asked[request_id] = digest

    def journal(self, problem: str | None = None) -> Journal:
        """What it came to."""
        state, repeated = self._replay.state, tuple(self._repeated)
        return Journal(self._uid, self._records, self._head, state, self._ends, repeated, self._before, problem)


@dataclass(frozen=True)
class Outcome:
    """What of a run's end is the same however often it was disturbed.

    `effects`: what was sent off and how it ended, such as `git_push: confirmed`, each as often as it was.
    """

    phase: str
    reason: str
    tree: str
    accepted: bool
    effects: tuple[str, ...]

    @property
    def unknown(self) -> bool:
        """It says itself that it doesn't know."""
        return any(effect.endswith(UNKNOWN) for effect in self.effects)

    @property
    def delivered(self) -> bool:
        """A push is confirmed."""
        return f"{PUSH}{CONFIRMED}" in self.effects

    @property
    def undelivered(self) -> bool:
        """Nobody knows whether its push arrived, so that it can't end as it would have."""
        return f"{PUSH}{UNKNOWN}" in self.effects

    @property
    def known(self) -> Outcome:
        """The same with the doubt left out: what may have happened, did."""
        return replace(self, effects=tuple(sorted(each.replace(UNKNOWN, CONFIRMED) for each in self.effects)))


def gave_up(state: RunState) -> bool:
    """R6: its verifiers were killed as often as a run bears, and it says so."""
    lost = state.end is not None and state.end.reason == "VerifierLost"
    return lost and state.verifications_lost >= MAX_VERIFIER_LOSSES


def outcome(state: RunState) -> Outcome:
    """Of a run that has ended."""
    return Outcome(
        phase=str(state.phase),
        reason=state.end.reason if state.end else "",
        tree=state.proposal.tree if state.proposal else "",
        accepted=state.verification is not None and state.verification.passed,
        effects=tuple(
            sorted(f"{e.kind}: {e.status}" for e in state.effects if e.status != "not_dispatched" and _matters(e))
        ),
    )


def _matters(effect: Effect) -> bool:
    """A read may be done as often as anybody likes."""
    return effect.level != Level.READ_ONLY


@dataclass(frozen=True)
class Outside:
    """What authorities logged. `pushes`: every commit that the remote's branch was moved to; `happened`: every effect
    that hosts had, as the journal names its target, or None where nobody counts them.
    """

    pushes: Sequence[str]
    happened: Sequence[str] | None = None


Opened = Callable[[], AbstractAsyncContextManager[DurableExecutionStore | None]]
"""A store as it is now; None as long as there is none."""


@contextlib.asynccontextmanager
async def on_disk(state: Path) -> AsyncIterator[DurableExecutionStore | None]:
    """The store of a state folder."""
    file = state / "gateway" / "moorage.db"
    if not file.is_file():
        yield None
        return
    async with SqliteStore(file) as store:
        yield store


@contextlib.asynccontextmanager
async def in_postgres(dsn: str) -> AsyncIterator[DurableExecutionStore | None]:
    """The store of a database."""
    async with await PostgresStore.open(dsn) as store:
        yield store


@dataclass(frozen=True)
class Seen:
    """All runs of a store, their chains verified, and what was wrong with their owners."""

    journals: tuple[Journal, ...]
    findings: Sequence[Finding]


async def look(opened: Opened, earlier: Iterable[Journal] = ()) -> Seen:
    """After a death: read everything, and let each run's older owner try to commit. `earlier`: what was seen before."""
    async with opened() as store:
        if store is None:
            return Seen((), ())
        had = tuple(earlier)
        uids = sorted({change.run_uid for change in await store.changes(0, MOST_RUNS)})
        found = [finding for uid in uids for finding in await older_owner(store, uid)]
        return Seen(
            tuple([await _journal(store, uid, [j.records for j in had if j.uid == uid]) for uid in uids]), found
        )


async def older_owner(store: DurableExecutionStore, uid: str) -> list[Finding]:
    """I2: the owner before this one tries to commit, and must be refused."""
    owner = (await store.get(uid)).fence_epoch
    late = Draft(
        record_id="late",
        type=RecordType.AGENT_OUTPUT,
        recorded_at=0,
        source=Source.RUNNER,
        assurance=Assurance.REPORTED,
    )
    try:
        await store.append(uid, owner - 1, [late])
    except (Fenced, RunSealed):
        return []
    return [Finding(Kind.DUPLICATE, f"epoch {owner - 1} committed beside epoch {owner}")]


async def _journal(store: DurableExecutionStore, uid: str, marks: Iterable[int]) -> Journal:
    head, verifier, reading = (await store.get(uid)).head, ChainVerifier(run_uid=uid), Reading(uid, marks)
    try:
        async for stored in store.stored(uid):
            if broken := verifier.feed(stored):
                return reading.journal(str(broken.error()))
            reading.feed(decode(stored))
    except IllegalMove as error:
        return reading.journal(str(error))
    verdict = verifier.result(head)
    return reading.journal(str(verdict.error()) if isinstance(verdict, Broken) else None)


def judge(
    seen: Sequence[tuple[Journal, ...]], undisturbed: Outcome, outside: Outside, *, same_tree: bool = True
) -> list[Finding]:
    """What is wrong. `seen`: after each death and the end."""
    last = seen[-1]
    if len(last) != 1:
        return [Finding(Kind.DIVERGENCE, f"{len(last)} runs were made of one")]
    (journal,) = last
    if journal.problem:
        return [Finding(Kind.LOSS, f"its journal can't be believed: {journal.problem}")]
    found: list[Finding] = []
    for earlier in seen[:-1]:
        found += _losses(earlier, journal)
    found += _duplicates(journal, outside.pushes)
    if outside.happened is not None:
        found += _unlike(journal.state.effects, outside.happened)
    found += _divergence(journal, undisturbed, outside.pushes, same_tree=same_tree)
    return found


def _losses(earlier: tuple[Journal, ...], now: Journal) -> Iterator[Finding]:
    """I1, I4: what was durable stays, and nothing that was spent comes back."""
    for journal in earlier:
        if not journal.records:
            continue
        if journal.uid != now.uid:
            yield Finding(Kind.LOSS, f"run {journal.uid} was forgotten after {journal.records} records")
        elif now.before.get(journal.records) != journal.head:
            yield Finding(Kind.LOSS, f"of {journal.records} records that were durable some are gone or changed")
        elif lower := _lower(journal.state.usage, now.state.usage):
            yield Finding(Kind.LOSS, f"the budget is lower than it was: {lower}")


def _lower(before: Usage, after: Usage) -> list[str]:
    fields = [name for name in vars(before) if isinstance(getattr(before, name), int)]
    return [name for name in fields if getattr(after, name) < getattr(before, name)]


def _duplicates(journal: Journal, pushes: Sequence[str]) -> Iterator[Finding]:
    if journal.ends != 1:
        yield Finding(Kind.DUPLICATE if journal.ends else Kind.LOSS, f"{journal.ends} terminal records")
    yield from journal.repeated
    yield from _repeated(journal.state.effects)
    if len(pushes) > 1:
        yield Finding(Kind.DUPLICATE, f"the remote's branch was moved {len(pushes)} times")


def _repeated(effects: Sequence[Effect]) -> Iterator[Finding]:
    """E4: one push is confirmed, and one effect of each key."""
    confirmed = [effect for effect in effects if effect.status == "confirmed" and _matters(effect)]
    if (pushed := sum(effect.kind == PUSH for effect in confirmed)) > 1:
        yield Finding(Kind.DUPLICATE, f"{pushed} pushes were confirmed")
    for key, times in Counter(effect.key for effect in confirmed if effect.kind != PUSH).items():
        if times > 1:
            yield Finding(Kind.DUPLICATE, f"{times} effects of key {key[:16]} were confirmed")


def _unlike(effects: Sequence[Effect], happened: Sequence[str]) -> Iterator[Finding]:
    """E1, E4: each effect of a host's happened once at most, and as its journal says: what is known is so."""
    counted = Counter(happened)
    said = {effect.target: effect.status for effect in effects if effect.kind == HTTP and _matters(effect)}
    for target in sorted({*counted, *said}):
        times, status = counted[target], said.get(target)
        if times > 1:
            yield Finding(Kind.DUPLICATE, f"{target} happened {times} times")
        if times and status not in {"confirmed", "unknown"}:
            yield Finding(Kind.DIVERGENCE, f"{target} happened, and the journal calls it {status}")
        if not times and status == "confirmed":
            yield Finding(Kind.LOSS, f"{target} is confirmed, and its host knows nothing of it")


def _divergence(journal: Journal, undisturbed: Outcome, pushes: Sequence[str], *, same_tree: bool) -> Iterator[Finding]:
    state, is_now = journal.state, outcome(journal.state)
    if state.open_effects:
        yield Finding(Kind.DIVERGENCE, f"effects are left open: {[e.effect_id for e in state.open_effects]}")
    if is_now.undelivered or gave_up(state):
        return
    for name in ("phase", "reason", "accepted", "effects", *(("tree",) if same_tree else ())):
        was, now = getattr(undisturbed, name), getattr(is_now.known, name)
        if was != now:
            why = f" ({state.end.message})" if name == "phase" and state.end else ""
            yield Finding(Kind.DIVERGENCE, f"{name} is {now!r}, undisturbed it was {was!r}{why}")
    if is_now.phase == "Succeeded" and is_now.delivered and list(pushes) != [_delivered(state)]:
        yield Finding(Kind.DIVERGENCE, f"it says that {_delivered(state)} was pushed, the remote got {list(pushes)}")


def _delivered(state: RunState) -> str | None:
    return state.end.commit if state.end else None
