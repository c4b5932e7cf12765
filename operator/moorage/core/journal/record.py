"""J1: the record and what a writer supplies of it.

A `Draft` becomes a `Record` when the store gives it its place: sequence number, epoch and hashes. Both are plain frozen
data. Times are integer milliseconds since the epoch (UTC) and are passed in; they never decide anything (J2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from moorage.core.journal.errors import Malformed, UnknownCritical

SCHEMA_VERSION = 1


class RecordType(StrEnum):
    """J9: every type that this version writes."""

    RUN_ADMITTED = "RUN_ADMITTED"
    SESSION_JOINED = "SESSION_JOINED"
    EPOCH_RAISED = "EPOCH_RAISED"
    POD_REGISTERED = "POD_REGISTERED"
    SANDBOX_PLACED = "SANDBOX_PLACED"
    ATTEMPT_STARTED = "ATTEMPT_STARTED"
    BASE_FIXED = "BASE_FIXED"
    WORKSPACE_READY = "WORKSPACE_READY"
    AGENT_STARTED = "AGENT_STARTED"
    MODEL_REQUEST = "MODEL_REQUEST"
    MODEL_RESPONSE = "MODEL_RESPONSE"
    TOOL_REQUEST = "TOOL_REQUEST"
    TOOL_RESPONSE = "TOOL_RESPONSE"
    CONTEXT_COMPACTED = "CONTEXT_COMPACTED"
    ITERATION_COMPLETE = "ITERATION_COMPLETE"
    COMPLETION_CHECKED = "COMPLETION_CHECKED"
    CONTINUATION_DECIDED = "CONTINUATION_DECIDED"
    CHECKPOINT = "CHECKPOINT"
    AGENT_OUTPUT = "AGENT_OUTPUT"
    AGENT_FINISHED = "AGENT_FINISHED"
    RESULT_PROPOSED = "RESULT_PROPOSED"
    DRIFT_SAVED = "DRIFT_SAVED"
    ATTEMPT_ENDED = "ATTEMPT_ENDED"
    VERIFICATION_STARTED = "VERIFICATION_STARTED"
    VERIFICATION_RESULT = "VERIFICATION_RESULT"
    EFFECT_INTENT = "EFFECT_INTENT"
    EFFECT_DISPATCHED = "EFFECT_DISPATCHED"
    EFFECT_RECEIPT = "EFFECT_RECEIPT"
    EFFECT_RECONCILED = "EFFECT_RECONCILED"
    EFFECT_DEFERRED = "EFFECT_DEFERRED"
    EFFECT_ADOPTED = "EFFECT_ADOPTED"
    COMMAND_ACCEPTED = "COMMAND_ACCEPTED"
    COMMAND_REJECTED = "COMMAND_REJECTED"
    COMMAND_DELIVERED = "COMMAND_DELIVERED"
    APPROVAL_REQUESTED = "APPROVAL_REQUESTED"
    APPROVAL_DECIDED = "APPROVAL_DECIDED"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    CANCEL_PROPAGATED = "CANCEL_PROPAGATED"
    CANCEL_ACKNOWLEDGED = "CANCEL_ACKNOWLEDGED"
    CANCEL_QUIESCED = "CANCEL_QUIESCED"
    CANCEL_RECONCILED = "CANCEL_RECONCILED"
    PAUSE_REQUESTED = "PAUSE_REQUESTED"
    PAUSED = "PAUSED"
    RESUME_REQUESTED = "RESUME_REQUESTED"
    RESUMED = "RESUMED"
    LIMITS_RAISED = "LIMITS_RAISED"
    CHILD_REQUESTED = "CHILD_REQUESTED"
    CHILD_MADE = "CHILD_MADE"
    CHILD_STARTED = "CHILD_STARTED"
    CHILD_ENDED = "CHILD_ENDED"
    CHILDREN_ENDING = "CHILDREN_ENDING"
    CONSTRAINT_EVALUATED = "CONSTRAINT_EVALUATED"
    FENCE_REFUSED = "FENCE_REFUSED"
    BUDGET_SETTLED = "BUDGET_SETTLED"
    RUN_SUCCEEDED = "RUN_SUCCEEDED"
    RUN_FAILED = "RUN_FAILED"
    RUN_CANCELLED = "RUN_CANCELLED"
    SEGMENT_STARTED = "SEGMENT_STARTED"
    JOURNAL_REPAIRED = "JOURNAL_REPAIRED"
    TOMBSTONE = "TOMBSTONE"


class Criticality(StrEnum):
    """J10: whether a reader that doesn't know a type may go on. Each record carries its own."""

    CRITICAL = "critical"
    OPTIONAL = "optional"


