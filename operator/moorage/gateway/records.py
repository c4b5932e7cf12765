"""From what others report to drafts: who may say what, what is erasable content, what stays beside it in the journal.

Reported record ids are put behind the epoch of their reporter, so that none can take an id of the gateway's own and a
new attempt may use its words again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.api.wire import ReportedRecord, Role
from moorage.core.journal.chain import MAX_ID
from moorage.core.journal.record import Assurance, Draft, Privacy, RecordType, Retention, Source
from moorage.gateway.errors import Forbidden, TooLarge
from moorage.gateway.ledger import Run
from moorage.store.blobs import BlobStore, externalise

T = RecordType
RUNNER_SAYS = frozenset(
    {
        T.WORKSPACE_READY,
        T.AGENT_STARTED,
        T.TOOL_REQUEST,
        T.TOOL_RESPONSE,
        T.CONTEXT_COMPACTED,
        T.COMPLETION_CHECKED,
        T.CONTINUATION_DECIDED,
        T.AGENT_OUTPUT,
        T.DRIFT_SAVED,
        T.CANCEL_ACKNOWLEDGED,
        T.COMMAND_DELIVERED,
    }
)
VERIFIER_SAYS = frozenset({T.VERIFICATION_STARTED, T.AGENT_OUTPUT})
OPERATOR_SAYS = frozenset(
    {
        T.APPROVAL_REQUESTED,
        T.APPROVAL_DECIDED,
        T.ATTEMPT_ENDED,
        T.SANDBOX_PLACED,
        T.CANCEL_REQUESTED,
        T.CANCEL_PROPAGATED,
        T.CANCEL_ACKNOWLEDGED,
        T.CANCEL_QUIESCED,
        T.CANCEL_RECONCILED,
        T.EFFECT_RECONCILED,
        T.PAUSE_REQUESTED,
        T.PAUSED,
        T.RESUME_REQUESTED,
        T.RESUMED,
        T.LIMITS_RAISED,
        T.CHILD_MADE,
        T.CHILDREN_ENDING,
        T.RUN_SUCCEEDED,
        T.RUN_FAILED,
        T.RUN_CANCELLED,
    }
)
CONTENT_TYPES = frozenset(
    {
        T.TOOL_REQUEST,
        T.TOOL_RESPONSE,
        T.CONTEXT_COMPACTED,
        T.COMPLETION_CHECKED,
        T.CONTINUATION_DECIDED,
        T.AGENT_OUTPUT,
    }
)
"""Their payload is what people, models and tools wrote: it goes to the blob store whole."""

MEASURES = (
    "tool",
    "name",
    "status",
    "ok",
    "exit_code",
    "timed_out",
    "truncated",
    "duration_ms",
    "bytes",
    "size",
    "stream",
    "iteration",
    "index",
    "stage",
    "tokens_before",
    "tokens_after",
    "context_hash",
    "decision",
    "kind",
    "round",
)
"""Fields of such payloads that say nothing of the content and are kept in the record as well."""

MAX_MEASURE = 256


def refuse_foreign(records: Sequence[ReportedRecord], allowed: frozenset[RecordType], who: str) -> None:
    """Raise Forbidden for a type that this reporter has no say in."""
    for record in records:
        if record.type not in allowed:
            raise Forbidden(f"a {who} can't report {record.type[:64]}; it may report: {', '.join(sorted(allowed))}")


def says(role: str) -> frozenset[RecordType]:
    """The types that a sandbox of this role may report."""
    return RUNNER_SAYS if role == Role.RUNNER else VERIFIER_SAYS


def scoped_id(epoch: int, record_id: str) -> str:
    """The id of a record that a sandbox of that epoch reported; a long one is hashed."""
    scoped = f"r{epoch}:{record_id}"
    if len(scoped) <= MAX_ID:
        return scoped
    return f"r{epoch}:{hashlib.sha256(record_id.encode()).hexdigest()}"


async def sandbox_drafts(records: Sequence[ReportedRecord], run: Run, epoch: int, blobs: BlobStore) -> list[Draft]:
    """Drafts of what a sandbox reported, their content durable in the blob store already."""
    return [await _reported(record, run, epoch, blobs) for record in records]


async def _reported(record: ReportedRecord, run: Run, epoch: int, blobs: BlobStore) -> Draft:
    content = record.type in CONTENT_TYPES
    draft = Draft(
        record_id=scoped_id(epoch, record.record_id),
        type=record.type,
        recorded_at=record.recorded_at,
        source=Source.RUNNER,
        assurance=Assurance.REPORTED,
        payload=record.payload,
        attempt=run.state.attempt or None,
        turn=record.turn,
        step=record.step,
        tool_call_id=record.tool_call_id,
        request_id=record.request_id,
        privacy=Privacy.CONTENT if content else Privacy.METADATA,
        retention=Retention.ERASABLE if content and record.payload else Retention.JOURNAL,
    )
    return await externalise(draft, blobs, run.tenant, _measures(record.payload) if content else ())


def _measures(payload: Mapping[str, Any]) -> list[str]:
    """The measures in this payload that are small and plain."""
    return [
        name
        for name in MEASURES
        if isinstance(value := payload.get(name), bool | int | str)
        and (not isinstance(value, str) or len(value) <= MAX_MEASURE)
    ]


def operator_drafts(records: Sequence[ReportedRecord]) -> list[Draft]:
    """Drafts of facts that the operator saw in the cluster."""
    return [
        Draft(
            record_id=record.record_id,
            type=record.type,
            recorded_at=record.recorded_at,
            source=Source.OPERATOR,
            assurance=Assurance.OBSERVED,
            payload=record.payload,
        )
        for record in records
    ]


def bounded(records: Sequence[ReportedRecord], limit: int) -> None:
    """Raise TooLarge where one report holds more records than one transaction should."""
    if len(records) > limit:
        raise TooLarge(f"at most {limit} records in one report, these are {len(records)}")
