"""T7: tokens checked against the issuer's published keys, for installations without a right to TokenReview.

What this can't tell, and TokenReview could: whether the pod that a token is bound to still exists. Such a token lives
on until it expires; the fence alone refuses what it brings (F3). Readers are asked about in their own namespace.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from kubernetes.aio import client

from moorage.clock import Clock
from moorage.gateway.auth import Identity, Kind
from moorage.gateway.cluster import SERVICE_ACCOUNT, Remembered, asked, reading, resolving
from moorage.gateway.errors import Unauthenticated
from moorage.gateway.settings import GatewaySettings

MAX_TOKEN = 16 * 1024
KEYS_TTL_MS = 300_000  # a key that was withdrawn is believed no longer than this
REFETCH_MS = 10_000  # tokens with invented key ids make nobody ask the API server more often than this
LEEWAY_S = 10  # between two clocks
CURVES: Mapping[str, tuple[ec.EllipticCurve, hashes.HashAlgorithm]] = {
    "ES256": (ec.SECP256R1(), hashes.SHA256()),
    "ES384": (ec.SECP384R1(), hashes.SHA384()),
    "ES512": (ec.SECP521R1(), hashes.SHA512()),
}

Claims = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """One public key of the issuer, with the only algorithm that it may be used with."""

    algorithm: str
    public: rsa.RSAPublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class Issuer:
    """Whose tokens are taken, and by which keys."""

    name: str
    keys: Mapping[str, Key]


class IssuerAuthenticator:
    """An Authenticator that needs no ClusterRole. `namespaces` are the tenants that are served."""

    def __init__(self, api: Any, clock: Clock, settings: GatewaySettings, namespaces: frozenset[str]) -> None:
        self._known, self._keys = client.WellKnownApi(api), client.OpenidApi(api)
        self._access = client.AuthorizationV1Api(api)
        self._clock, self._settings, self._namespaces = clock, settings, namespaces
        self._issuer: Issuer | None = None
        self._fetched_at = 0
        self._answers: Remembered[bool] = Remembered(clock, settings.token_cache_ms, settings.token_cache_size)

    async def authenticate(self, token: str) -> Identity:
        """Check signature, issuer, audience and times; read whose it is from the claims."""
        header, claims, signed, signature = parse(token)
        issuer = await self._issuer_with(str(header.get("kid")))
        key = issuer.keys.get(str(header.get("kid")))
        if key is None or header.get("alg") != key.algorithm or not verified(key, signed, signature):
            raise Unauthenticated("the token is not signed by this cluster")
        check(claims, issuer.name, self._settings.audience, self._clock.now_ms() // 1000)
        return identity_of(claims, self._settings.operator_subject)

    async def may_read(self, identity: Identity, namespace: str) -> bool:
        """LocalSubjectAccessReview for `get agentruns`; never for a namespace that isn't served."""
        if namespace not in self._namespaces:
            return False
        key = "\0".join((identity.user, *identity.groups, namespace))
        return await self._answers.get(key, lambda: self._ask(identity, namespace, reading(namespace)))

    async def may_resolve(self, identity: Identity, namespace: str) -> bool:
        """LocalSubjectAccessReview for `update agentruns/effects`; never for a namespace that isn't served."""
        served = namespace in self._namespaces and identity.kind is Kind.READER
        return served and await self._ask(identity, namespace, resolving(namespace))

    async def _ask(self, identity: Identity, namespace: str, wanted: client.V1ResourceAttributes) -> bool:
        spec = client.V1SubjectAccessReviewSpec(
            user=identity.user, groups=list(identity.groups), resource_attributes=wanted
        )
        body = client.V1LocalSubjectAccessReview(spec=spec, metadata=client.V1ObjectMeta(namespace=namespace))
        review = await asked(self._access.create_namespaced_local_subject_access_review(namespace, body))
        return bool(review.status and review.status.allowed)

    async def _issuer_with(self, kid: str) -> Issuer:
        """The issuer, fetched again when it is old, or when a key is asked for that it doesn't have."""
        age = self._clock.monotonic_ms() - self._fetched_at
        found = self._issuer
        if found is None or age >= KEYS_TTL_MS or (kid not in found.keys and age >= REFETCH_MS):
            found = self._issuer = await self._fetch()
            self._fetched_at = self._clock.monotonic_ms()
        return found

    async def _fetch(self) -> Issuer:
        known = await asked(self._known.get_service_account_issuer_open_id_configuration_without_preload_content())
        keys = await asked(self._keys.get_service_account_issuer_open_id_keyset_without_preload_content())
        name = json.loads(await known.read())["issuer"]
        return Issuer(name, read_keys(json.loads(await keys.read())))