OPTIONAL_TYPES = frozenset(
    {
        RecordType.AGENT_OUTPUT,
        RecordType.BASE_FIXED,
        RecordType.COMPLETION_CHECKED,
        RecordType.CONTEXT_COMPACTED,
        RecordType.CONTINUATION_DECIDED,
        RecordType.EFFECT_ADOPTED,
        RecordType.FENCE_REFUSED,
        RecordType.SANDBOX_PLACED,
        RecordType.SEGMENT_STARTED,
    }
)
"""Types that only inform: leaving one out changes no state of a run."""

KNOWN_TYPES = frozenset(t.value for t in RecordType)


class Source(StrEnum):
    """Which process wrote the record."""

    GATEWAY = "gateway"
    RUNNER = "runner"
    OPERATOR = "operator"


class Assurance(StrEnum):
    """V4: seen by a trusted process itself, or only told by an untrusted one."""

    OBSERVED = "observed"
    REPORTED = "reported"


class Privacy(StrEnum):
    """What a payload may hold, from least to most private."""

    METADATA = "metadata"  # ids, counts, hashes, times
    CONTENT = "content"  # what people, models and tools wrote
    PERSONAL = "personal"  # content about people


class Retention(StrEnum):
    """How long a payload is kept. Only blobs can be erased, so erasable content is never inline (J8)."""

    JOURNAL = "journal"  # as long as the record
    ERASABLE = "erasable"  # may be asked away earlier; the chain stays whole
    REPLAY = "replay"  # as long as a recovery may ask for it; no record needs it, and none but the gateway reads it


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Content in the blob store of the record's tenant, named by its SHA-256 in lower-case hex; `size` in bytes."""

    sha256: str
    size: int
    privacy: str = Privacy.METADATA
    retention: str = Retention.JOURNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What all records of one run have in common (O1, O3)."""

    tenant: str
    run_uid: str
    session_id: str
    workspace: str | None = None
    agent_id: str | None = None
    fire_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """The part of a record that its writer knows.

    `record_id` (1 to 128 characters, unique within the run) makes a repeated append harmless. `payload_ref` names the
    whole payload where it lies in the blob store; `payload` then holds only what was kept inline. `attachments` are
    further blobs by name (J8). Ids are those of O3, each where it applies.
    """

    record_id: str
    type: str
    recorded_at: int
    source: str
    assurance: str
    payload: Mapping[str, Any] | None = None
    payload_ref: BlobRef | None = None
    attachments: Mapping[str, BlobRef] | None = None
    attempt: int | None = None
    turn: int | None = None
    step: int | None = None
    request_id: str | None = None
    tool_call_id: str | None = None
    effect_id: str | None = None
    command_id: str | None = None
    causation_id: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    surface_id: str | None = None
    actor: str | None = None
    workspace_revision: str | None = None
    privacy: str = Privacy.METADATA
    retention: str = Retention.JOURNAL

    @property
    def blobs(self) -> tuple[BlobRef, ...]:
        """Every blob that this record needs."""
        first = (self.payload_ref,) if self.payload_ref else ()
        return (*first, *(ref for ref in (self.attachments or {}).values() if ref.retention != Retention.REPLAY))


@dataclass(frozen=True, kw_only=True)
class Draft(Fact):
    """A fact to be appended. `caused_at` is the logical time of its cause in another run's journal, if there is one."""

    caused_at: int = 0


@dataclass(frozen=True, kw_only=True)
class Record(Fact):
    """J1: a fact with its place in the journal of its run.

    `seq` counts from 0 without gaps; `logical_time` is a Lamport time, so that causes come before effects across runs
    too; `hash` is the chain's hash at this record (J4). Types that a newer version wrote stay as they are.
    """

    tenant: str
    run_uid: str
    session_id: str
    workspace: str | None = None
    agent_id: str | None = None
    fire_id: str | None = None
    epoch: int
    schema_version: int
    criticality: str
    seq: int
    logical_time: int
    prev_hash: str | None = None
    hash: str

    @property
    def known(self) -> bool:
        """Whether this version knows the type."""
        return self.type in KNOWN_TYPES


class Stored(NamedTuple):
    """A record as it is stored: the chain's hash at it, and its canonical bytes, which don't hold that hash."""

    hash: str
    body: bytes


