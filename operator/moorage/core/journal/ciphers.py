"""Content that is kept for a recovery alone: encrypted at rest, one tenant's never read as another's.

    MOORAGE1 ‖ key id (8 bytes) ‖ nonce (12) ‖ AES-256-GCM(content; associated data: the tenant)

A file of keys has one to a line, 32 bytes in base64. The first encrypts, all of them decrypt: a new key is put before
the others, and an old one goes once nothing is left that it encrypted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MAGIC: Final = b"MOORAGE1"
KEY_BYTES: Final = 32
ID_BYTES: Final = 8
NONCE_BYTES: Final = 12
_HEAD: Final = len(MAGIC) + ID_BYTES + NONCE_BYTES


class KeysRefused(ValueError):
    """A file that holds no keys; the message says which line is wrong, and never what it says."""


class NotDecrypted(Exception):
    """The key is not there any more, or the content isn't what was encrypted for this tenant."""


@dataclass(frozen=True)
class _Key:
    id: bytes
    cipher: AESGCM

    def __repr__(self) -> str:
        return f"_Key({self.id.hex()})"


@dataclass(frozen=True)
class ContentKeys:
    """The keys of a store, the one that encrypts first. Its repr has ids alone."""

    keys: tuple[_Key, ...]

    @classmethod
    def of(cls, secrets: Sequence[bytes]) -> ContentKeys:
        """Of at least one secret of 32 bytes."""
        return cls(tuple(_Key(hashlib.sha256(MAGIC + each).digest()[:ID_BYTES], AESGCM(each)) for each in secrets))

    @classmethod
    def read(cls, text: bytes) -> ContentKeys:
        """Raise KeysRefused."""
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        found = [_secret(number, line) for number, line in lines if line and not line.startswith(b"#")]
        if not found:
            raise KeysRefused("no key is in it: give 32 random bytes in base64, one key to a line")
        return cls.of(found)

    @classmethod
    def derived(cls, secret: bytes) -> ContentKeys:
        """One key that follows from another secret."""
        return cls.of([HKDF(SHA256(), KEY_BYTES, salt=None, info=b"moorage content").derive(secret)])

    def before(self, older: ContentKeys) -> ContentKeys:
        """These encrypt; those decrypt, too."""
        return ContentKeys((*self.keys, *older.keys))

    def encrypt(self, tenant: str, content: bytes, nonce: bytes) -> bytes:
        """`nonce`: twelve bytes, drawn anew each time."""
        key = self.keys[0]
        return MAGIC + key.id + nonce + key.cipher.encrypt(nonce, content, tenant.encode())

    def decrypt(self, tenant: str, held: bytes) -> bytes:
        """What `encrypt` was given. Raise NotDecrypted."""
        key_id, nonce = held[len(MAGIC) : len(MAGIC) + ID_BYTES], held[_HEAD - NONCE_BYTES : _HEAD]
        key = next((key for key in self.keys if key.id == key_id), None)
        if not held.startswith(MAGIC) or key is None:
            raise NotDecrypted("it was encrypted under a key that isn't there")
        try:
            return key.cipher.decrypt(nonce, held[_HEAD:], tenant.encode())
        except (InvalidTag, ValueError):
            raise NotDecrypted("it isn't what was encrypted for this tenant") from None


def _secret(number: int, line: bytes) -> bytes:
    try:
        secret = base64.b64decode(line, validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise KeysRefused(f"line {number} is no key: give 32 random bytes in base64")
    return secret
