"""P3: past a threshold a journal goes on in a new segment, which says what it carries over and what it follows.

    SEGMENT_STARTED n: first offset, hash and last offset of segment n-1, hash of the state that is carried over
                       attachment `carried`: that state and the facts beside it, as a snapshot has them

The chain runs through (J4), and offsets go on, so that whoever reads the whole journal needn't know of segments. The
old segment is read-only as soon as the new one has begun: an append has one offset only, the head's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage.core.journal.record import Record, RecordType

CARRIED = "carried"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a segment follows, and the state that it carries over, by its hash and the reducer that made it."""

    segment: int
    first: int
    last: int
    hash: str
    state_hash: str
    reducer_version: int

    def payload(self) -> dict[str, Any]:
        """What SEGMENT_STARTED says."""
        previous = {"segment": self.segment - 1, "first": self.first, "last": self.last, "hash": self.hash}
        carried = {"state_hash": self.state_hash, "reducer_version": self.reducer_version}
        return {"segment": self.segment, "previous": previous, **carried}


def lineage_of(record: Record) -> Lineage | None:
    """What a record says that it follows; None where it begins no segment. Raise KeyError, TypeError for others."""
    if record.type != RecordType.SEGMENT_STARTED:
        return None
    said: Mapping[str, Any] = record.payload or {}
    previous = said["previous"]
    return Lineage(
        said["segment"],
        previous["first"],
        previous["last"],
        previous["hash"],
        said["state_hash"],
        said["reducer_version"],
    )