CONTENT: Final = "content"
SEALED: Final = "sealed"
"""Attachments of what a model was asked or answered: as people read it, or encrypted. The last release, which decrypts
nothing, takes what lies under the first name as it is (R8).
"""


def content_of(record: Fact) -> BlobRef | None:
    """What was asked or answered by that record of a model's, where it was kept."""
    kept = record.attachments or {}
    return kept.get(CONTENT) or kept.get(SEALED)


def named_content(ref: BlobRef) -> Mapping[str, BlobRef]:
    """The attachment of that content."""
    return {SEALED if ref.retention == Retention.REPLAY else CONTENT: ref}


def criticality_of(record_type: str) -> Criticality:
    """Return what this version writes for a type: optional only where it is listed."""
    return Criticality.OPTIONAL if record_type in OPTIONAL_TYPES else Criticality.CRITICAL


def decode(stored: Stored) -> Record:
    """Return the record of stored bytes; fields of newer versions are left in the bytes. Raise Malformed."""
    try:
        raw = orjson.loads(stored.body)
    except orjson.JSONDecodeError as e:
        raise Malformed(f"not JSON: {e}") from e
    try:
        shape = _SHAPES.get(raw["type"])
    except (KeyError, TypeError):
        shape = None
    if shape is None or [*raw] != shape.names or [*map(type, raw.values())] != shape.kinds:
        raw, shape = _checked(raw)
    if shape.refs:
        _read_refs(raw)
    raw["hash"] = stored.hash
    # `__init__` would set 45 fields one by one, most of them to their default, which stand in the class already
    record = _new(Record)
    _set(record, "__dict__", raw)
    return record


class _Shape(NamedTuple):
    """The fields of a good record, in order, and their types; `refs`: whether any of them refers to blobs."""

    names: list[str]
    kinds: list[type]
    refs: bool


_SHAPES: dict[str, _Shape] = {}
"""Of the last good record of each known type: the next one mostly looks the same, and need not be judged by name."""


def _checked(raw: object) -> tuple[dict[str, Any], _Shape]:
    """The fields that this version knows, and their shape, which is remembered. Raise Malformed."""
    if not isinstance(raw, dict):
        raise Malformed("not a JSON object")
    known = {name: value for name, value in raw.items() if name in _KINDS}
    for name, value in known.items():
        if type(value) is not _KINDS[name]:
            raise Malformed(f"field {name} is not of type {_KINDS[name].__name__}")
    if not known.keys() >= _REQUIRED:
        raise Malformed(f"fields are missing: {', '.join(sorted(_REQUIRED - known.keys()))}")
    shape = _Shape([*known], [*map(type, known.values())], not _REFS.isdisjoint(known))
    if known["type"] in KNOWN_TYPES:
        _SHAPES[known["type"]] = shape
    return known, shape


def _read_refs(known: dict[str, Any]) -> None:
    """Put references in the place of what was parsed of them. Raise Malformed."""
    if "payload_ref" in known:
        known["payload_ref"] = _blob_ref(known["payload_ref"])
    if "attachments" in known:
        known["attachments"] = {name: _blob_ref(ref) for name, ref in known["attachments"].items()}


_new, _set = object.__new__, object.__setattr__


def readable(records: Iterable[Record]) -> Iterator[Record]:
    """J10: the records that this version understands; unknown optional ones are left out, UnknownCritical is raised."""
    for record in records:
        refuse_unknown_critical(record)
        if record.known:
            yield record


def refuse_unknown_critical(record: Record) -> None:
    """Raise UnknownCritical where going on without understanding the record would be wrong."""
    if not record.known and record.criticality != Criticality.OPTIONAL:
        raise UnknownCritical(record.seq, record.type)


_INTEGERS = {"recorded_at", "attempt", "turn", "step", "epoch", "schema_version", "seq", "logical_time"}
_REFS = frozenset({"payload_ref", "attachments"})
_OBJECTS = {"payload"} | _REFS
_KINDS: dict[str, type] = {
    f.name: int if f.name in _INTEGERS else dict if f.name in _OBJECTS else str
    for f in fields(Record)
    if f.name != "hash"
}
_REQUIRED = frozenset(f.name for f in fields(Record) if f.default is MISSING) - {"hash"}


def _blob_ref(raw: object) -> BlobRef:
    if not isinstance(raw, dict) or not isinstance(raw.get("sha256"), str) or type(raw.get("size")) is not int:
        raise Malformed("a blob reference needs sha256 and size")
    return BlobRef(**{f.name: raw[f.name] for f in fields(BlobRef) if f.name in raw})
