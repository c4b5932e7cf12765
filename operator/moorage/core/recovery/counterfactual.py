"""P4: what a model would have said instead. The one replay that may ask one, and so the one that makes a new run.

The new run's journal begins with a RUN_ADMITTED that names its lineage: which run, up to which offset and hash, and the
hash of the state there. It ends with the answer. The journal that it was forked from isn't touched, and nothing of the
new one is ever mistaken for it: it has a run uid of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moorage.core.journal.chain import EMPTY, head_at, seal
from moorage.core.journal.export import Header
from moorage.core.journal.record import (
    Assurance,
    BlobRef,
    Draft,
    Record,
    RecordType,
    RunIdentity,
    Source,
    Stored,
    content_of,
    decode,
)
from moorage.core.recovery.replays import state_hash
from moorage.core.run.reducer import Replay
from moorage.core.run.state import REDUCER_VERSION, RunState

REASON = "Counterfactual"


class NoSuchQuestion(ValueError):
    """There is no model request there, or its content wasn't kept."""


@dataclass(frozen=True)
class Fork:
    """A request of a run's to a model: what had been asked, where, and what had been answered (None: nothing)."""

    run: RunIdentity
    state: RunState
    request: Record
    content: BlobRef
    answered: str | None

    @property
    def lineage(self) -> dict[str, Any]:
        """What the new run says that it comes from."""
        return {
            "run_uid": self.run.run_uid,
            "offset": self.state.offset,
            "hash": self.state.head,
            "state_hash": state_hash(self.state),
            "reducer_version": REDUCER_VERSION,
            "request_id": self.request.request_id or "",
        }


@dataclass(frozen=True)
class Answer:
    """What was said this time: HTTP status, body, and what it cost by the names of Usage."""

    status: int
    body: bytes
    usage: Mapping[str, int]
    model: str

    @property
    def sha256(self) -> str:
        """The body's."""
        return hashlib.sha256(self.body).hexdigest()


Ask = Callable[[Fork], Answer]


def fork(records: Iterable[Record], at: int | None = None) -> Fork:
    """The last model request at or before that offset, or of the whole journal. Raise NoSuchQuestion, IllegalMove."""
    replayed, before, asked, answered = Replay(), RunState(), None, None
    for record in records:
        if record.type == RecordType.MODEL_REQUEST and (at is None or record.seq <= at):
            asked, before, answered = record, replayed.state, None
        elif asked is not None and record.type == RecordType.MODEL_RESPONSE and record.request_id == asked.request_id:
            kept = content_of(record)
            answered = answered or (kept.sha256 if kept else None)
        replayed.feed(record)
    if asked is None:
        raise NoSuchQuestion("no model was asked anything there: `moorage timeline` names the requests")
    content = content_of(asked)
    if content is None:
        raise NoSuchQuestion(f"what was asked at offset {asked.seq} wasn't kept")
    return Fork(_identity(asked), before, asked, content, answered)


@dataclass(frozen=True)
class WhatIf:
    """The new run: whose journal it is, and its records as they are stored."""

    header: Header
    records: tuple[Stored, ...]
    answer: Answer
    same: bool


def counterfactual(forked: Fork, run_uid: str, now: int, ask: Ask) -> WhatIf:
    """Ask again, and journal that in a new run of that uid at that time (ms). Raise what `ask` raises."""
    run = RunIdentity(tenant=forked.run.tenant, run_uid=run_uid, session_id=run_uid, workspace=forked.run.workspace)
    answer = ask(forked)
    same = answer.sha256 == forked.answered
    stored = tuple(seal(_drafts(forked, answer, now, same=same), EMPTY, run, 0))
    head = head_at(decode(stored[-1]))
    header = Header(
        tenant=run.tenant,
        run_uid=run_uid,
        name=f"what-if-{forked.run.run_uid}"[:63],
        spec_hash=forked.state.spec_hash,
        offset=head.offset,
        hash=head.hash,
    )
    return WhatIf(header, stored, answer, same)


def _drafts(forked: Fork, answer: Answer, now: int, *, same: bool) -> list[Draft]:
    asked = {**(forked.request.payload or {}), "model": answer.model}
    said = {
        "status": answer.status,
        "usage": dict(answer.usage),
        "complete": answer.status == 200,
        "answer_sha256": answer.sha256,
        "recorded_sha256": forked.answered or "",
        "same": same,
    }
    ended = {"reason": REASON, "message": "it ends with the answer"}
    return [
        _draft(RecordType.RUN_ADMITTED, {"spec_hash": forked.state.spec_hash, "counterfactual": forked.lineage}, now),
        _draft(RecordType.MODEL_REQUEST, asked, now, forked),
        _draft(RecordType.MODEL_RESPONSE, said, now, forked),
        _draft(RecordType.RUN_FAILED, ended, now),
    ]


def _draft(kind: RecordType, payload: Mapping[str, Any], now: int, forked: Fork | None = None) -> Draft:
    return Draft(
        record_id=f"what-if:{kind.value}",
        type=kind.value,
        recorded_at=now,
        source=Source.GATEWAY,
        assurance=Assurance.OBSERVED,
        payload=payload,
        request_id=forked.request.request_id if forked else None,
        turn=forked.request.turn if forked else None,
    )


def _identity(record: Record) -> RunIdentity:
    return RunIdentity(
        tenant=record.tenant, run_uid=record.run_uid, session_id=record.session_id, workspace=record.workspace
    )
