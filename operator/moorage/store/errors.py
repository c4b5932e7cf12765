"""What a store refuses. When one of these is raised nothing was written."""

from __future__ import annotations


class StoreError(Exception):
    """Base of all refusals of a store."""


class UnknownRun(StoreError):
    """No execution of that run was persisted."""

    def __init__(self, run_uid: str) -> None:
        super().__init__(f"run {run_uid} is not known here: persist it first")


class UnknownSession(StoreError):
    """No session of that id in that tenant."""

    def __init__(self, tenant: str, session_id: str) -> None:
        super().__init__(f"session {session_id} of {tenant} is not known here: open it first")


class SpecConflict(StoreError):
    """The run was persisted before with another resolved spec (O6)."""

    def __init__(self, run_uid: str) -> None:
        super().__init__(f"run {run_uid} was admitted with another spec, which later edits don't reach: make a new run")


class SpecUnreadable(StoreError):
    """R8: the run was admitted by a version whose spec this one doesn't understand. `why` names the fields."""

    def __init__(self, run_uid: str, why: str) -> None:
        self.run_uid, self.why = run_uid, why
        do = "let the version that admitted it bring it to its end, or delete the run: its journal stays as it is"
        super().__init__(f"this version can't read the spec that run {run_uid} was admitted with ({why}): {do}")


class Fenced(StoreError):
    """F3: the writer's epoch is not the owner's. `current` is the epoch that commits."""

    def __init__(self, run_uid: str, given: int, current: int) -> None:
        self.given, self.current = given, current
        what = "another owner took over: stop" if given < current else "raise the fence first"
        super().__init__(f"run {run_uid} is at epoch {current}, the writer's is {given}: {what}")


class OffsetConflict(StoreError):
    """J3: the journal's head is not where the writer thinks."""

    def __init__(self, run_uid: str, expected: int, current: int) -> None:
        self.expected, self.current = expected, current
        super().__init__(f"run {run_uid} is at offset {current}, the writer expected {expected}: read on and try again")


class DuplicateMismatch(StoreError):
    """A record id was used before for something else."""

    def __init__(self, run_uid: str, record_id: str) -> None:
        self.record_id = record_id
        super().__init__(f"record {record_id} of run {run_uid} was appended before with other content: give a new id")


class RunSealed(StoreError):
    """The run was deleted: its journal is read-only until its retention ends."""

    def __init__(self, run_uid: str) -> None:
        super().__init__(f"run {run_uid} was deleted: its journal takes no more records")


class VersionConflict(StoreError):
    """S4: the row changed since it was read."""

    def __init__(self, what: str, expected: int, current: int) -> None:
        self.expected, self.current = expected, current
        super().__init__(f"{what} is at version {current}, expected {expected}: read it again")


class PushConflict(StoreError):
    """Another gateway has kept a push of the run meanwhile."""

    def __init__(self, run_uid: str, number: int, following: int) -> None:
        super().__init__(
            f"push {number} of run {run_uid} was to be kept, {following} is the next: read on and try again"
        )


class PodConflict(StoreError):
    """A pod UID was registered before as something else (F2)."""

    def __init__(self, pod_uid: str) -> None:
        super().__init__(f"pod {pod_uid} was registered before with another run, epoch or role")


class SnapshotRefused(StoreError):
    """A snapshot of a place that the journal doesn't have."""

    def __init__(self, run_uid: str, offset: int) -> None:
        super().__init__(
            f"run {run_uid} has no record {offset} with that hash: take the snapshot from the journal as it is"
        )


class NothingToRepair(StoreError):
    """A new generation would drop nothing, or follow a record that isn't there."""

    def __init__(self, run_uid: str) -> None:
        super().__init__(f"the journal of run {run_uid} is not broken there: look at it again with `moorage verify`")


class NotPrunable(StoreError):
    """J7: retention removes whole sealed journals, as they ended, and nothing else."""

    def __init__(self, run_uid: str) -> None:
        super().__init__(f"the journal of run {run_uid} isn't sealed, or ended elsewhere: only sealed ones are pruned")


class StoreBusy(StoreError):
    """Another process holds the database. Nothing was written; try again."""


class StoreUnavailable(StoreError):
    """The database can't be read or written (disk full, file gone, I/O error). Nothing was acknowledged."""


class StoreFull(StoreUnavailable):
    """No space is left for what is to be written. Nothing of it was, and reading goes on."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the disk of {path} is full: make room there, and what waits goes on")


class BucketMissing(StoreUnavailable):
    """Blobs are to be kept in a bucket that isn't there."""

    def __init__(self, bucket: str, where: str) -> None:
        super().__init__(f"there is no bucket {bucket} at {where}: make it, or correct store.blobs.s3.bucket")


class BucketRefused(StoreUnavailable):
    """The bucket is not ours to use. `code` is what S3 calls it."""

    def __init__(self, bucket: str, where: str, code: str) -> None:
        do = "check the keys in the Secret of store.blobs.s3.secretRef; they must allow list, get, put and delete there"
        super().__init__(f"bucket {bucket} at {where} refuses us ({code}): {do}")


class AuthorityUnreadable(StoreError):
    """What is given as the bucket's authority is no certificate."""

    def __init__(self) -> None:
        do = "put the authority's certificates in PEM into it, under the key that is named there"
        super().__init__(f"the Secret of store.blobs.s3.caSecretRef holds no certificate that can be read: {do}")


class NotDurable(StoreError):
    """J7: the database would acknowledge what a power cut could take back."""


class SchemaMismatch(StoreError):
    """The database's migrations are not those of this version."""


class SigningKeyMismatch(StoreError):
    """J6: the gateways of one store sign by one key."""

    def __init__(self, known: str, given: str) -> None:
        super().__init__(
            f"the journals of this store are signed by key {known}, this gateway has key {given}: give all gateways of "
            "the store the one head key (docs/operations.md says how to change it)"
        )


class BlobMissing(StoreError):
    """A dangling reference, or another tenant's."""

    def __init__(self, tenant: str, sha256: str) -> None:
        super().__init__(f"{tenant} has no blob {sha256[:64]}: it was erased or never stored")


class BlobCorrupted(StoreError):
    """Content that isn't what its name says."""

    def __init__(self, tenant: str, sha256: str) -> None:
        super().__init__(f"blob {sha256} of {tenant} doesn't match its hash: restore it from a backup")
