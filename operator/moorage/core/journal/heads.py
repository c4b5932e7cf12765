"""J6: the head of a journal, signed, so that whoever may write the database can't rewrite history unseen.

What is signed names run, offset, hash and time; the signature is one word that fits a status field:

    ed25519:<key id>:<time of the head's record, ms>:<signature in base64>

The time is the record's own, so that a head has one signature only: signing again changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from moorage.core.journal.canonical import MAX_SAFE_INTEGER, canonical

SCHEME = "ed25519"
KEY_ID_DIGITS = 16


class HeadRefused(ValueError):
    """A signature that doesn't hold, or a key that is none; the message says why."""


@dataclass(frozen=True, slots=True)
class SignedHead:
    """Where a journal ended, and the gateway's word for it."""

    run_uid: str
    offset: int
    hash: str
    signature: str


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """The public half: checks what a gateway signed. `id` is the beginning of its SHA-256."""

    public: Ed25519PublicKey

    @classmethod
    def read(cls, pem: bytes) -> VerifyingKey:
        """Raise HeadRefused for what is no ed25519 public key in PEM."""
        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise HeadRefused("the key can't be read: give an ed25519 public key in PEM") from None
        if not isinstance(key, Ed25519PublicKey):
            raise HeadRefused("the key is no ed25519 public key")
        return cls(key)

    @property
    def pem(self) -> bytes:
        """The key as a file."""
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def id(self) -> str:
        """What signatures name it by."""
        raw = self.public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        return hashlib.sha256(raw).hexdigest()[:KEY_ID_DIGITS]

    def check(self, head: SignedHead) -> None:
        """Raise HeadRefused unless this key signed that head."""
        said = {"run_uid": head.run_uid, "offset": head.offset, "hash": head.hash}
        self.check_said("head", said, head.signature, of=f"the head at offset {head.offset}")

    def check_said(self, kind: str, said: Mapping[str, Any], signature: str, *, of: str) -> None:
        """Raise HeadRefused unless this key signed that statement; `of` names it in the refusal."""
        scheme, key, at, signed = _parse(signature)
        if scheme != SCHEME:
            raise HeadRefused(f"{of} is signed by {scheme[:32]}, which this version doesn't know")
        if key != self.id:
            raise HeadRefused(f"{of} is signed by key {key[:64]}, this is key {self.id}")
        try:
            self.public.verify(signed, _message(kind, said, at))
        except InvalidSignature:
            raise HeadRefused(f"the signature of {of} doesn't hold") from None


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A gateway's own key."""

    private: Ed25519PrivateKey

    @classmethod
    def new(cls) -> SigningKey:
        """A fresh key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, pem: bytes) -> SigningKey:
        """Raise HeadRefused for what is no ed25519 private key in PEM, without a password."""
        try:
            key = load_pem_private_key(pem, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise HeadRefused("the key can't be read: give an ed25519 private key in PEM, without a password") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise HeadRefused("the key is no ed25519 private key")
        return cls(key)

    @property
    def pem(self) -> bytes:
        """The key as a file, for nobody else to read."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def verifying(self) -> VerifyingKey:
        """The half that everybody may know."""
        return VerifyingKey(self.private.public_key())

    def sign(self, run_uid: str, offset: int, digest: str, at: int) -> SignedHead:
        """Sign the head of a journal; `at` is its last record's time (ms)."""
        said = {"run_uid": run_uid, "offset": offset, "hash": digest}
        return SignedHead(run_uid, offset, digest, self.say("head", said, at))

    def say(self, kind: str, said: Mapping[str, Any], at: int) -> str:
        """The signature of a statement of that kind, made at that time (ms)."""
        signed = base64.b64encode(self.private.sign(_message(kind, said, at))).decode()
        return f"{SCHEME}:{self.verifying.id}:{at}:{signed}"


def key_of(signature: str) -> str:
    """Id of the key that made it. Raise HeadRefused."""
    return _parse(signature)[1]


def _parse(signature: str) -> tuple[str, str, int, bytes]:
    parts = signature.split(":")
    try:
        scheme, key, at, signed = parts
        parsed = scheme, key, int(at), base64.b64decode(signed, validate=True)
    except (ValueError, binascii.Error):
        raise HeadRefused("the signature can't be read") from None
    if not 0 <= parsed[2] <= MAX_SAFE_INTEGER:
        raise HeadRefused("the signature names no time")
    return parsed


def _message(kind: str, said: Mapping[str, Any], at: int) -> bytes:
    """No statement of one kind has the bytes of one of another."""
    return canonical({f"moorage_{kind}": 1, **said, "at": at})
