"""P4: three replays, and what each of them may do.

| name | takes | comes to | calls |
|---|---|---|---|
| recovery | records | the state after the last one | nothing |
| audit | records | what happened, in order, and what doesn't add up | nothing |
| counterfactual | records, an offset, whom to ask | another answer, in the journal of a new run | whom it is given |

Recovery is `moorage.core.run.reducer.Replay`. No replay changes the journal that it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from moorage.core.journal.canonical import canonical_hash
from moorage.core.journal.lineage import repair_of
from moorage.core.journal.plain import plain
from moorage.core.journal.record import Record, refuse_unknown_critical
from moorage.core.journal.segments import Lineage, lineage_of
from moorage.core.run.phases import IllegalMove
from moorage.core.run.reducer import reduce
from moorage.core.run.state import REDUCER_VERSION, RunState, Usage

KEPT = 1_000
"""Moves and findings that a report names; of more than that the first ones, and that there are more."""


def state_hash(state: RunState) -> str:
    """What two replays of one journal must agree on, in lower-case hex."""
    return canonical_hash(plain(state))


@dataclass(frozen=True, slots=True)
class Move:
    """A phase that the run left for another one, and the record that says so."""

    offset: int
    type: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a sound run's journal doesn't have."""

    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit came to. `state` is as far as the records follow from each other."""

    state: RunState
    records: int
    moves: tuple[Move, ...]
    findings: tuple[Finding, ...]
    more: int = 0

    @property
    def sound(self) -> bool:
        """Nothing was found."""
        return not self.findings


class Audit:
    """Checks and explains, record by record; memory doesn't grow with the journal. The chain is verified elsewhere."""

    def __init__(self) -> None:
        self._state = RunState()
        self._moves: list[Move] = []
        self._findings: list[Finding] = []
        self._records = self._more = 0
        self._last: Record | None = None
        self._segment = Lineage(1, 0, -1, "", "", REDUCER_VERSION)
        self._over = False

    def feed(self, record: Record) -> None:
        """The next record. Raise UnknownCritical."""
        refuse_unknown_critical(record)
        if self._over:
            return
        self._records += 1
        self._ordered(record)
        self._lineage(record)
        before = self._state
        try:
            self._state = reduce(before, record)
        except (IllegalMove, KeyError, TypeError, ValueError, AttributeError) as error:
            self._find(record, f"{record.type} doesn't follow: {error}")
            self._over = True
            return
        self._budget(record, before.usage, self._state.usage)
        if before.phase is not self._state.phase:
            self._note(self._moves, Move(record.seq, record.type, before.phase.value, self._state.phase.value))
        self._last = record

    def report(self) -> Report:
        """What it came to."""
        state, last = self._state, self._last
        if state.end is not None and last is not None:
            for effect in state.open_effects:
                self._find(last, f"the run ended while effect {effect.effect_id} was {effect.status}")
        return Report(state, self._records, tuple(self._moves), tuple(self._findings), self._more)

    def _ordered(self, record: Record) -> None:
        if self._last is None:
            return
        if record.logical_time <= self._last.logical_time:
            self._find(record, f"its logical time {record.logical_time} isn't after {self._last.logical_time}")
        if record.epoch < self._last.epoch:
            self._find(record, f"epoch {record.epoch} committed after epoch {self._last.epoch}")

    def _lineage(self, record: Record) -> None:
        """P3: a segment follows the one before it, and carries over the state that its journal leads to."""
        try:
            said = lineage_of(record)
        except (KeyError, TypeError):
            self._find(record, "it begins a segment and doesn't say what it follows")
            return
        if repair_of(record) is not None or said is None:
            return
        follows = Lineage(
            said.segment, self._segment.first, record.seq - 1, self._state.head, said.state_hash, said.reducer_version
        )
        if said != follows or said.segment <= self._segment.segment:
            self._find(record, f"segment {said.segment} says that it follows another one than it does")
        if said.reducer_version == REDUCER_VERSION and said.state_hash != state_hash(self._state):
            self._find(record, f"segment {said.segment} carries over another state than the journal leads to")
        self._segment = Lineage(said.segment, record.seq, -1, "", "", REDUCER_VERSION)

    def _budget(self, record: Record, before: Usage, after: Usage) -> None:
        """I4: what is spent is spent."""
        for each in fields(Usage):
            if getattr(after, each.name) < getattr(before, each.name):
                self._find(record, f"usage fell: {each.name}")

    def _find(self, record: Record, what: str) -> None:
        self._note(self._findings, Finding(record.seq, what))

    def _note(self, notes: list[Move] | list[Finding], note: Move | Finding) -> None:
        if len(notes) < KEPT:
            notes.append(note)  # type: ignore[arg-type]  # each list gets its own kind
        else:
            self._more += 1


def audit(records: Iterable[Record]) -> Report:
    """Check and explain a whole journal. Raise UnknownCritical."""
    audited = Audit()
    for record in records:
        audited.feed(record)
    return audited.report()
