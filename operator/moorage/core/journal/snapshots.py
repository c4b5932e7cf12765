"""P1: a snapshot is an optimisation. It is used where it fits the chain, else ignored by name; nothing depends on one.

It is bound to a place (offset and the chain's hash there), to the reducer that made it, and by a signature to the
gateway: whoever may write the database can't make a run believe a state that its journal doesn't lead to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from moorage.core.journal.chain import ChainVerifier, Head
from moorage.core.journal.errors import Malformed
from moorage.core.journal.record import RecordType, Stored, decode


class Misfit(StrEnum):
    """Why a snapshot is ignored."""

    REDUCER_VERSION = "reducer-version"  # another version of the reducer made it
    SCHEMA_VERSION = "schema-version"
    BEYOND_HEAD = "beyond-head"  # of a place that the journal doesn't have, or has no longer
    CHAIN = "chain"  # the record there is another one
    STATE_HASH = "state-hash"  # its state isn't the one that was taken
    SIGNATURE = "signature"  # no gateway with this key took it
    UNREADABLE = "unreadable"  # its state has another shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run at `source_offset`, as plain JSON; `source_hash` is the chain's hash there.

    `signature` is the gateway's word for `statement`.
    """

    run_uid: str
    source_offset: int
    source_hash: str
    schema_version: int
    reducer_version: int
    epoch: int
    state: Mapping[str, Any]
    state_hash: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Grown:
    """What a journal has grown by since the last snapshot."""

    records: int = 0
    size: int = 0

    def by(self, records: int, size: int) -> Grown:
        """And so much more; size in bytes."""
        return Grown(self.records + records, self.size + size)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a recovery may have to read again: records, and bytes of them."""

    records: int
    size: int


HANDOFF_SHARE = 16
"""Before a handoff a snapshot is worth its write at a sixteenth of the limits."""


def due(grown: Grown, kinds: Collection[str], limits: Limits) -> bool:
    """Whether to take one after records of these kinds: at a turn's end, at a handoff, or where no turn ends."""
    if RecordType.EPOCH_RAISED in kinds:
        return _reached(grown, limits, HANDOFF_SHARE)
    if RecordType.ITERATION_COMPLETE in kinds:
        return _reached(grown, limits, 1)
    return grown.records >= 2 * limits.records or grown.size >= 2 * limits.size


def _reached(grown: Grown, limits: Limits, share: int) -> bool:
    return grown.records * share >= limits.records or grown.size * share >= limits.size


def statement(snapshot: Snapshot) -> Mapping[str, Any]:
    """What its signature is over."""
    return {
        "run_uid": snapshot.run_uid,
        "offset": snapshot.source_offset,
        "hash": snapshot.source_hash,
        "reducer_version": snapshot.reducer_version,
        "state_hash": snapshot.state_hash,
    }


def stands_at(snapshot: Snapshot, anchor: Stored | None) -> bool:
    """Whether the record there, by its own bytes, is the one that the snapshot was taken at."""
    if anchor is None or anchor.hash != snapshot.source_hash:
        return False
    try:
        record = decode(anchor)
    except Malformed:
        return False
    before = Head(snapshot.source_offset - 1, record.prev_hash)
    return ChainVerifier(before, snapshot.run_uid).feed(anchor) is None
