"""Who is calling: the port, what a caller may be, and the adapter for runs on this machine.

A token tells an identity and nothing more. Which run, epoch and role a sandbox has was registered by the operator (F2),
and is looked up in the journal's state, never in the token.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from starlette.requests import HTTPConnection

from moorage.gateway.errors import Forbidden, Unauthenticated


class Kind(StrEnum):
    """The three kinds of callers."""

    OPERATOR = "operator"
    SANDBOX = "sandbox"
    READER = "reader"


@dataclass(frozen=True)
class Identity:
    """An authenticated caller. `pod_uid`, `pod_name` and `node` are known where the token is bound to a pod."""

    kind: Kind
    user: str
    groups: tuple[str, ...] = ()
    namespace: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    node: str | None = None


class Authenticator(Protocol):
    """Checks tokens. Raises Unauthenticated for a token that isn't valid, Unavailable when it can't be checked now."""

    async def authenticate(self, token: str) -> Identity:
        """Return who the token speaks for."""

    async def may_read(self, identity: Identity, namespace: str) -> bool:
        """Whether the caller may `get agentruns` in that namespace."""

    async def may_resolve(self, identity: Identity, namespace: str) -> bool:
        """Whether the caller may `update agentruns/effects` in that namespace."""


class StaticAuthenticator:
    """Tokens handed out by the process itself: local runs and tests. The mapping is the caller's and may grow."""

    def __init__(self, tokens: Mapping[str, Identity]) -> None:
        self._tokens = tokens

    async def authenticate(self, token: str) -> Identity:
        """Compare in constant time with each known token."""
        found = None
        for known, identity in list(self._tokens.items()):
            if hmac.compare_digest(known.encode(), token.encode()):
                found = identity
        if found is None:
            raise Unauthenticated("the token is not known here")
        return found

    async def may_read(self, identity: Identity, namespace: str) -> bool:
        """Readers see their own namespace; one without a namespace sees all (there is one user on this machine)."""
        return identity.kind is Kind.READER and identity.namespace in {None, namespace}

    async def may_resolve(self, identity: Identity, namespace: str) -> bool:  # noqa: ARG002  the port's signature
        """Only whoever may read all is the one user of this machine; readers of one namespace look and no more."""
        return identity.kind is Kind.READER and identity.namespace is None


def token_of(request: HTTPConnection) -> str:
    """The bearer token, or the password of basic authentication (git speaks no other); else Unauthenticated."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    if scheme.lower() == "basic":
        return _password(value)
    raise Unauthenticated(
        "send a token for the gateway as 'Authorization: Bearer …'", headers={"www-authenticate": "Bearer"}
    )


def _password(value: str) -> str:
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthenticated("the basic credentials can't be read") from None
    password = text.partition(":")[2]
    if not password:
        raise Unauthenticated("the token goes into the password of the basic credentials")
    return password


def require(identity: Identity, *kinds: Kind) -> Identity:
    """Return the identity where its kind is one of `kinds`, else Forbidden."""
    if identity.kind not in kinds:
        raise Forbidden(f"a {identity.kind} has no business at this door; it is for: {', '.join(kinds)}")
    return identity
