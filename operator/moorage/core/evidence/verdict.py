"""V1: what a journal proves of its run, and what it leaves open, said in one place: reduced, never told.

The same journal gives the same verdict, byte for byte, so that whoever holds a bundle can make it again and compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from moorage.core.journal.canonical import canonical, canonical_hash
from moorage.core.journal.record import BlobRef, Record, RecordType, refuse_unknown_critical
from moorage.core.run.reducer import Replay
from moorage.core.run.state import REDUCER_VERSION, Effect, RunState


class Findings:
    """Follows a journal, one record at a time, and remembers what a verdict needs."""

    def __init__(self) -> None:
        self._replay = Replay()
        self._checks: Mapping[str, Any] | None = None
        self.spec: BlobRef | None = None
        """Where the spec as it was admitted lies."""

    def feed(self, record: Record) -> None:
        """Go on to the next record. Raise IllegalMove, UnknownCritical."""
        refuse_unknown_critical(record)
        self._replay.feed(record)
        if record.type == RecordType.VERIFICATION_RESULT:
            self._checks = record.payload
        elif record.type == RecordType.RUN_ADMITTED:
            self.spec = (record.attachments or {}).get("spec")

    @property
    def state(self) -> RunState:
        """The state after the last record."""
        return self._replay.state

    @property
    def verdict(self) -> dict[str, Any]:
        """What is proved and what isn't, as plain data."""
        return verdict_of(self.state, self._checks)


def verdict_of(s: RunState, checks: Mapping[str, Any] | None) -> dict[str, Any]:
    """The verdict that a state comes to; `checks` is the payload of the last VERIFICATION_RESULT."""
    end = s.end
    return {
        "reducer": REDUCER_VERSION,
        "state_hash": state_hash(s),
        "phase": s.phase.value,
        "reason": end.reason if end else None,
        "message": end.message if end else None,
        "commit": end.commit if end else None,
        "spec_hash": s.spec_hash,
        "attempts": s.attempt,
        "epoch": s.epoch,
        "iterations": s.iteration,
        "usage": dataclasses.asdict(s.usage),
        "proposal": dataclasses.asdict(s.proposal) if s.proposal else None,
        "acceptance": dict(checks) if checks else None,
        "effects": [_effect(e) for e in s.effects],
        "placements": [dataclasses.asdict(p) for p in s.placements],
        "open": list(left_open(s)),
    }


def state_hash(s: RunState) -> str:
    """Canonical hash of a state; fields at their default are left out, so that a new one changes no old hash."""
    usual = dataclasses.asdict(RunState())
    return canonical_hash({name: value for name, value in dataclasses.asdict(s).items() if value != usual[name]})


def verdict_bytes(verdict: Mapping[str, Any]) -> bytes:
    """The verdict as a file."""
    return canonical(verdict) + b"\n"


def left_open(s: RunState) -> tuple[str, ...]:
    """What nobody has proved: each as a sentence."""
    said = [f"effect {e.effect_id} ({e.kind} to {e.target}) is {e.status}" for e in s.effects if _doubtful(e)]
    if s.end is None:
        said.append("the run has not ended")
    if s.verification is None or s.verification.problem is not None:
        said.append("nothing was accepted by commands")
    elif not s.verification.isolated:
        said.append("acceptance ran without a sandbox of its own: it is reported, not proved")
    return tuple(said)


def _doubtful(effect: Effect) -> bool:
    return effect.open or effect.status == "unknown"


def _effect(effect: Effect) -> dict[str, Any]:
    return dataclasses.asdict(effect)
