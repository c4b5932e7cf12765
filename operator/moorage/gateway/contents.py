"""What a run's model was asked and answered, kept so that a recovery asks nothing twice (R2).

Where its tenant has it captured, it is content like any other. Else it is encrypted, no record needs it, and nobody but
this room reads it: it goes with the orphans once no recovery can ask for it (T5, J8).
"""

from __future__ import annotations

from secrets import token_bytes

from moorage.core.journal.ciphers import NONCE_BYTES, ContentKeys, NotDecrypted
from moorage.core.journal.record import BlobRef, Privacy, Retention
from moorage.gateway.facts import Facts
from moorage.store.blobs import BlobStore
from moorage.store.errors import BlobCorrupted, BlobMissing

NO_KEYS = ContentKeys(())


class ContentLost(Exception):
    """It was erased, is damaged, or its key is gone."""


class Contents:
    """One object per process. `keys` None: nothing is encrypted (the store is the user's own)."""

    def __init__(self, blobs: BlobStore, keys: ContentKeys | None) -> None:
        self._blobs, self._keys = blobs, keys

    def readable(self, *, captured: bool) -> bool:
        """Whether people can read what is kept."""
        return captured or self._keys is None

    async def keep(self, tenant: str, content: bytes, *, captured: bool) -> BlobRef:
        """Make it durable before the record that names it. Raise as the blob store does."""
        if self._keys is None or captured:
            return await self._blobs.put(tenant, content, Privacy.CONTENT, Retention.ERASABLE)
        held = self._keys.encrypt(tenant, content, token_bytes(NONCE_BYTES))
        return await self._blobs.put(tenant, held, Privacy.CONTENT, Retention.REPLAY)

    async def read(self, tenant: str, ref: BlobRef) -> bytes:
        """What was kept. Raise ContentLost, StoreUnavailable."""
        try:
            held = await self._blobs.get(tenant, ref)
            keys = self._keys or NO_KEYS
            return keys.decrypt(tenant, held) if ref.retention == Retention.REPLAY else held
        except (BlobMissing, BlobCorrupted, NotDecrypted) as error:
            raise ContentLost(str(error)) from None


def replayable(facts: Facts) -> set[str]:
    """The SHA-256 of all that a recovery of this run may ask for."""
    questions = [*facts.asked.values(), *(answer.question for answer in facts.answers.values())]
    refs = [*(question.content for question in questions), *(answer.content for answer in facts.answers.values())]
    return {ref.sha256 for ref in refs if ref is not None}
