"""What a run's model was asked and answered, kept so that a recovery asks nothing twice (R2).

Where its tenant has it captured, it is content like any other. Else it is encrypted, no record needs it, and nobody but
this room reads it: it goes with the orphans once no recovery can ask for it (T5, J8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from secrets import token_bytes
from typing import Any

from moorage.core.journal.ciphers import NONCE_BYTES, ContentKeys, NotDecrypted
from moorage.core.journal.record import BlobRef, Privacy, Retention
from moorage.gateway.facts import Facts
from moorage.store.blobs import BlobStore, reference
from moorage.store.errors import BlobCorrupted, BlobMissing, StoreUnavailable

NO_KEYS = ContentKeys(())
Note = Callable[[BlobRef | None], Awaitable[None]]


class ContentLost(Exception):
    """It was erased, is damaged, or its key is gone."""


class Contents:
    """One object per process. `keys` None: nothing is encrypted (the store is the user's own)."""

    def __init__(self, blobs: BlobStore, keys: ContentKeys | None, log: Any) -> None:
        self._blobs, self._keys, self._log = blobs, keys, log

    def readable(self, *, captured: bool) -> bool:
        """Whether people can read what is kept."""
        return captured or self._keys is None

    async def noted(self, tenant: str, content: bytes, note: Note, *, captured: bool, paid: bool = False) -> None:
        """`note` appends the record that names it. What people read is durable before that is (J8). What only a
        recovery reads is written at the same time, and may fail to be: then the recovery asks the model again. `paid`:
        it is an answer, noted also where nobody can keep it. Raise what `note` raises, and StoreUnavailable where
        people's content that isn't paid for can't be kept; nothing is noted then.
        """
        if not content:
            await note(None)
        elif self._keys is None or captured:
            await note(await self._readably(tenant, content, paid=paid))
        else:
            held = self._keys.encrypt(tenant, content, token_bytes(NONCE_BYTES))
            await _both(note(reference(held, Privacy.CONTENT, Retention.REPLAY)), self._kept(tenant, held))

    async def _readably(self, tenant: str, content: bytes, *, paid: bool) -> BlobRef | None:
        try:
            return await self._blobs.put(tenant, content, Privacy.CONTENT, Retention.ERASABLE)
        except StoreUnavailable as error:
            if not paid:
                raise
            self._missed(tenant, content, error)
            return None

    async def _kept(self, tenant: str, held: bytes) -> None:
        """For a recovery. What is under way may have left and be paid for: a store that is away must not end it."""
        try:
            await self._blobs.put(tenant, held, Privacy.CONTENT, Retention.REPLAY)
        except StoreUnavailable as error:
            self._missed(tenant, held, error)

    def _missed(self, tenant: str, content: bytes, error: StoreUnavailable) -> None:
        self._log.warning("answer_not_kept", tenant=tenant, bytes=len(content), why=str(error))

    async def read(self, tenant: str, ref: BlobRef) -> bytes:
        """What was kept. Raise ContentLost, StoreUnavailable."""
        try:
            held = await self._blobs.get(tenant, ref)
            keys = self._keys or NO_KEYS
            return keys.decrypt(tenant, held) if ref.retention == Retention.REPLAY else held
        except (BlobMissing, BlobCorrupted, NotDecrypted) as error:
            raise ContentLost(str(error)) from None


async def _both(*work: Awaitable[Any]) -> None:
    """Neither goes on by itself once this has ended."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def told_last(facts: Facts) -> set[str]:
    """The SHA-256 of what the model was asked and answered last."""
    last = facts.last
    return {ref.sha256 for ref in (last.question.content, last.content) if ref is not None} if last else set()


def replayable(facts: Facts, *, recalled: bool = False) -> set[str]:
    """The SHA-256 of all that a recovery of this run may ask for. `recalled`: the conversation is in no checkpoint, so
    that the next run of its session may ask for its end.
    """
    answers = facts.answers.values()
    questions = [*facts.asked.values(), *(answer.question for answer in answers)]
    refs = [*(question.content for question in questions), *(answer.content for answer in answers)]
    return {ref.sha256 for ref in refs if ref is not None} | (told_last(facts) if recalled else set())
