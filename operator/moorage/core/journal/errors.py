"""What the journal refuses. Nothing was written or changed when one of these is raised."""

from __future__ import annotations


class JournalError(ValueError):
    """Base of all refusals of this room."""


class NotCanonical(JournalError):
    """The value has no canonical JSON form (RFC 8785); the message says where and what to give instead."""


class InvalidDraft(JournalError):
    """A draft's field is outside its bounds."""


class PayloadTooLarge(JournalError):
    """J8: a payload over the inline limit, or erasable content inline. Externalise it to the blob store first."""


class Malformed(JournalError):
    """Stored bytes are not a record."""


class UnknownCritical(JournalError):
    """J10: a record of a critical type that this version doesn't know. Read the journal with a newer version."""

    def __init__(self, offset: int, record_type: str) -> None:
        self.offset, self.record_type = offset, record_type
        super().__init__(
            f"record {offset} has the critical type {record_type}, which this version doesn't know: "
            "use a version of moorage that does"
        )


class JournalPruned(JournalError):
    """J7: the retention of this journal is over."""

    def __init__(self, run_uid: str, last: int) -> None:
        super().__init__(f"the journal of run {run_uid}, records 0 to {last}, was pruned: its retention is over")


class JournalCorrupted(JournalError):
    """J5: the chain is broken. Recovery is refused; nothing starts afresh."""

    def __init__(self, offset: int, record_id: str | None, why: str) -> None:
        self.offset, self.record_id, self.why = offset, record_id, why
        super().__init__(
            f"the journal is corrupted at offset {offset} (record {record_id or 'unreadable'}): {why}. "
            "Restore the store from a backup, or let `moorage repair` begin a new generation of it without what is bad"
        )