def parse(token: str) -> tuple[Claims, Claims, bytes, bytes]:
    """Header, claims, the signed bytes and the signature of a JWT; Unauthenticated for anything else."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > MAX_TOKEN:
        raise Unauthenticated("the token is no JWT")
    try:
        header, claims = json.loads(_decode(parts[0])), json.loads(_decode(parts[1]))
        signature = _decode(parts[2])
    except (ValueError, binascii.Error, RecursionError):
        raise Unauthenticated("the token can't be read") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise Unauthenticated("the token can't be read")
    return header, claims, f"{parts[0]}.{parts[1]}".encode(), signature


def _decode(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def read_keys(jwks: Mapping[str, Any]) -> dict[str, Key]:
    """The usable keys of a key set, by key id; others are left out."""
    read = {str(jwk.get("kid")): _key(jwk) for jwk in jwks.get("keys", ())}
    return {kid: key for kid, key in read.items() if key is not None}


def _key(jwk: Mapping[str, Any]) -> Key | None:
    algorithm = str(jwk.get("alg"))
    if jwk.get("kty") == "RSA" and algorithm == "RS256":
        return Key("RS256", rsa.RSAPublicNumbers(_number(jwk["e"]), _number(jwk["n"])).public_key())
    if jwk.get("kty") == "EC" and algorithm in CURVES:
        curve = CURVES[algorithm][0]
        numbers = ec.EllipticCurvePublicNumbers(_number(jwk["x"]), _number(jwk["y"]), curve)
        return Key(algorithm, numbers.public_key())
    return None


def _number(text: str) -> int:
    return int.from_bytes(_decode(text), "big")


def verified(key: Key, signed: bytes, signature: bytes) -> bool:
    """Whether the signature is the key's."""
    try:
        if isinstance(key.public, rsa.RSAPublicKey):
            key.public.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
        else:
            half = len(signature) // 2
            r, s = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
            key.public.verify(encode_dss_signature(r, s), signed, ec.ECDSA(CURVES[key.algorithm][1]))
    except InvalidSignature:
        return False
    return True


def check(claims: Claims, issuer: str, audience: str, now: int) -> None:
    """Issuer, audience and times (seconds); Unauthenticated says which."""
    audiences = claims.get("aud")
    if claims.get("iss") != issuer:
        raise Unauthenticated("the token is of another issuer")
    if audience not in (audiences if isinstance(audiences, list) else [audiences]):
        raise Unauthenticated(f"the token is not valid for the audience {audience}")
    expires, begins = claims.get("exp"), claims.get("nbf", 0)
    if not isinstance(expires, int | float) or not isinstance(begins, int | float):
        raise Unauthenticated("the token doesn't say when it expires")
    if now >= expires + LEEWAY_S or now < begins - LEEWAY_S:
        raise Unauthenticated("the token has expired, or is not valid yet")


def identity_of(claims: Claims, operator_subject: str) -> Identity:
    """Whose service account it is, and which pod the token is bound to."""
    user, about = str(claims.get("sub", "")), claims.get("kubernetes.io")
    if not user.startswith(SERVICE_ACCOUNT) or not isinstance(about, dict):
        raise Unauthenticated("the token is no service account's")
    namespace = user.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
    pod, node = about.get("pod") or {}, about.get("node") or {}
    kind = Kind.OPERATOR if user == operator_subject else Kind.SANDBOX if pod.get("uid") else Kind.READER
    return Identity(
        kind=kind,
        user=user,
        groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"),
        namespace=namespace,
        pod_uid=pod.get("uid"),
        pod_name=pod.get("name"),
        node=node.get("name"),
    )
