"""R7 on this machine: runs whose owner died, and what becomes of each when another run is started.

The same manifest again goes on with its run. What stands in the way of another run is never given up without being
asked to: it may hold hours of paid work. All others are offered to the user.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any

from moorage.api.agentrun import AgentRun
from moorage.api.wire import ReportedRecord, ResolvedRun
from moorage.app.owners import Owned, Owners, clear_socket
from moorage.app.stores import Stores
from moorage.core.journal.record import RecordType
from moorage.core.run.attempts import INTERRUPTED
from moorage.core.run.limits import widens
from moorage.core.run.phases import LIVE, RunPhase
from moorage.core.run.resolve import amended
from moorage.core.run.result import verifier_at_work, verifier_serial
from moorage.core.run.state import PauseStage, RunState
from moorage.store.errors import SpecUnreadable, UnknownRun
from moorage.store.port import Execution, ExecutionStatus
from moorage.store.specs import stored_spec

OFFERED_MS = 24 * 3_600_000  # R7: who comes back the next day is told of what was left; `doctor` tells all


class Fate(Enum):
    """What becomes of an interrupted run."""

    GO_ON = auto()  # it is this manifest's run: unfinished, or finished and never told
    CLOSE = auto()  # it ends as cancelled: it was being cancelled, or the user gave it up
    IN_THE_WAY = auto()  # the new run can't start beside it
    FORGET = auto()  # it has ended; nobody needs to hear of it any more
    LEAVE = auto()  # not this run's business


@dataclass(frozen=True)
class Interrupted:
    """A run that nobody works on. Only the holder of `owned` may push it on; nobody, where its spec can't be read."""

    owned: Owned
    row: Execution
    spec: ResolvedRun | SpecUnreadable

    @property
    def manifest(self) -> Path | None:
        """The manifest that it was started from, where its owner lived long enough to say so."""
        return self.owned.last.manifest if self.owned.last else None

    @property
    def branch(self) -> str:
        """What it delivers to, where that is anything."""
        known = None if isinstance(self.spec, SpecUnreadable) else self.spec.delivery
        return known.branch if known else ""

    @property
    def trouble(self) -> str:
        """Why this version can't go on with it; empty where it can."""
        return str(self.spec) if isinstance(self.spec, SpecUnreadable) else ""

    @property
    def how(self) -> str:
        """Why nobody works on it."""
        return "is paused" if self.row.status is ExecutionStatus.PAUSED else "was interrupted"

    @property
    def since(self) -> str:
        """When it was admitted, for people."""
        return datetime.fromtimestamp(self.row.created_at // 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


async def find(kept: Stores, owners: Owners, tenant: str, runs: Path) -> list[Interrupted]:
    """All of them, oldest first, each owned by this process now. What was never admitted is cleared away."""
    owners.clear_unborn()
    pending = {row.run_uid for row in await kept.store.list_pending(tenant)}
    found = []
    for uid in sorted(pending | set(owners.known())):
        owned = owners.take(uid)
        if owned is None:
            continue
        clear_socket(owned)
        try:
            found.append(Interrupted(owned, await kept.store.get(uid), await _spec(kept, uid)))
        except UnknownRun:
            shutil.rmtree(runs / uid, ignore_errors=True)
            owned.done()
    return sorted(found, key=lambda each: (each.row.created_at, each.row.run_uid))


async def _spec(kept: Stores, uid: str) -> ResolvedRun | SpecUnreadable:
    try:
        return await stored_spec(kept.store, uid)
    except SpecUnreadable as error:
        return error


def fate(found: Interrupted, asked: ResolvedRun | None, run: AgentRun, *, fresh: bool) -> Fate:
    """What becomes of it when `run` is started, which resolves to `asked` (None: it doesn't). Pure."""
    if asked is None or isinstance(found.spec, SpecUnreadable):
        return Fate.LEAVE
    same = is_same(found.spec, asked, run)
    if not found.row.pending:
        told = found.row.status is ExecutionStatus.COMPLETED and not fresh
        return (Fate.GO_ON if told else Fate.FORGET) if same else Fate.LEAVE
    if same:
        return Fate.CLOSE if fresh else Fate.GO_ON
    if found.spec.contends_with(asked):
        return Fate.CLOSE if fresh else Fate.IN_THE_WAY
    return Fate.LEAVE


def is_same(admitted: ResolvedRun, asked: ResolvedRun, run: AgentRun) -> bool:
    """O6: it was admitted as what is asked for now, but for the UID and what its author may change later: retention,
    and limits that are raised.
    """
    ids = {"uid": admitted.uid, "session_id": admitted.session_id, "limits": admitted.limits}
    return asked.model_copy(update=ids) == amended(admitted, run) and widens(admitted.limits, asked.limits)


def expired(spec: ResolvedRun, state: RunState, now: int) -> bool:
    """W5: an ended run's retention is over."""
    return state.end is not None and spec.retention.ttl_ms is not None and now >= state.end.at + spec.retention.ttl_ms


def taking_up(state: RunState, now: int) -> list[ReportedRecord]:
    """What is told before the run is gone on with: what the dead owner had at work is lost, and who starts a paused run
    asks for it to go on.
    """
    return [each for each in (lost_attempt(state, now), _going_on(state, now)) if each is not None]


def _going_on(state: RunState, now: int) -> ReportedRecord | None:
    if state.pause is None or state.pause.released or state.pause.stage == PauseStage.RESUMED:
        return None
    kind = RecordType.RESUME_REQUESTED.value
    record_id = f"op:{kind}:{state.pauses}:{state.epoch}"
    return ReportedRecord(record_id=record_id, type=kind, payload={"by": "run"}, recorded_at=now)


def lost_attempt(state: RunState, now: int) -> ReportedRecord | None:
    """The record that gives up what the dead owner had at work, if that was anything.

    An attempt counts once (R6): that the owner died says nothing of it, and bounds it all the same. A verifier doesn't
    count: nothing of the agent's ran in it.
    """
    if state.agent_end is None:
        at_work = state.phase in LIVE - {RunPhase.PAUSED} and state.sandbox(state.epoch, "runner") is not None
        return _ended(state, "runner", 0, {"counts_double": False}, now) if at_work else None
    verifier = verifier_at_work(state) if state.phase is RunPhase.VERIFYING else None
    if verifier is None or _judged(state):
        return None
    return _ended(state, "verifier", verifier_serial(state), {"interrupted": verifier.pod_uid}, now)


def _judged(state: RunState) -> bool:
    """Its verifier said all that it had to say."""
    verdict, proposal = state.verification, state.proposal
    if verdict is None or proposal is None:
        return False
    return verdict.commit == proposal.commit and verdict.problem is None


def _ended(state: RunState, role: str, serial: int, more: Mapping[str, Any], now: int) -> ReportedRecord:
    kind = RecordType.ATTEMPT_ENDED.value
    why = "the process that owned the run ended without a word"
    payload = {"epoch": state.epoch, "role": role, "reason": INTERRUPTED, "message": why, **more}
    record_id = f"op:{kind}:{role}:{state.epoch}:{serial}"
    return ReportedRecord(record_id=record_id, type=kind, payload=payload, recorded_at=now)


def cancel_request(now: int) -> ReportedRecord:
    """The record that begins the end of a run that was given up (X1)."""
    kind = RecordType.CANCEL_REQUESTED.value
    return ReportedRecord(
        record_id=f"op:{kind}:{INTERRUPTED}", type=kind, payload={"reason": INTERRUPTED}, recorded_at=now
    )


def offer(left: Iterable[Interrupted], now: int) -> list[str]:
    """What to tell of runs that are left as they are."""
    recent = [each for each in left if each.row.pending and now - each.row.created_at < OFFERED_MS]
    return [f"run {each.row.name} of {each.since} {each.how}; {how_to_go_on(each)}" for each in recent]


def how_to_go_on(found: Interrupted) -> str:
    """The command, or why there is none."""
    manifest = found.manifest or "ITS-MANIFEST"
    return found.trouble or f"`moorage run -f {manifest}` goes on with it, with --fresh it begins anew"
